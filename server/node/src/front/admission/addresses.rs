//! Limit on the number of connections from each address.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

/// Limiter for the number of connections from each address. The limit leaves slots for other
/// addresses, so one machine cannot keep all other machines out.
#[derive(Debug)]
pub(crate) struct AddressLimiter {
    max: usize,
    taken: Rc<RefCell<HashMap<IpAddr, usize>>>,
    refused: Cell<u64>,
    /// Whether the last connection was refused. Only the first of several refusals in a row is
    /// logged.
    refusing: Cell<bool>,
}

/// Slot of a connection from an address. Dropping this value frees the slot.
#[derive(Debug)]
pub(crate) struct AddressSlot {
    prefix: IpAddr,
    taken: Rc<RefCell<HashMap<IpAddr, usize>>>,
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut taken = self.taken.borrow_mut();
        let left = taken.get_mut(&self.prefix).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            taken.remove(&self.prefix);
        }
    }
}

impl AddressLimiter {
    pub(crate) fn new(max: usize) -> AddressLimiter {
        AddressLimiter {
            max,
            taken: Rc::default(),
            refused: Cell::new(0),
            refusing: Cell::new(false),
        }
    }

    /// Takes a slot for a connection from `address`, if this address has a free slot.
    pub(crate) fn take(&self, address: IpAddr) -> Option<AddressSlot> {
        let prefix = network_prefix(address);
        let mut all = self.taken.borrow_mut();
        let count = all.entry(prefix).or_insert(0);
        if *count >= self.max {
            return None;
        }
        if *count < self.max - self.max / 8 {
            self.refusing.set(false);
        }
        *count += 1;
        let taken = self.taken.clone();
        Some(AddressSlot { prefix, taken })
    }

    /// Counts a refusal. Returns whether the refusal must be logged.
    pub(crate) fn count_refusal(&self) -> bool {
        self.refused.set(self.refused.get() + 1);
        !self.refusing.replace(true)
    }

    /// Returns the maximum number of connections from one address.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Returns the number of connections that were refused because their address had no free slot.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.get()
    }
}

/// Returns the network prefix of an address: the whole address for IPv4, the first 64 bits for
/// IPv6. A machine that has one IPv6 address usually has all addresses with the same first 64 bits.
pub(crate) fn network_prefix(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn each_address_has_places_of_its_own_and_gets_them_back() {
        let addresses = AddressLimiter::new(2);
        let take = |text| addresses.take(ip(text));
        let first = take("10.0.0.1").unwrap();
        let _second = take("10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none());
        assert!(take("::ffff:10.0.0.1").is_none(), "the same in other words");
        let other = take("10.0.0.2").unwrap();
        drop(first);
        assert!(take("10.0.0.1").is_some());
        drop(other);
        assert_eq!(
            addresses.taken.borrow().len(),
            1,
            "nothing is kept of who left"
        );
    }

    #[test]
    fn a_network_of_one_machine_is_one_address() {
        let addresses = AddressLimiter::new(1);
        let _first = addresses.take(ip("2001:db8:1:2::1")).unwrap();
        assert!(addresses.take(ip("2001:db8:1:2:ffff::9")).is_none());
        assert!(addresses.take(ip("2001:db8:1:3::1")).is_some());
        assert!(addresses.count_refusal() && !addresses.count_refusal());
        assert_eq!(addresses.refused(), 2);
    }
}
