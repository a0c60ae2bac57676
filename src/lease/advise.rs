//! `leasehold lease advise`.

mod apply;
mod leader_view;
mod verdict;

use clap::Args;
use leasehold_client::Client;
use leasehold_leases::advice::{Forecast, HolderPlan, best, forecasts};
use leasehold_leases::{ReplicaId, ReplicaSet};
use leasehold_wire::{StatusReply, StatusRequest};
use serde_json::json;

use self::leader_view::LeaderView;
use self::verdict::{AdviceVerdict, WORTH};
use crate::advice::{AdviceContext, shortlist};
use crate::connector::Connector;
use crate::terminal::say;

/// Minimum number of counted operations that forecasts require. With fewer operations, forecasts
/// reflect chance rather than demand.
const OPERATIONS_MIN: f64 = 500.0;

const ABOUT: &str = "\
The leader counts what clients of every site read and write, and measures distances. From that each strategy is \
forecast under each leader: the latency of an operation as a client sees it that is at its site's replica, the share \
of reads that this replica serves by itself (local), the share of writes that wait for nobody whom they need not wait \
for under that leader (minimum), and for how long writes wait at most if a replica fails that holds their keys. Reads \
that wait for a write in flight are part of it. Queues are not: the forecast is for a cluster that is not overloaded. \
Counts fade by half in ten minutes, so the forecast is of what clients ask now.

--apply changes something only if at least 2% and 1 ms of the mean latency are gained: sites that are equal do not \
take turns in leading. With --leader, leadership moves to that node whatever it costs.

Examples:
  leasehold lease advise                   every strategy under every leader; * is in force
  leasehold lease advise --sites           and what clients of each site would see
  leasehold lease advise --leader CA       as long as CA leads
  leasehold lease advise --apply           sets the best strategy, then moves leadership";

#[derive(Args)]
#[command(after_help = ABOUT)]
pub struct LeaseAdviseArgs {
    /// Only forecasts under this leader
    #[arg(long, value_name = "NODE")]
    leader: Option<String>,
    /// Shows what clients of each site would see: now, and of every strategy under its best leader
    #[arg(long)]
    sites: bool,
    /// Prints everything as JSON
    #[arg(long, conflicts_with = "apply")]
    json: bool,
    /// Does what is best: sets the strategy for all keys, and moves leadership, if that gains at
    /// least 2% and 1 ms. May be repeated
    #[arg(long)]
    apply: bool,
}

pub async fn run(args: &LeaseAdviseArgs, connector: &Connector) -> anyhow::Result<()> {
    let (client, status) = ask_leader(connector).await?;
    let view = LeaderView::of(&status)?;
    let leader = args.leader.as_deref();
    let leader = leader.map(|name| view.replica(name)).transpose()?;
    let context = view.context();
    let all = forecasts(&view.conditions, &view.profile, &view.plans());
    let all: Vec<Forecast> = all
        .into_iter()
        .filter(|one| leader.is_none_or(|leader| one.leader == leader) || context.is_now(one))
        .collect();
    // The plan in force is always shown. It is not advised if another leader was requested.
    let requested = |one: &&Forecast| leader.is_none_or(|leader| one.leader == leader);
    let candidates: Vec<Forecast> = all.iter().filter(requested).cloned().collect();
    let advised = best(&candidates).filter(|_| !view.is_empty());
    if args.json {
        say!("{:#}", view.json(&context, &all, advised));
        return Ok(());
    }
    let verdict = advised.map(|best| AdviceVerdict {
        best,
        now: all.iter().find(|one| context.is_now(one)),
    });
    show(args, &view, &context, &all, verdict.as_ref());
    if !args.apply {
        return Ok(());
    }
    view.ensure_enough()?;
    match verdict.as_ref().and_then(|found| found.change(leader)) {
        Some(wanted) => apply::apply(&client, &view, wanted).await,
        None => {
            say!("nothing was changed: {WORTH}");
            Ok(())
        }
    }
}

