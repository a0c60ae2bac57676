//! `accept_replies`: the replicas that receive acceptors' votes.

use leasehold_replica::settings::AcceptReplies;
use serde::{Deserialize, Serialize};

/// Replicas to which an acceptor sends its vote, besides the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptRepliesName {
    /// Only the leader receives votes. Origins and holders learn of commits from the leader.
    Leader,
    /// Every replica that is the origin of a command in the batch receives votes.
    #[default]
    Origin,
    /// Every replica receives votes. Holders detect commits by themselves, as in the protocol
    /// Roster.
    All,
}

impl AcceptRepliesName {
    /// Returns the name that files use.
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
