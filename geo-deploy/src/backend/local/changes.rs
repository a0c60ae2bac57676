//! Changes of strategy on real replicas.

use anyhow::Context as _;
use leasehold_client::{Client, ClientOptions};
use leasehold_wire::LeaseRequest;

use crate::backend::RunPlan;
use crate::experiment::StrategyChange;

/// Returns the message that requests a change of strategy from a replica.
pub(super) fn request(plan: &RunPlan<'_>, change: &StrategyChange) -> LeaseRequest {
    let range = plan.range(change);
    let bytes = |key: &leasehold_leases::Key| key.to_vec().into();
    let unlisted = plan.experiment.lease.unlisted.unwrap_or_default();
    LeaseRequest {
        from: bytes(range.from()),
        to: range.to().map(bytes).unwrap_or_default(),
        strategy: change.strategy.clone(),
        unlisted: match change.strategy.as_str() {
            "quorum" => unlisted.name().to_owned(),
            _ => String::new(),
        },
        ..LeaseRequest::default()
    }
}

/// Sends `request` to a replica, which forwards it to the leader. Then waits until the requested
/// strategy is in force.
///
/// # Errors
/// If the request is refused, or not answered.
pub(super) async fn put_in_force(
    options: ClientOptions,
    request: LeaseRequest,
) -> anyhow::Result<()> {
    let to = request.strategy.clone();
    let asked = async {
        let client = Client::connect(options).await?;
        client.raw().set_leases(request).await
    };
    let answer = asked.await;
    answer.with_context(|| format!("changing the strategy to {to}"))?;
    Ok(())
}
