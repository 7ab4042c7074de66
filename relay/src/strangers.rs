//! Connections on which nobody has shown a token of the group yet: few from one address, so that no
//! single machine can hold all the places that there are.
//!
//! Behind a proxy all connections come from one address; those of the group are known after their
//! first request and count here no longer.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Strangers {
    max: usize,
    from: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
}

/// One connection; counted until somebody of the group spoke on it, or it ended.
#[derive(Debug, Clone)]
pub(crate) struct Stranger(Arc<Mutex<Option<Place>>>);

#[derive(Debug)]
struct Place {
    strangers: Strangers,
    network: IpAddr,
}

impl Strangers {
    pub(crate) fn new(max: usize) -> Self {
        Self { max: max.max(1), from: Arc::default() }
    }

    /// `None` when there are too many from there.
    pub(crate) fn admit(&self, address: IpAddr) -> Option<Stranger> {
        let network = network(address);
        let mut from = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        let count = from.entry(network).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        let place = Place { strangers: self.clone(), network };
        Some(Stranger(Arc::new(Mutex::new(Some(place)))))
    }
}

impl Stranger {
    /// A token of the group was shown.
    pub(crate) fn is_known_now(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(crate) fn is_known(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut from = self.strangers.from.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = from.get_mut(&self.network) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                from.remove(&self.network);
            }
        }
    }
}

/// Of IPv6 a machine has a whole /64 to choose from.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_a_few_places_and_members_need_none() {
        let strangers = Strangers::new(2);
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let first = strangers.admit(a).unwrap();
        let second = strangers.admit(a).unwrap();
        assert!(strangers.admit(a).is_none());
        assert!(strangers.admit(b).is_some());
        first.is_known_now();
        assert!(first.is_known() && !second.is_known());
        let third = strangers.admit(a).unwrap();
        assert!(strangers.admit(a).is_none());
        drop((second, third));
        assert!(strangers.admit(a).is_some());
        drop(first);
        assert!(strangers.from.lock().unwrap().is_empty(), "nothing is kept of who went");
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let strangers = Strangers::new(1);
        let _one = strangers.admit("2001:db8:1:2::1".parse().unwrap()).unwrap();
        assert!(strangers.admit("2001:db8:1:2:ffff::9".parse().unwrap()).is_none());
        assert!(strangers.admit("2001:db8:1:3::1".parse().unwrap()).is_some());
        let _four = strangers.admit("10.0.0.1".parse().unwrap()).unwrap();
        assert!(strangers.admit("::ffff:10.0.0.1".parse().unwrap()).is_none());
    }
}
