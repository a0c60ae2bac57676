//! How many sessions clients may have: a part of `[limits]`.

use super::check::{Checked, Checker};
use super::limits::LimitsSection;
use crate::replica::settings::SessionLimits;

/// 2.5 GB of sessions on every replica.
const SESSIONS_MAX: u64 = 1 << 24;
/// More than any replica executes.
const OPENED_PER_S_MAX: u64 = 1 << 20;

impl Checker<'_> {
    pub(super) fn sessions(&self, found: &LimitsSection) -> Checked<SessionLimits> {
        let default = SessionLimits::default();
        let number = |field, found, default: u32, max| match found {
            None => Ok(default),
            Some(found) if (1..=max).contains(&found) => Ok(found as u32),
            Some(found) => {
                let accepted =
                    format!("accepted are 1 to {max} sessions; the default is {default}");
                Err(self.refuse(format!("limits.{field}"), found, accepted))
            }
        };
        let (max, per_s) = (found.sessions_max, found.sessions_opened_per_s);
        Ok(SessionLimits {
            max: number("sessions_max", max, default.max, SESSIONS_MAX)?,
            opened_per_s: number(
                "sessions_opened_per_s",
                per_s,
                default.opened_per_s,
                OPENED_PER_S_MAX,
            )?,
            ..default
        })
    }
}
