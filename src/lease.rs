//! `leasehold lease`.

mod advise;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use leasehold_client::{Client, Error};
use leasehold_wire::{LeaseRange, LeaseRequest, Leases, StatusReply, StatusRequest};

use crate::connector::Replicas;
use crate::terminal::{runtime, say};

#[derive(Args)]
pub struct LeaseArgs {
    #[command(flatten)]
    replicas: Replicas,
    #[command(subcommand)]
    command: LeaseCommand,
}

#[derive(Subcommand)]
enum LeaseCommand {
    /// Shows which replicas may read which keys locally: strategy and holders of each key range, and the durations
    ///
    /// One line for each key range: its strategy, how many keys are listed with holders of their own, and
    /// the holders of all other keys.
    Show(LeaseShowArgs),
    /// Changes strategy, holders, weights or durations while the cluster runs
    Set(SetArgs),
    /// Forecasts latencies under every strategy and every leader, for the present requests of clients
    Advise(advise::LeaseAdviseArgs),
}

#[derive(Args)]
struct LeaseShowArgs {
    /// Only key ranges that have keys from FROM on and below TO [default: all of them]
    #[arg(long, value_name = "FROM..TO")]
    range: Option<String>,
}

const EXAMPLES: &str = "\
Settings that are not named stay as they are. The command waits until the change is in force. No operation fails \
because of a change, and a replica that holds a key before and afterwards may read it all the time. A replica that \
no longer holds a key may read it until its earlier promises end; until then, writes of the key wait for this \
replica, too. It does no harm to repeat a change. An impossible change is refused, with the reason.

Examples:
  leasehold lease set quorum                        the sites that read a key most hold it
  leasehold lease set leader --range user/..user0   for the keys that begin with user/
  leasehold lease set --range a..b --holders CA,JP  these two, for the keys from a on, below b
  leasehold lease set cost --read-weight 0.8        reads count four times as much as writes
  leasehold lease set --t-lease-ms 2000             durations are the same for all keys";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
struct SetArgs {
    /// Strategy that chooses the holders: none, leader, all, quorum, fixed (with --holders), or cost
    strategy: Option<String>,
    /// The keys from FROM on and below TO; a side that is left out has no end [default: all keys]
    #[arg(long, value_name = "FROM..TO")]
    range: Option<String>,
    /// Nodes that hold the keys, under any leader and any demand: the strategy fixed
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    holders: Vec<String>,
    /// For quorum: holders of keys without reads so far, nearest (the leader and the replicas nearest to it) or leader
    #[arg(long, value_name = "CHOICE")]
    unlisted: Option<String>,
    /// For cost: weight of reads against writes, from 0 (writes alone) to 1 (reads alone) [default: as it is, or 0.5]
    #[arg(long, value_name = "WEIGHT", allow_negative_numbers = true)]
    read_weight: Option<f64>,
    /// For cost: at least so many replicas hold no lease on a key, so that their failure stalls none of its writes
    /// [default: as it is, or 0]
    #[arg(long, value_name = "REPLICAS")]
    spare: Option<u32>,
    /// How long a promise lasts
    #[arg(long, value_name = "MS")]
    t_lease_ms: Option<u64>,
    /// How late a promise may arrive and still count
    #[arg(long, value_name = "MS")]
    t_guard_ms: Option<u64>,
    /// How often promises are renewed
    #[arg(long, value_name = "MS")]
    renew_ms: Option<u64>,
    /// How long a replica may be silent before it is suspected
    #[arg(long, value_name = "MS")]
    grace_ms: Option<u64>,
    /// Takes durations above a minute, too: writes wait as long for a holder that is gone
    #[arg(long)]
    force: bool,
}

pub fn run(args: &LeaseArgs) -> anyhow::Result<()> {
    let wanted = match &args.command {
        LeaseCommand::Advise(advise) => {
            return runtime()?.block_on(advise::run(advise, &args.replicas.connector()?));
        }
        LeaseCommand::Show(_) => None,
        LeaseCommand::Set(set) => Some(request(set)?),
    };
    let (from, to) = match &args.command {
        LeaseCommand::Show(show) => sides(show.range.as_deref())?,
        _ => ("", ""),
    };
    runtime()?.block_on(async {
        let client = args.replicas.connector()?.connect().await?.client;
        let status = match wanted {
            None => client.raw().status(with_leases()).await?,
            Some(wanted) => set(&client, wanted).await?,
        };
        let leases = status.leases.as_ref();
        let leases = leases
            .context("the replica did not describe its leases: it is older than this program")?;
        if let LeaseCommand::Set(_) = args.command {
            let already = if leases.already { " already" } else { "" };
            say!("in force{already}, configuration {}", status.configuration);
        }
        show(&status, leases, from, to);
        Ok(())
    })
}

fn request(args: &SetArgs) -> anyhow::Result<LeaseRequest> {
    let (from, to) = sides(args.range.as_deref())?;
    Ok(LeaseRequest {
        from: from.to_owned().into(),
        to: to.to_owned().into(),
        strategy: args.strategy.clone().unwrap_or_default(),
        holders: args.holders.clone(),
        unlisted: args.unlisted.clone().unwrap_or_default(),
        read_weight: args.read_weight,
        spare: args.spare,
        t_lease_ms: args.t_lease_ms,
        t_guard_ms: args.t_guard_ms,
        renew_ms: args.renew_ms,
        grace_ms: args.grace_ms,
        force: args.force,
    })
}