/// Connects to the leader, because only the leader knows the demand. Returns the connection and the
/// status that the leader reports. If the first replica that answers is not the leader, tries the
/// given addresses in order.
async fn ask_leader(connector: &Connector) -> anyhow::Result<(Client, StatusReply)> {
    let first = connector.connect().await?.client;
    let status = first.raw().status(with_demand()).await?;
    if status.leader == status.replica {
        return Ok((first, status));
    }
    anyhow::ensure!(
        !status.leader.is_empty(),
        "{} knows no leader; try again in a moment",
        status.replica
    );
    for address in &connector.options.addresses {
        let mut options = connector.options.clone();
        options.addresses = vec![address.clone()];
        let Ok(client) = Client::connect(options).await else {
            continue;
        };
        match client.raw().status(with_demand()).await {
            Ok(found) if found.leader == found.replica => return Ok((client, found)),
            _ => {}
        }
    }
    anyhow::bail!(
        "{} leads, and the leader alone knows the demand: add its client address to --address",
        status.leader
    )
}

fn show(
    args: &LeaseAdviseArgs,
    view: &LeaderView,
    context: &AdviceContext<'_>,
    all: &[Forecast],
    verdict: Option<&AdviceVerdict<'_>>,
) {
    let profile = &view.profile;
    let name = context.name(view.leader);
    if view.is_empty() {
        say!("{name} leads; {}.", view.in_force());
        say!(
            "Nothing was counted: clients asked nothing of late, or {name} has only begun to lead. \
             Let clients read and write for some minutes, then ask again."
        );
        return;
    }
    let keys: f32 = profile.keys().iter().map(|requested| requested.keys).sum();
    say!(
        "{} leads; {}. Counted: {:.0} operations on {keys:.0} key{}.",
        name,
        view.in_force(),
        profile.operations(),
        if (0.5..1.5).contains(&keys) { "" } else { "s" }
    );
    context.table(&all.iter().collect::<Vec<_>>());
    if args.sites {
        for forecast in shortlist(all, |one| context.is_now(one)) {
            say!("");
            context.sites(forecast);
        }
    }
    say!("");
    if view.has_too_little_demand() {
        say!(
            "Too little to tell: {:.0} operations were counted, and chance decides with fewer than {OPERATIONS_MIN:.0}.",
            profile.operations()
        );
    }
    if let Some(verdict) = verdict {
        say!("{}", verdict.sentence(context));
    }
}

impl LeaderView {
    /// Describes the strategy in force. If there are several key ranges, describes the strategy of
    /// each.
    fn in_force(&self) -> String {
        match self.ranges {
            1 => format!("strategy {}", self.strategy),
            ranges => format!(
                "{ranges} key ranges, in their order with {} (`leasehold lease show` names them)",
                self.strategy
            ),
        }
    }

    /// Returns the plans for which forecasts are made: one for every strategy, and one for the
    /// present holders if they follow no strategy.
    fn plans(&self) -> Vec<HolderPlan> {
        let more = Some(HolderPlan::AsNow).filter(|plan| self.now == *plan);
        HolderPlan::STRATEGIES.into_iter().chain(more).collect()
    }

    fn context(&self) -> AdviceContext<'_> {
        AdviceContext {
            names: &self.names,
            now: Some((self.now, self.leader)),
            stall_s: self.stall_s,
        }
    }

    /// Returns true if the leader has counted no operation.
    fn is_empty(&self) -> bool {
        self.profile.operations() < 1.0
    }

    fn ensure_enough(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.has_too_little_demand(),
            "--apply: nothing was changed, for too little was asked yet to tell what is best"
        );
        Ok(())
    }

    fn has_too_little_demand(&self) -> bool {
        self.profile.operations() < OPERATIONS_MIN
    }

    fn replica(&self, name: &str) -> anyhow::Result<ReplicaId> {
        let all = ReplicaSet::all(self.names.len());
        let found = all.iter().find(|id| self.names[id.index()] == name);
        found.ok_or_else(|| {
            let names = self.names.join(", ");
            anyhow::anyhow!("--leader: there is no node '{name}'; there are {names}")
        })
    }

    fn json(
        &self,
        context: &AdviceContext<'_>,
        all: &[Forecast],
        advised: Option<&Forecast>,
    ) -> serde_json::Value {
        json!({
            "leader": context.name(self.leader),
            "strategy": self.strategy,
            "operations_counted": self.profile.operations(),
            "too_little_to_tell": self.has_too_little_demand(),
            "best": advised.map(|one| context.json(one)),
            "forecasts": all.iter().map(|one| context.json(one)).collect::<Vec<_>>(),
        })
    }
}

/// Returns a request for the status, including the demand and the distances that the leader knows.
fn with_demand() -> StatusRequest {
    StatusRequest {
        demand: true,
        ..StatusRequest::default()
    }
}
