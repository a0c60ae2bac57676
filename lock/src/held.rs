//! A lease in the hands of the program.

use std::fmt;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use leasehold_leases::Time;
use leasehold_lock_core::{Fence, Holding, MemberId, rules};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use crate::clock::{self, ClockReadings};
use crate::driver::{Command, Commands};
use crate::group::Group;

/// Maximum time for which [`LeaseView::lost`] sleeps before it reads the clock again. A timer does not
/// count the time for which the machine is suspended.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// Share of the time until the end of a lease after which one look at the steered clock is not
/// sufficient any more: the last tenth. This clock is slower than the unsteered clock by less than that.
const CERTAIN_OF: u32 = 10;
const _: () = assert!(CERTAIN_OF < leasehold_clock::STEERING_MAX);

/// Whether a lease can be used, by the clock at the time of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The lease is valid.
    Valid {
        /// Time until the end of the lease, at least, if it is not renewed before. It can be too short
        /// by a fifth of the term.
        left: Duration,
    },
    /// The lease is not valid any more.
    Lost(Loss),
}

/// Reason for the loss of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// No majority of the group has renewed the lease in time.
    NotRenewed,
    /// The clocks of this machine disagree, or its wall clock was set. With synchronised clocks, also:
    /// its clock differs too much from the clock of another member.
    Clock,
    /// The program has released the lease, or has stopped its member.
    Released,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::NotRenewed => "no majority of the group has renewed it in time",
            Loss::Clock => "a clock was set or is wrong; the log says which",
            Loss::Released => "it was released",
        })
    }
}

/// Result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// A majority has confirmed the release. Others can acquire the resource now.
    Yes,
    /// No majority has confirmed the release in time. Others can acquire the resource later.
    Unknown {
        /// Time after which they can.
        ends_in: Duration,
    },
}

/// State of a lease, which the member's thread and the program share.
#[derive(Debug)]
pub(crate) struct LeaseState {
    fence: Fence,
    /// End by the clock by which the group measures leases, in ns.
    until_ns: AtomicU64,
    /// End by the local clock, in ns. It ends the lease if the wall clock is set back.
    local_until_ns: AtomicU64,
    /// Reading of the steered clock, in ns, until which the lease certainly has not ended.
    certain_until_ns: AtomicU64,
    /// Whether the group measures leases by the wall clock.
    is_by_wall_clock: bool,
    loss: OnceLock<Loss>,
    /// Notified when the lease is renewed or lost.
    changed: Notify,
}

impl LeaseState {
    pub(crate) fn new(holding: Holding, group: &Group, now: ClockReadings) -> LeaseState {
        let state = LeaseState {
            is_by_wall_clock: !group.settings().has_timers(),
            fence: holding.fence(),
            until_ns: AtomicU64::new(0),
            local_until_ns: AtomicU64::new(0),
            certain_until_ns: AtomicU64::new(0),
            loss: OnceLock::new(),
            changed: Notify::new(),
        };
        state.renew(holding, now);
        state
    }

    pub(crate) fn fence(&self) -> Fence {
        self.fence
    }

