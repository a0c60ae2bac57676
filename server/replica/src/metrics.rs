//! Counters of a replica since the present run began. They have no effect on the behavior of the
//! replica.
//!
//! To add a counter, add a line below and increment it where the event happens: `step.metrics.name
//! += 1`. A replica's answer to a status request lists the counter under its name. Explain it in
//! `docs/operating.md`, too.

macro_rules! counters {
    ($($name:ident: $meaning:literal,)*) => {
        /// Counters since this run began.
        #[derive(Clone, Debug, Default)]
        pub(super) struct Metrics {
            $(#[doc = $meaning] pub(super) $name: u64,)*
        }

        impl Metrics {
            /// Returns every counter with its name, in the order of declaration.
            pub(super) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    reads_held: "Reads that waited here for a write in flight.",
    reads_in_log: "Reads of several keys that went through the log.",
    blocked_prefix: "Clients' commands that were committed and waited for the execution of a slot before theirs.",
    writes_held: "Merges of fields into large records that waited here or were refused, because so many were in the log.",
    executed_later: "Times that the execution of committed commands was interrupted to look at what had arrived.",
    fallback_not_holder: "Reads not served here: this replica does not hold the key.",
    fallback_uncovered: "Reads not served here: too few unexpired promises cover the key.",
    fallback_barrier: "Reads not served here: the barrier was not executed yet.",
    fallback_fence: "Answers that were held back: the permit had ended when the clock was read again.",
    messages_sent: "Messages sent to other replicas.",
    batches: "Batches proposed.",
    batched_commands: "Commands in them.",
    retransmitted_accepts: "Accepts sent again.",
    forwarded_again: "Commands sent again to the leader.",
    fetches: "Requests for missed entries.",
    fetched_entries: "Entries received that way.",
    stale_incarnation: "Messages to or from an earlier run, ignored.",
    refused_messages: "Messages that no correct replica sends, ignored.",
    clock_distrusted: "Times that the clock was no longer believed.",
    refused_backlog: "Accepts and fetched entries ignored for now, because too much waits for the disk or to be executed.",
    openings_refused: "Writes that would have opened a session, of which this replica's clients opened too many.",
    refused_beyond_window: "Entries and votes for slots beyond the window of the log, ignored for now.",
}

impl Metrics {
    /// Counts a read that could not be served at this replica, in the counter for `reason`.
    pub(super) fn count_fallback(&mut self, reason: leasehold_leases::NoPermit) {
        match reason {
            leasehold_leases::NoPermit::NotHolder => self.fallback_not_holder += 1,
            leasehold_leases::NoPermit::Uncovered => self.fallback_uncovered += 1,
            leasehold_leases::NoPermit::Barrier(_) => self.fallback_barrier += 1,
        }
    }
}
