//! Queue of events in order of true time. Events with the same time are in the order in which they
//! were scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of bits for the place of an event. These bits are a part of the event's number in the
/// heap.
const PLACE_BITS: u32 = 24;
/// Number of bits for the rank of an event. These bits are a part of the event's number in the
/// heap. The rank is the number of events that were scheduled so far, including this event.
const SCHEDULED_BITS: u32 = 40;

/// Queue of events. The heap contains one number for each event. This number consists of the
/// event's time, rank and place. The rank is the position in the order of scheduling.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<u128>>,
    events: Vec<Option<E>>,
    free: Vec<usize>,
    scheduled: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> EventQueue<E> {
        EventQueue::new()
    }
}

impl<E> EventQueue<E> {
    /// Creates an empty queue.
    pub fn new() -> EventQueue<E> {
        EventQueue {
            heap: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            scheduled: 0,
        }
    }

    /// Returns the number of events scheduled so far.
    pub fn scheduled(&self) -> u64 {
        self.scheduled
    }

    /// Schedules an event at a true time, in ns. Returns the event's place, which is not used for
    /// another event until this event is taken.
    ///
    /// # Panics
    /// Panics if 2^24 events are waiting, or if 2^40 events were scheduled.
    pub fn schedule(&mut self, at_ns: u64, event: E) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.scheduled += 1;
        assert!(place >> PLACE_BITS == 0 && self.scheduled >> SCHEDULED_BITS == 0);
        let order = u128::from(self.scheduled << PLACE_BITS | place as u64);
        self.heap.push(Reverse(u128::from(at_ns) << 64 | order));
        place
    }

    /// Returns the event in a place; `None` if the event has been taken.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut E> {
        self.events[place].as_mut()
    }

    /// Takes the next event. Returns its true time, in ns, and the event; `None` if the queue is
    /// empty.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        let Reverse(next) = self.heap.pop()?;
        let place = next as usize & ((1 << PLACE_BITS) - 1);
        let event = self.events[place].take().expect("a queued event exists");
        self.free.push(place);
        Some(((next >> 64) as u64, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_in_which_they_were_scheduled() {
        let mut queue = EventQueue::new();
        for (at_ns, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            queue.schedule(at_ns, event);
        }
        let all: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(all, [(1, 'a'), (1, 'b'), (5, 'c'), (5, 'd')]);
    }

    #[test]
    fn an_event_that_waits_can_be_changed_in_its_place() {
        let mut queue = EventQueue::new();
        let place = queue.schedule(1, 7);
        *queue.get_mut(place).expect("it waits") += 1;
        assert_eq!(queue.pop(), Some((1, 8)));
        assert_eq!(queue.get_mut(place), None);
        assert_eq!(queue.schedule(2, 9), place, "places are reused");
        assert_eq!(queue.scheduled(), 2);
    }
}
