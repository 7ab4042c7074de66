//! Which addresses are of the public internet, and what the others are. Pure.
//!
//! What a guest may reach is the public internet and nothing near the owner: everything that is
//! not plainly public is refused, also where it hides in an IPv6 form of an IPv4 address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What kind of address it is when it is not a public one; `own`: all addresses of this machine.
pub(super) fn not_public(address: IpAddr, own: &[IpAddr]) -> Option<&'static str> {
    let kind = match address {
        IpAddr::V4(v4) => of_v4(v4),
        IpAddr::V6(v6) => of_v6(v6),
    };
    let is_own = |ip: IpAddr| own.iter().any(|known| known.to_canonical() == ip.to_canonical());
    let inner = match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => embedded(v6).map(IpAddr::V4),
    };
    let mine = is_own(address) || inner.is_some_and(is_own);
    kind.or(mine.then_some("an address of the provider's own"))
}

fn of_v4(ip: Ipv4Addr) -> Option<&'static str> {
    let kind = match ip.octets() {
        [0, ..] => "an unspecified address",
        [127, ..] => "a loopback address",
        [10, ..] | [192, 168, ..] => "a private address",
        [172, b, ..] if b & 0xf0 == 16 => "a private address",
        [169, 254, ..] => "a link-local address",
        [100, b, ..] if b & 0xc0 == 64 => "an address of a carrier's inside (CGNAT)",
        [192, 0, 0, _] => "a reserved address",
        [192, 88, 99, _] => "an address of 6to4 relays",
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => "an address for documentation",
        [198, 18 | 19, ..] => "an address for benchmarks",
        [a, ..] if a & 0xf0 == 224 => "a multicast address",
        [a, ..] if a >= 240 => "a reserved address",
        _ => return None,
    };
    Some(kind)
}

fn of_v6(ip: Ipv6Addr) -> Option<&'static str> {
    if let Some(inner) = embedded(ip) {
        return of_v4(inner);
    }
    let kind = match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => "an unspecified address",
        [0, 0, 0, 0, 0, 0, 0, 1] => "a loopback address",
        [0x64, 0xff9b, 1, ..] => "an address of a local translator",
        [a, ..] if a & 0xfe00 == 0xfc00 => "a private address",
        [a, ..] if a & 0xffc0 == 0xfe80 => "a link-local address",
        [a, ..] if a & 0xff00 == 0xff00 => "a multicast address",
        [0x2001, 0xdb8, ..] => "an address for documentation",
        [0x3fff, b, ..] if b & 0xf000 == 0 => "an address for documentation",
        // Teredo, benchmarks, identifiers without routes: none of them leads to a server.
        [0x2001, b, ..] if b & 0xfe00 == 0 => "a reserved address",
        [a, ..] if a & 0xe000 == 0x2000 => return None,
        _ => "a reserved address",
    };
    Some(kind)
}

/// The IPv4 address that packets to this one end up at: mapped, 6to4, or by the well-known prefix
/// of translators (NAT64).
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match ip.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind(text: &str) -> Option<&'static str> {
        not_public(text.parse().unwrap(), &[])
    }

    #[test]
    fn public_addresses_are_let_through() {
        for text in [
            "93.184.216.34",
            "172.15.255.255",
            "172.32.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "223.255.255.255",
            "192.0.1.0",
            "2606:2800:220:1:248:1893:25c8:1946",
            "2a00:1450::200e",
            "64:ff9b::5db8:d822",
            "::ffff:93.184.216.34",
            "2002:5db8:d822::1",
        ] {
            assert_eq!(kind(text), None, "{text}");
        }
    }

    #[test]
    fn everything_near_the_owner_is_refused_by_its_kind() {
        for (text, word) in [
            ("0.0.0.0", "unspecified"),
            ("127.0.0.1", "loopback"),
            ("127.255.0.3", "loopback"),
            ("10.1.2.3", "private"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("169.254.169.254", "link-local"),
            ("100.64.0.1", "CGNAT"),
            ("192.0.2.1", "documentation"),
            ("198.51.100.1", "documentation"),
            ("203.0.113.9", "documentation"),
            ("198.18.0.1", "benchmarks"),
            ("224.0.0.251", "multicast"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::7f00:1", "reserved"),
            ("fd00::1", "private"),
            ("fe80::1", "link-local"),
            ("fec0::1", "reserved"),
            ("ff02::1", "multicast"),
            ("2001:db8::1", "documentation"),
            ("2001:0:5db8::1", "reserved"),
            ("64:ff9b:1::1", "translator"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:10.0.0.1", "private"),
            ("64:ff9b::a9fe:a9fe", "link-local"),
            ("2002:a00:1::1", "private"),
        ] {
            assert!(kind(text).is_some_and(|kind| kind.contains(word)), "{text}: {:?}", kind(text));
        }
    }

    #[test]
    fn the_provider_s_own_public_address_is_refused_in_every_form() {
        let own: Vec<IpAddr> = vec!["93.184.216.34".parse().unwrap(), "2a00::5".parse().unwrap()];
        for text in ["93.184.216.34", "::ffff:93.184.216.34", "64:ff9b::5db8:d822", "2a00::5"] {
            assert!(not_public(text.parse().unwrap(), &own).is_some_and(|kind| kind.contains("own")));
        }
        assert_eq!(not_public("93.184.216.35".parse().unwrap(), &own), None);
    }

    proptest! {
        /// The forms of one address share its fate, whatever it is.
        #[test]
        fn an_address_can_not_hide_in_another_form(bits in any::<u32>(), low in any::<u64>(), subnet in any::<u16>()) {
            let v4 = Ipv4Addr::from_bits(bits);
            let (high, end) = ((bits >> 16) as u16, bits as u16);
            let plain = not_public(v4.into(), &[]);
            let nat64 = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, end);
            let low = low.to_be_bytes();
            let word = |i: usize| u16::from_be_bytes([low[i], low[i + 1]]);
            let six = Ipv6Addr::new(0x2002, high, end, subnet, word(0), word(2), word(4), word(6));
            for form in [v4.to_ipv6_mapped(), nat64, six] {
                prop_assert_eq!(not_public(form.into(), &[]), plain, "{}", form);
            }
        }

        /// What the standard library knows about an address is never called public.
        #[test]
        fn nothing_that_is_known_as_special_is_public(bits in any::<u32>(), v6 in any::<u128>()) {
            let v4 = Ipv4Addr::from_bits(bits);
            let special = v4.is_loopback() || v4.is_private() || v4.is_link_local() || v4.is_multicast()
                || v4.is_broadcast() || v4.is_documentation() || v4.is_unspecified();
            prop_assert!(!special || not_public(v4.into(), &[]).is_some());
            for v6 in [Ipv6Addr::from_bits(v6), Ipv6Addr::from_bits(v6 >> 96 | v6 & 0xff << 120)] {
                let special = v6.is_loopback() || v6.is_multicast() || v6.is_unspecified()
                    || v6.is_unique_local() || v6.is_unicast_link_local();
                prop_assert!(!special || not_public(v6.into(), &[]).is_some(), "{v6}");
            }
        }
    }
}
