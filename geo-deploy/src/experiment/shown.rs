//! An experiment as `exp show` prints it, including the defaults of omitted fields.

use super::{Experiment, TimingOverrides};
use crate::fault::FaultSpec;

impl Experiment {
    /// Returns the TOML of [`Experiment::to_toml`], extended by the effective values of `[timing]`.
    /// If the omission of a field has a meaning, a comment explains this meaning.
    pub fn shown(&self) -> String {
        let timing = self.timing_of_replicas();
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).ok();
        let whole = Experiment {
            timing: TimingOverrides {
                heartbeat_ms: ms(timing.heartbeat),
                election_timeout_ms: ms(timing.election_timeout),
                retransmit_ms: ms(timing.retransmit),
                checkpoint_ms: ms(timing.checkpoint),
            },
            ..self.clone()
        };
        let mut text = whole.to_toml();
        let notes = self.notes();
        if !notes.is_empty() {
            text.push_str("\n# Left out above:\n");
            for note in notes {
                text.push_str(&format!("# {note}\n"));
            }
        }
        text
    }

    /// Returns a line for each omitted field. The line explains the meaning of the omission.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let load = &self.workload;
        if load.rate.is_none() {
            notes.push("workload.rate: a closed loop".to_owned());
        }
        if load.seconds.is_none() {
            notes.push("workload.seconds, warmup_s: requests and warmup say how long".to_owned());
        }
        notes.extend(of_faults("", &self.fault));
        for plan in &self.strategies {
            notes.extend(of_faults(
                &format!("strategies.{}.", plan.label),
                &plan.fault,
            ));
            if plan.fault.is_empty() && !self.fault.is_empty() && self.strategies.len() > 1 {
                notes.push(format!(
                    "strategies.{}.fault: the [[fault]]s of all",
                    plan.label
                ));
            }
        }
        notes
    }
}

/// Describes the omitted fields of faults. The text `of` is a prefix for the names of these fields.
fn of_faults(of: &str, faults: &[FaultSpec]) -> Vec<String> {
    let mut notes = Vec::new();
    for (number, fault) in (1..).zip(faults) {
        let name = format!("{of}fault.{number}");
        if fault.until_s.is_none() {
            let end = match fault.action {
                crate::fault::FaultAction::Restart => "a restart ends by itself",
                _ => "it never ends",
            };
            notes.push(format!("{name}.until_s: {end}"));
        }
        if fault.action.affects_links() && fault.to.is_empty() {
            notes.push(format!("{name}.to: all but the targets"));
        }
    }
    notes
}
