//! The invite link: `gpunion://join/CODE?at=HOST:PORT&at=…&pin=HEX&group=NAME`.
//!
//! Single use and expiring; it pins the relay's public key (SHA-256 of its SubjectPublicKeyInfo),
//! so that a later certificate of the same key does not lose the group. Without a pin, behind a
//! proxy that ends TLS, the system's roots count.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Invite {
    /// The secret: 32 hex digits.
    pub code: String,
    /// `host:port`, in the order to try.
    pub addresses: Vec<String>,
    /// SHA-256 of the relay's SubjectPublicKeyInfo; absent: the system's roots decide.
    pub pin: Option<[u8; 32]>,
    pub group: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadInvite {
    #[error("this is not an invite link (it starts with gpunion://join/)")]
    Scheme,
    #[error("the invite link is cut or altered: {0}")]
    Part(&'static str),
}

const MAX_LINK: usize = 4096;

impl fmt::Debug for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invite")
            .field("addresses", &self.addresses)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpunion://join/{}?group={}", self.code, escape(&self.group))?;
        for address in &self.addresses {
            write!(f, "&at={}", escape(address))?;
        }
        match self.pin {
            Some(pin) => write!(f, "&pin={}", hex::encode(pin)),
            None => Ok(()),
        }
    }
}

impl FromStr for Invite {
    type Err = BadInvite;

    fn from_str(text: &str) -> Result<Self, BadInvite> {
        let text = text.trim();
        let rest = text.strip_prefix("gpunion://join/").ok_or(BadInvite::Scheme)?;
        if text.len() > MAX_LINK {
            return Err(BadInvite::Part("it is too long"));
        }
        let (code, query) = rest.split_once('?').ok_or(BadInvite::Part("nothing follows its code"))?;
        if code.len() != 32 || !code.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(BadInvite::Part("its code"));
        }
        let mut invite =
            Self { code: code.to_ascii_lowercase(), addresses: Vec::new(), pin: None, group: String::new() };
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').ok_or(BadInvite::Part("its parameters"))?;
            let value = unescape(value).ok_or(BadInvite::Part("its parameters"))?;
            match key {
                "at" if !value.contains(['/', ' ']) && value.contains(':') => invite.addresses.push(value),
                "at" => return Err(BadInvite::Part("an address")),
                "group" => invite.group = value,
                "pin" => {
                    let mut pin = [0; 32];
                    hex::decode_to_slice(&value, &mut pin).map_err(|_| BadInvite::Part("the relay's key"))?;
                    invite.pin = Some(pin);
                }
                // A newer relay may say more.
                _ => {}
            }
        }
        if invite.addresses.is_empty() {
            return Err(BadInvite::Part("it names no address"));
        }
        Ok(invite)
    }
}

impl TryFrom<String> for Invite {
    type Error = BadInvite;

    fn try_from(text: String) -> Result<Self, BadInvite> {
        text.parse()
    }
}

impl From<Invite> for String {
    fn from(invite: Invite) -> String {
        invite.to_string()
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:[]".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let pair = [rest.next()?, rest.next()?];
            let mut out = [0];
            hex::decode_to_slice(pair, &mut out).ok()?;
            bytes.push(out[0]);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_link_reads_back(group in ".{0,30}", pin in proptest::option::of(any::<[u8; 32]>()), port in 1u16..) {
            let invite = Invite {
                code: "0123456789abcdef0123456789abcdef".to_owned(),
                addresses: vec![format!("relay.example:{port}"), format!("[fe80::1]:{port}")],
                pin,
                group,
            };
            prop_assert_eq!(invite.to_string().parse::<Invite>().unwrap(), invite);
        }

        #[test]
        fn no_text_panics(text in ".{0,80}") {
            let _ = text.parse::<Invite>();
            let _ = format!("gpunion://join/{text}").parse::<Invite>();
        }
    }

    #[test]
    fn the_code_is_not_in_debug_output() {
        let link = "gpunion://join/0123456789abcdef0123456789abcdef?at=h:1&group=lab";
        assert!(!format!("{:?}", link.parse::<Invite>().unwrap()).contains("0123456789abcdef"));
    }
}
