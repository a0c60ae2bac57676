//! Places for connections: a new connection takes the place of the oldest.
//!
//! A peer that connects must find a place, even if unauthenticated peers that say nothing hold
//! all of them, or connections of an earlier run of its own that were never closed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::sync::Notify;

/// A bounded number of places, and a bounded number of them for connections of the same `K`.
#[derive(Debug)]
pub(super) struct Places<K> {
    max: usize,
    max_alike: usize,
    last: Cell<u64>,
    /// The oldest first.
    taken: Rc<RefCell<VecDeque<Taken<K>>>>,
    lost: Cell<u64>,
}

#[derive(Debug)]
struct Taken<K> {
    number: u64,
    kind: K,
    lost: Rc<Notify>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place<K> {
    number: u64,
    lost: Rc<Notify>,
    taken: Rc<RefCell<VecDeque<Taken<K>>>>,
}

impl<K> Place<K> {
    /// Completes when a newer connection has taken it.
    pub(super) async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl<K> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.taken.borrow_mut();
        taken.retain(|other| other.number != self.number);
    }
}

impl<K: Copy + Eq> Places<K> {
    pub(super) fn new(max: usize, max_alike: usize) -> Places<K> {
        Places {
            max,
            max_alike,
            last: Cell::new(0),
            taken: Rc::default(),
            lost: Cell::new(0),
        }
    }

    /// A place for somebody of this kind. If there are too many alike, or in all, the oldest
    /// of them loses its own.
    pub(super) fn take(&self, kind: K) -> Place<K> {
        let mut taken = self.taken.borrow_mut();
        let alike = |other: &Taken<K>| other.kind == kind;
        let loses = match taken.iter().filter(|other| alike(other)).count() >= self.max_alike {
            true => taken.iter().position(alike),
            false => (taken.len() >= self.max).then_some(0),
        };
        if let Some(loser) = loses.and_then(|loser| taken.remove(loser)) {
            loser.lost.notify_one();
            self.lost.set(self.lost.get() + 1);
        }
        let number = self.last.get() + 1;
        self.last.set(number);
        let lost = Rc::new(Notify::new());
        taken.push_back(Taken {
            number,
            kind,
            lost: lost.clone(),
        });
        Place {
            number,
            lost,
            taken: self.taken.clone(),
        }
    }

    /// Number of times that a connection has lost its place to a newer one.
    pub(super) fn lost(&self) -> u64 {
        self.lost.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_lost(place: &Place<char>) -> bool {
        let lost = place.lost();
        tokio::pin!(lost);
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(lost.as_mut().poll(context).is_ready())
        })
        .await
    }

    #[tokio::test]
    async fn the_newest_have_a_place_and_the_oldest_alike_goes_first() {
        let places = Places::new(4, 2);
        let first = places.take('a');
        let other = places.take('b');
        let second = places.take('a');
        let third = places.take('a');
        assert!(is_lost(&first).await);
        for kept in [&other, &second, &third] {
            assert!(!is_lost(kept).await);
        }
        let fourth = places.take('c');
        let fifth = places.take('d');
        assert!(is_lost(&other).await, "the oldest of all");
        for kept in [&second, &third, &fourth, &fifth] {
            assert!(!is_lost(kept).await);
        }
        assert_eq!(places.lost(), 2);
        drop((second, fourth));
        let sixth = places.take('b');
        let seventh = places.take('c');
        for kept in [&third, &fifth, &sixth, &seventh] {
            assert!(!is_lost(kept).await, "there was room");
        }
    }
}
