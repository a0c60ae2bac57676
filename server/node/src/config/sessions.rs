//! Limits on the sessions of clients. These limits are a part of `[limits]`.

use super::check::{CheckResult, Checker};
use super::limits::LimitsSection;
use leasehold_replica::settings::SessionLimits;

/// Maximum number of sessions that may be configured. This many sessions take 2.5 GB of memory on
/// every replica.
const SESSIONS_MAX: u64 = 1 << 24;

impl Checker<'_> {
    /// Checks the configured session limits for a cluster of `nodes` nodes, and returns them.
    pub(super) fn sessions(
        &self,
        found: &LimitsSection,
        nodes: usize,
    ) -> CheckResult<SessionLimits> {
        let default = SessionLimits::of(nodes);
        let limits = SessionLimits {
            max: self.sessions_max(found.sessions_max, &default, nodes)?,
            ..default
        };
        Ok(SessionLimits {
            opened_per_s: self.opened_per_s(found.sessions_opened_per_s, &limits, nodes)?,
            ..limits
        })
    }

    fn sessions_max(
        &self,
        found: Option<u64>,
        default: &SessionLimits,
        nodes: usize,
    ) -> CheckResult<u32> {
        let least = 2 * default.busy().as_secs() * nodes as u64;
        match found {
            None => Ok(default.max),
            Some(found) if (least..=SESSIONS_MAX).contains(&found) => Ok(found as u32),
            Some(found) => {
                let accepted = format!(
                    "accepted are {least} (so that clients of {nodes} nodes may open one a second) \
                     to {SESSIONS_MAX} sessions; the default is {}",
                    default.max
                );
                Err(self.refuse("limits.sessions_max", found, accepted))
            }
        }
    }

    fn opened_per_s(
        &self,
        found: Option<u64>,
        limits: &SessionLimits,
        nodes: usize,
    ) -> CheckResult<u32> {
        let most = limits.session_opens_max(nodes);
        match found {
            None => Ok(most),
            Some(found) if (1..=u64::from(most)).contains(&found) => Ok(found as u32),
            Some(found) => {
                let accepted = format!(
                    "accepted are 1 to {most} sessions, and {most} is the default: more would take \
                     all room (limits.sessions_max, {}) with clients of {nodes} nodes; leave it out, \
                     or raise that",
                    limits.max
                );
                Err(self.refuse("limits.sessions_opened_per_s", found, accepted))
            }
        }
    }
}
