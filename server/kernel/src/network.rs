//! The network between processes: a delay for each link, and faults.

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

/// Rates of faults on all links. Each rate is a fraction of the messages. If all rates are 0, the
/// network is perfect.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Fraction of messages that are lost.
    pub loss: f64,
    /// Fraction of messages that are delivered twice. The second delivery is later than the first.
    pub duplication: f64,
    /// Fraction of messages that are delayed by up to `delay_max_ns`, so that later messages
    /// overtake them.
    pub reordering: f64,
    /// Maximum extra delay, in ns.
    pub delay_max_ns: u64,
    /// Fraction of messages that are delivered once more, up to 45 s later. The late copy seems to
    /// come from the buffers of an earlier connection.
    pub old: f64,
}

/// Number of affected messages for each kind of fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaultCounts {
    /// Number of messages that were lost because of [`Faults::loss`].
    pub lost: u64,
    /// Number of messages that were delivered twice.
    pub duplicated: u64,
    /// Number of messages that were delayed.
    pub reordered: u64,
    /// Number of messages that were delivered once more, much later.
    pub old: u64,
}

/// Extra delay and loss of one directed link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkDegradation {
    /// Extra delay of each message, in ns.
    pub extra_delay_ns: u64,
    /// Probability that a message is lost, from 0 to 1.
    pub loss: f64,
}

/// Maximum delay, in ns, of the late copy of a message (see [`Faults::old`]).
const OLD_MAX_NS: u64 = 45_000_000_000;

/// Arrival times of the copies of one message, in ns of true time.
type Arrivals = std::iter::Flatten<std::array::IntoIter<Option<u64>, 3>>;

/// A network with delays and faults for every directed link.
#[derive(Clone, Debug)]
pub struct Network {
    /// One-way delay in ns, by sender and receiver.
    pub one_way_ns: Vec<Vec<u64>>,
    /// Rates of the faults of all links.
    pub faults: Faults,
    /// Time, in ns, of the last delivery on each link. The indexes are the sender and the receiver.
    /// Without faults, later messages of the link arrive at this time or later. So messages arrive
    /// in the order in which they were sent.
    last: Vec<Vec<u64>>,
    /// Whether each link is cut. The indexes are the sender and the receiver. A cut link delivers
    /// no messages.
    cut: Vec<Vec<bool>>,
    /// Degradation of each link, by sender and receiver.
    degraded: Vec<Vec<LinkDegradation>>,
    /// Bandwidth of each link, in bytes a second; 0 if it is unlimited.
    pub bytes_per_s: u64,
    /// Time, in ns, until which each link is busy with earlier messages. The indexes are the sender
    /// and the receiver.
    busy_until_ns: Vec<Vec<u64>>,
    counts: LinkFaultCounts,
}

impl Network {
    /// Creates a network with these one-way delays in ns. The indexes of `one_way_ns` are the
    /// sender and the receiver.
    pub fn new(one_way_ns: Vec<Vec<u64>>, faults: Faults) -> Network {
        let n = one_way_ns.len();
        Network {
            one_way_ns,
            faults,
            last: vec![vec![0; n]; n],
            cut: vec![vec![false; n]; n],
            degraded: vec![vec![LinkDegradation::default(); n]; n],
            bytes_per_s: 0,
            busy_until_ns: vec![vec![0; n]; n],
            counts: LinkFaultCounts::default(),
        }
    }

    /// Returns, for each kind of fault, the number of messages that it has affected so far.
    pub fn counts(&self) -> LinkFaultCounts {
        self.counts
    }

    /// Passes a message to a link at `now_ns`. Returns the time, in ns, at which the last byte of
    /// the message leaves the sender.
    pub fn leaves_ns(&mut self, now_ns: u64, from: usize, to: usize, bytes: usize) -> u64 {
        let takes = (bytes as u64 * 1_000_000_000).checked_div(self.bytes_per_s);
        let busy = &mut self.busy_until_ns[from][to];
        *busy = now_ns.max(*busy) + takes.unwrap_or(0);
        *busy
    }

    /// Cuts the link from one process to another, or restores it.
    pub fn set_cut(&mut self, from: usize, to: usize, cut: bool) {
        self.cut[from][to] = cut;
    }

    /// Degrades the link from one process to another. A default [`LinkDegradation`] restores the
    /// link.
    pub fn set_degradation(&mut self, from: usize, to: usize, degraded: LinkDegradation) {
        self.degraded[from][to] = degraded;
    }