    /// Stores the later end of a renewed lease.
    pub(crate) fn renew(&self, holding: Holding, now: ClockReadings) {
        let until = holding.until();
        self.until_ns.store(until.0, Ordering::Relaxed);
        let local = now.to_local(until);
        self.local_until_ns.store(local.0, Ordering::Relaxed);
        // The steered clock is read first, so at its reading even more time was left.
        let steered = leasehold_clock::steered();
        let left = local.since(leasehold_clock::now());
        let certain = steered + left - left / CERTAIN_OF;
        self.certain_until_ns.store(certain.0, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Ends the lease. Returns whether it had not ended before. Only the first reason counts.
    pub(crate) fn lose(&self, loss: Loss) -> bool {
        let is_first = self.loss.set(loss).is_ok();
        self.changed.notify_waiters();
        is_first
    }

    /// Whether the lease can be used. Usually reads one clock, or two in a group that measures leases by
    /// the wall clock.
    fn check(&self) -> Check {
        if let Some(loss) = self.loss.get() {
            return Check::Lost(*loss);
        }
        let certain_until = Time(self.certain_until_ns.load(Ordering::Relaxed));
        let left = certain_until.since(leasehold_clock::steered());
        if left.is_zero() {
            return self.check_exactly();
        }
        if !self.is_by_wall_clock {
            return Check::Valid { left };
        }
        let until = Time(self.until_ns.load(Ordering::Relaxed));
        let wall_left = until.since(clock::wall());
        if wall_left.is_zero() {
            return self.check_exactly();
        }
        let left = left.min(wall_left);
        Check::Valid { left }
    }

    /// Whether the lease can be used, with the exact time that is left.
    fn check_exactly(&self) -> Check {
        if let Some(loss) = self.loss.get() {
            return Check::Lost(*loss);
        }
        // Each end only grows, so an old value of one of them is safe.
        let local_until = Time(self.local_until_ns.load(Ordering::Relaxed));
        let until = Time(self.until_ns.load(Ordering::Relaxed));
        let local = leasehold_clock::now();
        let mut left = local_until.since(local);
        let mut is_over = local > local_until;
        if self.is_by_wall_clock {
            let wall = clock::wall();
            left = left.min(until.since(wall));
            is_over |= wall > until;
        }
        if is_over {
            Check::Lost(Loss::NotRenewed)
        } else {
            Check::Valid { left }
        }
    }
}

/// View of a lease, which shows whether the lease is valid. Each thread of a program can have one.
/// The lease does not depend on it.
#[derive(Clone)]
pub struct LeaseView {
    state: Arc<LeaseState>,
    group: Arc<Group>,
}

impl LeaseView {
    /// Returns whether the lease is valid now. Each call reads the clock.
    pub fn check(&self) -> Check {
        self.state.check()
    }

    /// Returns the time until the end of the lease if it is not renewed before; zero if it is lost.
    /// This takes longer than [`check`](LeaseView::check), and is exact.
    pub fn left(&self) -> Duration {
        match self.state.check_exactly() {
            Check::Valid { left } => left,
            Check::Lost(_) => Duration::ZERO,
        }
    }

    /// Returns the fence token: a number that rises with every owner of the resource. A store that
    /// remembers the largest token can refuse the late requests of an earlier owner.
    ///
    /// The tokens also rise if all members restart, as long as they have their directories or the
    /// clocks of the group are synchronised.
    pub fn fence(&self) -> u64 {
        self.state.fence.0
    }

    /// Waits until the lease is lost, or is about to end: `warn_ms` of the group file before its
    /// end. Returns the reason. The program must stop using the resource before the lease ends.
    pub async fn lost(&self) -> Loss {
        loop {
            let mut changed = pin!(self.state.changed.notified());
            // A change after the check is not missed.
            changed.as_mut().enable();
            let left = match self.state.check_exactly() {
                Check::Lost(loss) => return loss,
                Check::Valid { left } => left,
            };
            let time = left.saturating_sub(self.group.warn());
            if time.is_zero() {
                return Loss::NotRenewed;
            }
            tokio::select! {
                () = changed => {}
                () = sleep(time.min(SLEEP_MAX)) => {}
            }
        }
    }

    /// Returns the time after which others can acquire the resource, if no member learns of the
    /// release.
    fn ends(&self) -> Released {
        let until = Time(self.state.until_ns.load(Ordering::Relaxed));
        let settings = self.group.settings();
        let from = rules::takeable_from(settings, until);
        let ends_in = from.since(ClockReadings::now(settings).time);
        Released::Unknown { ends_in }
    }
}

impl fmt::Debug for LeaseView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseView")
            .field("fence", &self.fence())
            .field("check", &self.check())
            .finish()
    }
}

/// Error of [`Held::hand_over`]: the group has no such member.
#[derive(Debug, thiserror::Error)]
#[error("the group has no member {name:?}, but: {}", known.join(", "))]
pub struct UnknownSuccessor {
    /// The name.
    pub name: String,
    /// Names of the members.
    pub known: Vec<String>,
    /// The lease. It is still valid.
    pub held: Box<Held>,
}

/// A lease of a resource. Its member renews it until it is dropped or released.
///
/// A lease can be lost although nobody has released it: if the member reaches no majority, if the
/// machine was suspended, or if a clock is wrong. So a program calls [`check`](LeaseView::check)
/// each time before it uses the resource, and stops when [`lost`](LeaseView::lost) returns.
#[derive(Debug)]
#[must_use = "a lease is released when it is dropped"]
pub struct Held {
    resource: Bytes,
    view: LeaseView,
    commands: Commands,
}

impl Held {
    pub(crate) fn new(
        resource: Bytes,
        state: Arc<LeaseState>,
        group: Arc<Group>,
        commands: Commands,
    ) -> Held {
        Held {
            resource,
            view: LeaseView { state, group },
            commands,
        }
    }

    /// Returns the name of the resource.
    pub fn resource(&self) -> &[u8] {
        &self.resource
    }

    /// Returns a view of the lease, for example for another thread.
    pub fn view(&self) -> LeaseView {
        self.view.clone()
    }

    /// Gives the lease up, so that others need not wait for its end. The program must have stopped
    /// using the resource. The result is `Unknown` if the lease was lost before.
    pub async fn release(self) -> Released {
        self.release_to(None).await
    }

    /// Gives the lease up in favour of a member of the group. If that member waits for the resource,
    /// it owns the resource next, before all others that wait. Otherwise this is a release.
    ///
    /// # Errors
    /// The group has no member with this name. The lease is in the error, and stays valid.
    pub async fn hand_over(self, member: &str) -> Result<Released, UnknownSuccessor> {
        match self.view.group.member(member) {
            Some(successor) => Ok(self.release_to(Some(successor)).await),
            None => Err(UnknownSuccessor {
                name: member.to_owned(),
                known: self.view.group.names(),
                held: Box::new(self),
            }),
        }
    }

    async fn release_to(self, successor: Option<MemberId>) -> Released {
        let (answer, answered) = oneshot::channel();
        self.give_up(successor, Some(answer));
        // There is no answer if the lease was lost before.
        answered.await.unwrap_or_else(|_| self.ends())
    }

    /// Ends the lease for this program, and then sends its release to the member's thread.
    fn give_up(&self, successor: Option<MemberId>, answer: Option<oneshot::Sender<Released>>) {
        if self.view.state.lose(Loss::Released) {
            self.commands.send(Command::Release {
                resource: self.resource.clone(),
                fence: self.view.state.fence(),
                successor,
                answer,
            });
        }
    }
}

impl Deref for Held {
    type Target = LeaseView;

    fn deref(&self) -> &LeaseView {
        &self.view
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_up(None, None);
    }
}