/// Returns the lower and the upper bound of a range. If a bound is missing, its text is empty.
fn sides(range: Option<&str>) -> anyhow::Result<(&str, &str)> {
    let Some(range) = range else {
        return Ok(("", ""));
    };
    let sides = range.split_once("..").with_context(|| {
        format!(
            "--range: '{range}' is no FROM..TO, as in user/..user0; either side may be left out; \
             `leasehold lease show` names all ranges"
        )
    })?;
    let (from, to) = sides;
    if !to.is_empty() && from >= to {
        bail!("--range: '{from}..{to}' ends at '{to}', which is not after its start, '{from}'");
    }
    Ok(sides)
}

/// Returns true if a range contains keys that are at least `from` and below `to`. An empty text
/// means that there is no bound.
fn overlaps(range: &LeaseRange, from: &str, to: &str) -> bool {
    let begins_before_end = to.is_empty() || range.from.as_ref() < to.as_bytes();
    begins_before_end && (range.to.is_empty() || from.as_bytes() < range.to.as_ref())
}

async fn set(client: &Client, wanted: LeaseRequest) -> anyhow::Result<StatusReply> {
    match client.raw().set_leases(wanted).await {
        Err(error @ Error::Refused { .. }) => Err(error).context("nothing was changed"),
        answer => answer.with_context(|| {
            "no replica said whether the change is in force; `leasehold lease show` shows the leases in force, and it does no harm to repeat the change"
        }),
    }
}

fn show(status: &StatusReply, leases: &Leases, from: &str, to: &str) {
    let ranges = || {
        leases
            .ranges
            .iter()
            .filter(|range| overlaps(range, from, to))
    };
    let wide = |field: fn(&LeaseRange) -> String| {
        let lengths = ranges().map(|range| field(range).chars().count());
        lengths.max().unwrap_or(0)
    };
    let (keys, strategies) = (wide(keys).max(4), wide(strategy).max(8));
    say!(
        "{:keys$}  {:strategies$}  {:>9}  unlisted keys are held by",
        "keys",
        "strategy",
        "listed"
    );
    for range in ranges() {
        let defaults = match range.defaults.as_slice() {
            [] => "nobody".to_owned(),
            names => names.join(", "),
        };
        say!(
            "{:keys$}  {:strategies$}  {:>9}  {defaults}",
            self::keys(range),
            strategy(range),
            range.listed
        );
    }
    let ms = |us: u64| us as f64 / 1e3;
    say!(
        "t_lease {} ms, t_guard {} ms, renewal {} ms, grace {} ms, rho {} ppm; configuration {}, as {} knows",
        ms(leases.t_lease_us),
        ms(leases.t_guard_us),
        ms(leases.renew_us),
        ms(leases.grace_us),
        leases.rho_ppm,
        status.configuration,
        status.replica
    );
    if !status.excluded.is_empty() {
        say!(
            "excluded, and hold nothing for now: {}",
            status.excluded.join(", ")
        );
    }
    if leases.unfinished {
        say!("more keys are being listed");
    }
}

fn keys(range: &LeaseRange) -> String {
    let text = |key: &[u8]| key.escape_ascii().to_string();
    match (range.from.is_empty(), range.to.is_empty()) {
        (true, true) => "all".to_owned(),
        _ => format!("{}..{}", text(&range.from), text(&range.to)),
    }
}

fn strategy(range: &LeaseRange) -> String {
    match range.settings.as_str() {
        "" => range.strategy.clone(),
        settings => format!("{} ({settings})", range.strategy),
    }
}

/// Returns a request for the status, including the lease settings in force.
fn with_leases() -> StatusRequest {
    StatusRequest {
        leases: true,
        ..StatusRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        set: SetArgs,
    }

    fn requested(line: &str) -> anyhow::Result<LeaseRequest> {
        let words = std::iter::once("set").chain(line.split_whitespace());
        request(&Line::try_parse_from(words)?.set)
    }

    #[test]
    fn a_range_has_a_start_before_its_end_or_leaves_one_out() {
        for (range, from, to) in [
            ("user/..user0", "user/", "user0"),
            ("..b", "", "b"),
            ("b..", "b", ""),
            ("..", "", ""),
        ] {
            let requested = requested(&format!("leader --range {range}")).unwrap();
            assert_eq!(
                (requested.from.as_ref(), requested.to.as_ref()),
                (from.as_bytes(), to.as_bytes())
            );
        }
        for bad in ["user", "b..a", "b..b"] {
            let error = requested(&format!("leader --range {bad}"))
                .unwrap_err()
                .to_string();
            assert!(error.contains("--range") && error.contains(bad), "{error}");
        }
    }

    #[test]
    fn of_the_ranges_those_are_shown_that_have_keys_between_the_sides() {
        let range = |from: &str, to: &str| LeaseRange {
            from: from.to_owned().into(),
            to: to.to_owned().into(),
            ..LeaseRange::default()
        };
        let all = [range("", "b"), range("b", "d"), range("d", "")];
        for (requested, expected) in [
            (None, [true, true, true]),
            (Some("b..d"), [false, true, false]),
            (Some("c.."), [false, true, true]),
            (Some("..b"), [true, false, false]),
            (Some("x..y"), [false, false, true]),
        ] {
            let (from, to) = sides(requested).unwrap();
            let shown = all.each_ref().map(|range| overlaps(range, from, to));
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn what_is_not_named_is_not_asked_for() {
        let durations = requested("--t-lease-ms 2000").unwrap();
        let expected = LeaseRequest {
            t_lease_ms: Some(2000),
            ..LeaseRequest::default()
        };
        assert_eq!(durations, expected);
        let cost = requested("cost --read-weight 0.8 --spare 1").unwrap();
        assert_eq!((cost.read_weight, cost.spare), (Some(0.8), Some(1)));
        assert_eq!(requested("--holders CA,JP").unwrap().holders, ["CA", "JP"]);
    }
}
