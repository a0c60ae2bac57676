//! Mutants: each rule of this package can be disabled, to show that a test detects its absence. See
//! [`leasehold_leases::mutants`], which does the same for the leases of replicas.

use leasehold_leases::rule_switch;

/// Whether this build can disable rules.
pub const COMPILED_IN: bool = cfg!(feature = "mutants");

macro_rules! rules {
    ($($name:ident: $without:literal;)*) => {
        /// A rule that a mutant disables.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum LockRule {
            $(
                #[doc = concat!("Without this rule, ", $without, ".")]
                $name,
            )*
        }

        impl LockRule {
            /// All rules.
            pub const ALL: &[LockRule] = &[$(LockRule::$name),*];

            /// Describes how members behave without the rule.
            pub fn without(self) -> &'static str {
                match self { $(LockRule::$name => $without),* }
            }
        }
    };
}

rules! {
    Term: "a lease counts from the answer to READ, and attempts have no end, as in the paper";
    AttemptEnd: "acks are used however old their attempt is";
    RestartWait: "a restarted member is silent for the term only, as in the paper";
    Epsilon: "a member takes a lease as soon as the lease has ended by its own clock";
    Timer: "an acceptor keeps a lease for the term only, although clocks drift";
    OneLease: "an acceptor replaces the lease that it holds by any other one";
    Reserve: "a member promises rounds that it has not reserved on its disk";
    EpsilonStrict: "a member takes a lease at the last moment of epsilon, as in the paper";
    WriteBack: "a member names an owner after it has read the lease, without writing it back";
    Acks: "acks are counted, not acceptors";
    AckBallot: "acks of an earlier attempt count for the current one";
    Run: "a lease of another process with the same member counts as own";
    ReleaseBallot: "a release frees every lease of the same owner";
    ReleaseStops: "an owner uses its lease until a majority has confirmed the release";
    NackBallot: "an attempt after a nack has the next round, however high the promised one is";
    FreeReport: "an acceptor reports a resource as free as soon as its lease has ended";
    ClockWatch: "clocks that differ by more than epsilon are not noticed";
}

rule_switch!(LockRule);
