//! Checks that know the true time and the state of all members.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use leasehold_lock_core::{Fence, Holding, KnownOwner, MemberId};

/// Broken property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupViolation {
    /// The oracle.
    pub oracle: &'static str,
    /// Description.
    pub message: String,
}

impl fmt::Display for GroupViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.oracle, self.message)
    }
}

/// Statement of a member to its program: another member owns the resource.
#[derive(Clone, Copy, Debug)]
struct Statement {
    owner: MemberId,
    fence: Fence,
    /// Reading of the clocks from which others can take the resource.
    until_ns: u64,
}

/// Facts about a resource since the beginning of a query for its owner.
#[derive(Clone, Debug, Default)]
struct SeenSince {
    owners: BTreeSet<(MemberId, Fence)>,
    was_free: bool,
}

/// Facts about all resources.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// Highest fence token so far, and its owner.
    fences: BTreeMap<Bytes, (Fence, MemberId)>,
    statements: BTreeMap<Bytes, Statement>,
    /// Highest fence token of a lease that each owner has released, or of an attempt that it has
    /// cancelled. An owner that does not hold a lease any more may replace it, and release the new
    /// one.
    released: BTreeMap<(Bytes, MemberId), Fence>,
    /// Queries for owners that have no result yet, by resource and member.
    queries: BTreeMap<(Bytes, MemberId), SeenSince>,
}

/// Result of a check: the oracle and its message.
pub type Checked = Result<(), (&'static str, String)>;

impl Oracle {
    /// Checks that at most one member holds the resource. `holders` are the members with valid
    /// leases, each by its own clock.
    pub fn on_holders(&mut self, resource: &Bytes, holders: &[(MemberId, Holding)]) -> Checked {
        let first = (resource.clone(), MemberId(0));
        let queries = self.queries.range_mut(first..);
        for (_, seen) in queries.take_while(|((of, _), _)| of == resource) {
            let owners = holders.iter().map(|(id, holding)| (*id, holding.fence()));
            seen.owners.extend(owners);
            seen.was_free |= holders.is_empty();
        }
        if holders.len() < 2 {
            return Ok(());
        }
        let message = format!("{resource:?} has several owners: {holders:?}");
        Err(("exclusion", message))
    }

    /// Checks the fence token of a new owner, and that no member was told of another owner with a
    /// lease that has not ended. `now_ns` is the reading of the new owner's clock, and `epsilon_ns` the
    /// maximum difference between clocks.
    pub fn on_acquired(
        &mut self,
        resource: &Bytes,
        owner: MemberId,
        holding: Holding,
        now_ns: u64,
        epsilon_ns: u64,
    ) -> Checked {
        let fence = holding.fence();
        let earlier = self.fences.insert(resource.clone(), (fence, owner));
        if let Some((earlier, of)) = earlier.filter(|(earlier, _)| *earlier >= fence) {
            let message =
                format!("{resource:?}: {fence:?} of {owner:?} after {earlier:?} of {of:?}");
            return Err(("fences", message));
        }
        let statement = self.statements.remove(resource);
        let is_early = |it: &Statement| {
            // A member with a faster clock may have taken the resource and given it up again.
            let mut releases = self.released.iter();
            let is_replaced = releases.any(|((of, _), fence)| of == resource && *fence > it.fence);
            let slack_ns = if is_replaced { epsilon_ns } else { 0 };
            it.owner != owner && now_ns + slack_ns < it.until_ns
        };
        match statement.filter(|it| is_early(it) && !self.is_released(resource, *it)) {
            None => Ok(()),
            Some(statement) => {
                let message = format!("{owner:?} takes {resource:?} in spite of {statement:?}");
                Err(("told", message))
            }
        }
    }

    /// Records that a program was told of an owner. Others can take the resource when their clocks
    /// read `until_ns`.
    pub fn on_told(&mut self, resource: &Bytes, owner: MemberId, fence: Fence, until_ns: u64) {
        // The statement of a request that waited may be older than the newest lease.
        let newest = self.fences.get(resource);
        if newest.is_some_and(|(newest, _)| *newest > fence) {
            return;
        }
        // All statements about a lease must hold, so also the one with the latest end.
        let earlier = self.statements.get(resource);
        let earlier = earlier.filter(|earlier| earlier.fence == fence);
        let statement = Statement {
            owner,
            fence,
            until_ns: until_ns.max(earlier.map_or(0, |earlier| earlier.until_ns)),
        };
        self.statements.insert(resource.clone(), statement);
    }

    /// Records that a member begins a query for an owner. The current holders are checked next.
    pub fn on_query(&mut self, resource: &Bytes, member: MemberId) {
        let query = (resource.clone(), member);
        self.queries.insert(query, SeenSince::default());
    }

    /// Forgets the queries of a member that has crashed.
    pub fn on_crash(&mut self, member: MemberId) {
        self.queries.retain(|(_, of), _| *of != member);
    }

    /// Checks the result of a query. The current holders were checked before.
    pub fn on_owner_found(
        &mut self,
        resource: &Bytes,
        member: MemberId,
        owner: KnownOwner,
    ) -> Checked {
        let seen = self.queries.remove(&(resource.clone(), member));
        let Some(seen) = seen else {
            let message = format!("{member:?} has not asked for the owner of {resource:?}");
            return Err(("results", message));
        };
        let is_right = match owner {
            KnownOwner::Free => seen.was_free,
            KnownOwner::Is { member, fence, .. } => seen.owners.contains(&(member, fence)),
            KnownOwner::Unknown => true,
        };
        if is_right {
            return Ok(());
        }
        let message = format!("{member:?} found {owner:?} of {resource:?}, but there was {seen:?}");
        Err(("owner", message))
    }

    /// Records that an owner sends the release of its lease.
    pub fn on_release(&mut self, resource: &Bytes, owner: MemberId, fence: Fence) {
        let released = self.released.entry((resource.clone(), owner)).or_default();
        *released = fence.max(*released);
    }

    fn is_released(&self, resource: &Bytes, statement: Statement) -> bool {
        let released = self.released.get(&(resource.clone(), statement.owner));
        released.is_some_and(|released| *released >= statement.fence)
    }
}
