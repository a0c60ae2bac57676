//! `accept_replies`: the replicas that receive acceptors' votes.

use leasehold_replica::settings::AcceptReplies;
use serde::{Deserialize, Serialize};

/// Replicas that get an acceptor's vote besides the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptRepliesName {
    /// Nobody: origins and holders learn of commits from the leader.
    Leader,
    /// Every origin with a command in the batch.
    #[default]
    Origin,
    /// Every replica: holders learn of commits by themselves, as in Roster.
    All,
}

impl AcceptRepliesName {
    /// As files write it.
    pub fn name(self) -> &'static str {
        match self {
            AcceptRepliesName::Leader => "leader",
            AcceptRepliesName::Origin => "origin",
            AcceptRepliesName::All => "all",
        }
    }
}

impl From<AcceptRepliesName> for AcceptReplies {
    fn from(name: AcceptRepliesName) -> AcceptReplies {
        match name {
            AcceptRepliesName::Leader => AcceptReplies::Leader,
            AcceptRepliesName::Origin => AcceptReplies::Origin,
            AcceptRepliesName::All => AcceptReplies::All,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AcceptRepliesName;

    #[test]
    fn the_default_is_that_of_replicas() {
        use leasehold_replica::settings::AcceptReplies;
        let default = AcceptReplies::from(AcceptRepliesName::default());
        assert_eq!(default, AcceptReplies::default());
    }
}
