//! Deadlines of resources, in order.

use std::collections::BTreeSet;

use leasehold_leases::Time;

use crate::message::Resource;

/// At most one deadline for each resource.
#[derive(Clone, Debug, Default, Hash)]
pub struct Agenda(BTreeSet<(Time, Resource)>);

impl Agenda {
    /// Replaces the deadline of a resource. [`Time::MAX`] is no deadline.
    pub fn replace(&mut self, resource: &Resource, old: Time, new: Time) {
        if old == new {
            return;
        }
        if old != Time::MAX {
            self.0.remove(&(old, resource.clone()));
        }
        if new != Time::MAX {
            self.0.insert((new, resource.clone()));
        }
    }

    /// Returns the next deadline; [`Time::MAX`] if there is none.
    pub fn next(&self) -> Time {
        self.0.first().map_or(Time::MAX, |(time, _)| *time)
    }

    /// Removes and returns a resource with a reached deadline, and this deadline.
    pub fn take_due(&mut self, now: Time) -> Option<(Time, Resource)> {
        if self.next() > now {
            return None;
        }
        self.0.pop_first()
    }
}
