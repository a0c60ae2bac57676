//! The network between replicas: delays by matrix, and what goes wrong.

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

use super::fault::{FaultCounts, FaultKind};

/// Rates of faults, as shares of messages; 0 everywhere is a good network.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Lost.
    pub loss: f64,
    /// Delivered twice, the copy later.
    pub duplication: f64,
    /// Delayed by up to `delay_max_ns` more, and so overtaken.
    pub reordering: f64,
    /// The longest extra delay, in ns.
    pub delay_max_ns: u64,
    /// Delivered once more, much later: what lay in the buffers of an earlier
    /// connection, or of a network that thought itself helpful.
    pub old: f64,
}

/// Degradation of a link beyond its delay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkDegradation {
    /// Messages take so much longer, in ns.
    pub extra_delay_ns: u64,
    /// The probability that a message is lost, 0 to 1.
    pub loss: f64,
}

/// Maximum lateness of an old packet, in ns.
const OLD_MAX_NS: u64 = 45_000_000_000;

/// When a message arrives, in ns of true time.
type Arrivals = std::iter::Flatten<std::array::IntoIter<Option<u64>, 3>>;

/// Delays and faults of every directed link.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// One-way delay in ns, by sender and receiver.
    pub one_way_ns: Vec<Vec<u64>>,
    /// Rates of the faults.
    pub faults: Faults,
    /// When each link last delivered: without faults it keeps order.
    last: Vec<Vec<u64>>,
    /// Links that deliver nothing, by sender and receiver.
    cut: Vec<Vec<bool>>,
    /// Links that are worse than the others, by sender and receiver.
    degradations: Vec<Vec<LinkDegradation>>,
    /// Number of bytes that each link takes in a second, one message after another; 0: at once.
    pub bytes_per_s: u64,
    /// Until when each link is busy with what it has taken, by sender and receiver.
    busy_until_ns: Vec<Vec<u64>>,
    /// Faults that fired, and how often.
    pub fired: FaultCounts,
}

impl Network {
    /// A network with these one-way delays.
    pub fn new(one_way_ns: Vec<Vec<u64>>, faults: Faults) -> Network {
        let n = one_way_ns.len();
        Network {
            one_way_ns,
            faults,
            last: vec![vec![0; n]; n],
            cut: vec![vec![false; n]; n],
            degradations: vec![vec![LinkDegradation::default(); n]; n],
            bytes_per_s: 0,
            busy_until_ns: vec![vec![0; n]; n],
            fired: FaultCounts::default(),
        }
    }

    /// When the last byte of a message leaves that was given to a link at `now_ns`.
    pub fn leaves_ns(&mut self, now_ns: u64, from: usize, to: usize, bytes: usize) -> u64 {
        let takes = (bytes as u64 * 1_000_000_000).checked_div(self.bytes_per_s);
        let busy = &mut self.busy_until_ns[from][to];
        *busy = now_ns.max(*busy) + takes.unwrap_or(0);
        *busy
    }

    /// Cuts the link from one replica to another, or repairs it.
    pub fn set_cut(&mut self, from: usize, to: usize, cut: bool) {
        self.cut[from][to] = cut;
    }

    /// Makes the link from one replica to another worse, or repairs it.
    pub fn set_degradation(&mut self, from: usize, to: usize, degradation: LinkDegradation) {
        self.degradations[from][to] = degradation;
    }

    /// When a message that has left at `now_ns` arrives: never, once or twice.
    pub fn deliveries(
        &mut self,
        rng: &mut Pcg64Mcg,
        now_ns: u64,
        from: usize,
        to: usize,
    ) -> Arrivals {
        let degradation = self.degradations[from][to];
        let arrival = now_ns + self.one_way_ns[from][to] + degradation.extra_delay_ns;
        let lost = degradation.loss > 0.0 && rng.random::<f64>() < degradation.loss;
        if self.cut[from][to] || lost {
            return [None; 3].into_iter().flatten();
        }
        if self.faults == Faults::default() {
            let last = &mut self.last[from][to];
            *last = arrival.max(*last);
            return [Some(*last), None, None].into_iter().flatten();
        }
        self.faulty(rng, arrival)
    }

    /// When a message arrives that may go wrong, and would arrive at `arrival`.
    fn faulty(&mut self, rng: &mut Pcg64Mcg, arrival: u64) -> Arrivals {
        let faults = self.faults;
        let mut chance = |share: f64| share > 0.0 && rng.random::<f64>() < share;
        let (lost, doubled, late, old) = (
            chance(faults.loss),
            chance(faults.duplication),
            chance(faults.reordering),
            chance(faults.old),
        );
        for (fault, fired) in [
            (FaultKind::Loss, lost),
            (FaultKind::Duplication, doubled),
            (FaultKind::Reordering, late),
            (FaultKind::OldPacket, old),
        ] {
            self.fired.add(fault, u64::from(fired));
        }
        let mut extra = |most: u64| rng.random_range(0..=most);
        let first = arrival + if late { extra(faults.delay_max_ns) } else { 0 };
        let second = doubled.then(|| arrival + extra(faults.delay_max_ns));
        let third = old.then(|| arrival + extra(OLD_MAX_NS));
        [(!lost).then_some(first), second, third]
            .into_iter()
            .flatten()
    }
}