    /// Returns the arrival times, in ns, of the copies of a message that left at `now_ns`. There
    /// are at most three copies.
    pub fn deliveries(
        &mut self,
        rng: &mut Pcg64Mcg,
        now_ns: u64,
        from: usize,
        to: usize,
    ) -> Arrivals {
        let degraded = self.degraded[from][to];
        let arrival = now_ns + self.one_way_ns[from][to] + degraded.extra_delay_ns;
        let lost = degraded.loss > 0.0 && rng.random::<f64>() < degraded.loss;
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

    /// Applies the faults to a message that would arrive at `arrival` without faults. Returns the
    /// arrival times of the message's copies, in ns.
    fn faulty(&mut self, rng: &mut Pcg64Mcg, arrival: u64) -> Arrivals {
        let faults = self.faults;
        let mut chance = |share: f64| share > 0.0 && rng.random::<f64>() < share;
        let (lost, doubled, late, old) = (
            chance(faults.loss),
            chance(faults.duplication),
            chance(faults.reordering),
            chance(faults.old),
        );
        self.counts.lost += u64::from(lost);
        self.counts.duplicated += u64::from(doubled);
        self.counts.reordered += u64::from(late);
        self.counts.old += u64::from(old);
        let mut extra = |most: u64| rng.random_range(0..=most);
        let first = arrival + if late { extra(faults.delay_max_ns) } else { 0 };
        let second = doubled.then(|| arrival + extra(faults.delay_max_ns));
        let third = old.then(|| arrival + extra(OLD_MAX_NS));
        [(!lost).then_some(first), second, third]
            .into_iter()
            .flatten()
    }
}

/// Shape of a partition of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partition {
    /// The processes form two groups, and there are no links between the groups.
    TwoWay,
    /// The processes form two groups, and the links between the groups work in only one direction.
    OneWay,
    /// The processes form two groups. One process keeps its links to both groups. All other links
    /// between the groups are cut.
    Bridge,
}

impl Partition {
    /// Chooses the groups of a partition of `n` processes at random. Returns the links to cut, as
    /// pairs (sender, receiver).
    pub fn draw(self, rng: &mut Pcg64Mcg, n: usize) -> Vec<(usize, usize)> {
        let side: Vec<bool> = (0..n).map(|_| rng.random()).collect();
        let bridge = rng.random_range(0..n);
        let is_cut = |(from, to): &(usize, usize)| {
            let apart = side[*from] != side[*to];
            match self {
                Partition::TwoWay => apart,
                Partition::OneWay => apart && side[*from],
                Partition::Bridge => apart && *from != bridge && *to != bridge,
            }
        };
        links(n).filter(is_cut).collect()
    }
}

/// Returns all directed links between `n` processes, as pairs (sender, receiver).
pub fn links(n: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = (0..n).flat_map(move |a| (0..n).map(move |b| (a, b)));
    all.filter(|(a, b)| a != b)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    fn network(faults: Faults) -> (Network, Pcg64Mcg) {
        let network = Network::new(vec![vec![10; 2]; 2], faults);
        (network, Pcg64Mcg::seed_from_u64(1))
    }

    fn arrivals(network: &mut Network, rng: &mut Pcg64Mcg, now_ns: u64) -> Vec<u64> {
        network.deliveries(rng, now_ns, 0, 1).collect()
    }

    #[test]
    fn a_link_without_faults_keeps_order_also_when_its_delay_falls() {
        let (mut network, mut rng) = network(Faults::default());
        let extra_delay_ns = 100;
        let degraded = LinkDegradation {
            extra_delay_ns,
            ..LinkDegradation::default()
        };
        network.set_degradation(0, 1, degraded);
        assert_eq!(arrivals(&mut network, &mut rng, 0), [110]);
        network.set_degradation(0, 1, LinkDegradation::default());
        assert_eq!(arrivals(&mut network, &mut rng, 5), [110]);
        network.set_cut(0, 1, true);
        assert!(arrivals(&mut network, &mut rng, 200).is_empty());
        network.set_cut(0, 1, false);
        assert_eq!(arrivals(&mut network, &mut rng, 200), [210]);
    }

    #[test]
    fn faults_are_counted() {
        let (mut network, mut rng) = network(Faults {
            loss: 0.5,
            duplication: 0.5,
            ..Faults::default()
        });
        let mut delivered = 0;
        for now_ns in 0..1000 {
            delivered += arrivals(&mut network, &mut rng, now_ns).len() as u64;
        }
        let LinkFaultCounts {
            lost, duplicated, ..
        } = network.counts();
        assert!(lost > 400 && duplicated > 400);
        assert_eq!(delivered, 1000 - lost + duplicated);
    }

    #[test]
    fn a_link_sends_one_message_after_another() {
        let (mut network, _) = network(Faults::default());
        network.bytes_per_s = 1_000_000_000;
        assert_eq!(network.leaves_ns(0, 0, 1, 50), 50);
        assert_eq!(network.leaves_ns(10, 0, 1, 50), 100);
        assert_eq!(network.leaves_ns(10, 1, 0, 50), 60);
    }

    #[test]
    fn a_bridge_hears_both_groups() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        for _ in 0..100 {
            let cut = Partition::Bridge.draw(&mut rng, 5);
            let hears_all = |node: usize| cut.iter().all(|(a, b)| *a != node && *b != node);
            assert!((0..5).any(hears_all), "{cut:?}");
            let one_way = Partition::OneWay.draw(&mut rng, 5);
            assert!(one_way.iter().all(|(a, b)| !one_way.contains(&(*b, *a))));
        }
    }
}
