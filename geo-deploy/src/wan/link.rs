//! One direction of a link between two sites: the settings, and the times at which bytes leave the
//! link.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tokio::sync::watch;

/// Number of bytes in one packet. A packet is lost as a unit.
const PACKET_BYTES: usize = 1_460;
/// Maximum number of consecutive losses of one packet.
const LOSSES_MAX: u32 = 16;

/// Settings of one direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSettings {
    /// Time from the arrival of bytes at the link to the departure of these bytes.
    pub delay: Duration,
    /// Maximum of the random delay that is added to `delay`. Bytes nevertheless arrive in order.
    pub jitter: Duration,
    /// Bandwidth in bytes per second; `None` if it is unlimited.
    pub bytes_per_second: Option<u64>,
    /// Probability, from 0 to 1, that a packet is lost and sent again.
    pub loss: f64,
    /// Extra delay of a packet for each loss of this packet.
    pub retransmit: Duration,
    /// Whether the link is cut. A cut link holds all bytes until the link is restored.
    pub cut: bool,
}

impl LinkSettings {
    /// Returns settings for a round trip, without losses and jitter. The delay is half of the round
    /// trip. The field `retransmit` is the round trip plus 200 ms, because 200 ms is the shortest
    /// timeout of TCP.
    pub fn of_round_trip_ms(rtt_ms: f64) -> LinkSettings {
        let rtt = Duration::from_secs_f64(rtt_ms.max(0.0) / 1e3);
        LinkSettings {
            delay: rtt / 2,
            jitter: Duration::ZERO,
            bytes_per_second: None,
            loss: 0.0,
            retransmit: rtt + Duration::from_millis(200),
            cut: false,
        }
    }
}

/// One direction of a link between two sites. Any thread can change the settings of this direction.
#[derive(Debug)]
pub struct Link {
    settings: watch::Sender<LinkSettings>,
    state: Mutex<TransmitState>,
    /// Number of times that the settings have changed.
    changes: AtomicU64,
}

#[derive(Debug)]
struct TransmitState {
    /// Time at which the sender will have sent all accepted bytes. This time results from the
    /// bandwidth of the link.
    sent_by: Option<Instant>,
    rng: Pcg64Mcg,
}

impl Link {
    pub(super) fn new(settings: LinkSettings, seed: u64) -> Link {
        Link {
            settings: watch::Sender::new(settings),
            state: Mutex::new(TransmitState {
                sent_by: None,
                rng: Pcg64Mcg::seed_from_u64(seed),
            }),
            changes: AtomicU64::new(0),
        }
    }

    /// Returns the current settings of the link.
    pub fn settings(&self) -> LinkSettings {
        self.settings.borrow().clone()
    }

    /// Changes the settings of the link. The change applies to bytes that arrive later, but a cut
    /// takes effect immediately.
    pub fn change(&self, change: impl FnOnce(&mut LinkSettings)) {
        self.settings.send_modify(change);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of times that the settings have changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Returns the time at which a chunk of bytes must leave the link. The chunk has `bytes` bytes
    /// and arrives at the time `now`.
    pub(super) fn due(&self, now: Instant, bytes: usize) -> Instant {
        let settings = self.settings.borrow();
        let mut state = self.state();
        let sent = match settings.bytes_per_second {
            None => now,
            Some(rate) => {
                let took = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
                let sent = state.sent_by.map_or(now, |sent_by| sent_by.max(now)) + took;
                state.sent_by = Some(sent);
                sent
            }
        };
        let jitter = match settings.jitter {
            Duration::ZERO => Duration::ZERO,
            most => most.mul_f64(state.rng.random::<f64>()),
        };
        sent + settings.delay + jitter + settings.retransmit * state.losses(settings.loss, bytes)
    }

    pub(super) fn delay(&self) -> Duration {
        self.settings.borrow().delay
    }

    pub(super) fn is_cut(&self) -> bool {
        self.settings.borrow().cut
    }

    /// Waits until the link is not cut.
    pub(super) async fn wait_uncut(&self) {
        let mut settings = self.settings.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let _ = settings.wait_for(|settings| !settings.cut).await;
    }

    /// Locks the state. Another thread may have panicked while it held the lock. This does no harm,
    /// because the state is consistent after every statement.
    fn state(&self) -> MutexGuard<'_, TransmitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TransmitState {
    /// Returns a random number of failed transmissions before a chunk of `bytes` bytes is
    /// transmitted. A transmission fails if at least one packet of the chunk is lost.
    fn losses(&mut self, loss: f64, bytes: usize) -> u32 {
        if loss <= 0.0 {
            return 0;
        }
        let packets = bytes.div_ceil(PACKET_BYTES).max(1) as i32;
        let any = 1.0 - (1.0 - loss.min(1.0)).powi(packets);
        let mut times = 0;
        while times < LOSSES_MAX && self.rng.random::<f64>() < any {
            times += 1;
        }
        times
    }
}
