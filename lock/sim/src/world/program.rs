//! Programs that acquire, use and release resources.

use bytes::Bytes;
use leasehold_leases::Time;
use leasehold_lock_core::{MemberId, MemberInput};
use rand::RngExt as _;

use super::{GroupWorld, Happening};
use crate::oracle::Checked;

/// State of a program at one member, for one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// The program has requested the resource.
    Waits,
    /// The program owns the resource, and will release it.
    Works,
}

impl GroupWorld {
    /// Plans the next action of a program, at a random time of up to `terms` terms from now.
    pub(super) fn plan_program(&mut self, member: usize, resource: &Bytes, terms: f64) {
        let resource = self.resource(resource);
        self.programs.remove(&(member, resource));
        let run = self.members[member].run();
        let at_ns = self.now_ns + self.draw_ns(terms);
        self.queue
            .schedule(at_ns, Happening::Program(member, run, resource));
    }

    /// Plans a query for the owner of a resource.
    pub(super) fn plan_query(&mut self, member: usize, resource: usize) {
        let run = self.members[member].run();
        let at_ns = self.now_ns + self.draw_ns(2.0);
        let query = Happening::Query(member, run, resource);
        self.queue.schedule(at_ns, query);
    }

    /// A program asks for the owner of a resource.
    pub(super) fn query(&mut self, member: usize, run: u64, resource: usize) -> Checked {
        let process = &mut self.members[member];
        if process.run() != run || process.machine().is_none() {
            return Ok(());
        }
        if process.paused_inbox().is_some() {
            self.plan_query(member, resource);
            return Ok(());
        }
        let name = self.resources[resource].clone();
        self.oracle.on_query(&name, MemberId(member as u8));
        self.check_holders(resource)?;
        self.step(member, MemberInput::FindOwner { resource: name })
    }

    pub(super) fn resource(&self, name: &Bytes) -> usize {
        let place = self.resources.iter().position(|it| it == name);
        place.expect("programs use these resources only")
    }

    /// Checks that a request has only one result.
    pub(super) fn on_result(&mut self, member: usize, resource: &Bytes) -> Checked {
        let resource = self.resource(resource);
        match self.requests.remove(&(member, resource)) {
            Some(_) => Ok(()),
            None => {
                let message = format!("m{member} has no request for r{resource}");
                Err(("results", message))
            }
        }
    }

    /// Checks that every request has its result, unless it still waits.
    pub(super) fn check_results(&self) -> Checked {
        let settings = &self.scenario.settings;
        let epsilon = self.epsilon().unwrap_or_default();
        let longest = settings.attempt * 2 + epsilon * 2 + settings.term;
        for ((member, resource), wait_until) in &self.requests {
            let now = self.members[*member].clock().read(self.now_ns);
            if *wait_until + longest < now {
                let message = format!("m{member} still waits for r{resource}");
                return Err(("results", message));
            }
        }
        Ok(())
    }

    /// Decides how long the program keeps a lease that it has just acquired.
    pub(super) fn on_acquired(&mut self, member: usize, resource: &Bytes) {
        if self.is_calm || self.rng.random::<f64>() >= self.scenario.releases {
            return;
        }
        self.plan_program(member, resource, 2.0);
        let resource = self.resource(resource);
        self.programs.insert((member, resource), Program::Works);
    }

    /// A program acts: it acquires the resource, releases it, or cancels its request.
    pub(super) fn act(&mut self, member: usize, run: u64, resource: usize) -> Checked {
        let process = &self.members[member];
        if process.run() != run || process.machine().is_none() {
            return Ok(());
        }
        if self.members[member].paused_inbox().is_some() {
            let at_ns = self.now_ns + 1_000_000;
            let later = Happening::Program(member, run, resource);
            self.queue.schedule(at_ns, later);
            return Ok(());
        }
        let name = self.resources[resource].clone();
        match self.programs.get(&(member, resource)) {
            Some(_) if self.is_calm => Ok(()),
            Some(_) => {
                let n = self.scenario.settings.members;
                let is_heir = self.rng.random::<f64>() < 0.3 && !self.scenario.is_patient;
                let release = MemberInput::Release {
                    resource: name,
                    successor: is_heir.then(|| MemberId(self.rng.random_range(0..n))),
                };
                self.step(member, release)
            }
            None => {
                self.programs.insert((member, resource), Program::Waits);
                let now = self.members[member].clock().read(self.now_ns);
                let is_patient = self.is_calm || self.scenario.is_patient;
                let wait_until = match self.rng.random_range(0..3) {
                    0 if !is_patient => Time::ZERO,
                    1 if !is_patient => Time(now.0 + self.draw_ns(3.0)),
                    _ => Time::MAX,
                };
                if !is_patient && self.rng.random::<f64>() < 0.05 {
                    // The program cancels its request, or releases a lease early.
                    let at_ns = self.now_ns + self.draw_ns(0.2);
                    let cancel = Happening::Program(member, run, resource);
                    self.queue.schedule(at_ns, cancel);
                }
                self.requests.insert((member, resource), wait_until);
                let acquire = MemberInput::Acquire {
                    resource: name,
                    wait_until,
                };
                self.step(member, acquire)
            }
        }
    }
}
