//! Applies the advice: sets the strategy and moves leadership.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use leasehold_client::{Client, Error};
use leasehold_leases::advice::{Forecast, HolderPlan};
use leasehold_wire::LeaseRequest;
use tokio::time::sleep;

use super::leader_view::LeaderView;
use crate::lease::with_leases;
use crate::terminal::say;

/// Interval at which the leader is asked whether it has listed the holders of all keys.
const LISTED_EVERY: Duration = Duration::from_millis(500);

/// Longest time to wait until the leader has listed the holders of all keys. After this time
/// leadership moves even if the list is incomplete. The next leader continues to list the holders
/// of requested keys.
const LISTED_WITHIN: Duration = Duration::from_secs(60);

/// Sets the strategy, and then moves leadership. The strategy is set first because the present
/// leader knows the demand, and uses the demand to choose the holders that it lists. The next
/// leader begins without any counts, and keeps the listed holders.
pub(super) async fn apply(
    client: &Client,
    view: &LeaderView,
    advised: &Forecast,
) -> anyhow::Result<()> {
    if advised.plan != HolderPlan::AsNow {
        set(client, view, advised.plan).await?;
    }
    let to = &view.names[advised.leader.index()];
    if advised.leader == view.leader {
        say!("{to} leads already");
        return Ok(());
    }
    match client.raw().move_leadership(to).await {
        Ok(_) => say!("moved leadership to {to}"),
        Err(error @ Error::Refused { .. }) => {
            return Err(error).context(format!(
                "the strategy is {}, and leadership did not move to {to}",
                advised.plan.name()
            ));
        }
        Err(error) => {
            return Err(error).context(format!(
                "nobody said whether leadership moves to {to}; repeat the command"
            ));
        }
    }
    Ok(())
}

async fn set(client: &Client, view: &LeaderView, plan: HolderPlan) -> anyhow::Result<()> {
    ensure!(
        view.ranges == 1,
        "--apply: nothing was changed, for {} key ranges have strategies of their own. Advice is for all keys \
         together; `leasehold lease set STRATEGY --range FROM..TO` sets one range",
        view.ranges
    );
    if view.now == plan {
        say!("strategy {} is in force already", plan.name());
        return Ok(());
    }
    let wanted = LeaseRequest {
        strategy: plan.name().to_owned(),
        ..LeaseRequest::default()
    };
    let set = client.raw().set_leases(wanted).await;
    set.with_context(|| format!("the strategy was not set to {}", plan.name()))?;
    say!("set strategy {}", plan.name());
    let started = std::time::Instant::now();
    while unfinished(client).await? && started.elapsed() < LISTED_WITHIN {
        sleep(LISTED_EVERY).await;
    }
    Ok(())
}

/// Returns true if the leader has not yet listed the holders of all keys.
async fn unfinished(client: &Client) -> anyhow::Result<bool> {
    let status = client.raw().status(with_leases()).await?;
    Ok(status.leases.is_some_and(|leases| leases.unfinished))
}
