//! Clients that lose their connections while they wait for answers. A client does not learn whether
//! the requests that it sent on a lost connection are executed. It continues on a new connection,
//! and may send these requests again.

use rand::RngExt as _;

use super::ClientWorkload;
use crate::fault::FaultKind;
use crate::world::World;

/// Maximum time in ns until a replica notices the end of a connection. Requests on the client's
/// next connection may arrive before the replica notices the end.
const NOTICED_NS: u64 = 1_500_000_000;

/// Reaction of a client to the end of its connection. A reaction is chosen for each unanswered
/// request.
enum HangUpReaction {
    /// The client immediately sends the request again, to the same replica as usual.
    RetryHome,
    /// The client immediately sends the request again, to a random replica.
    RetryAny,
    /// The client sends the request again when the timeout has passed.
    Wait,
    /// The client never learns the outcome of the request.
    Abandon,
}

impl ClientWorkload {
    /// Ends the connections of a client.
    pub(super) fn hang_up(&mut self, index: usize, world: &mut World) {
        let open = self.operations.of(index);
        if open.is_empty() {
            return;
        }
        world.note_fault(FaultKind::HangUp);
        let client = &mut self.clients[index];
        let before = std::mem::replace(&mut client.connection, self.connections);
        self.connections += 1;
        let home = client.home;
        for node in std::mem::take(&mut client.contacted) {
            let after_ns = self.chooser.rng.random_range(0..NOTICED_NS);
            world.hang_up(node, before, after_ns);
        }
        match self.draw_reaction() {
            HangUpReaction::RetryHome => self.send(&open, home, world),
            HangUpReaction::RetryAny => {
                let any = self.chooser.rng.random_range(0..world.n());
                self.send(&open, any, world);
            }
            HangUpReaction::Wait => {}
            HangUpReaction::Abandon => open.into_iter().for_each(|id| {
                self.abandon(id, world);
            }),
        }
    }

    fn draw_reaction(&mut self) -> HangUpReaction {
        match self.chooser.rng.random_range(0..4) {
            0 => HangUpReaction::RetryHome,
            1 => HangUpReaction::RetryAny,
            2 => HangUpReaction::Wait,
            _ => HangUpReaction::Abandon,
        }
    }
}
