//! Clients that lose their connections while they wait. They do not learn on such a connection
//! whether what they asked is executed. They go on under a new connection, and ask again, or do
//! not.

use rand::RngExt as _;

use super::ClientWorkload;
use crate::fault::FaultKind;
use crate::world::World;

/// A replica notices within so many ns that a connection has ended: perhaps after what its
/// client asks on the next one.
const NOTICED_NS: u64 = 1_500_000_000;

/// Reaction of a client, with regard to what it waits for.
enum HangUpReaction {
    /// It asks its replica again, at once.
    RetryHome,
    /// It asks any replica again, at once.
    RetryAny,
    /// It asks again when its timeout passes.
    Wait,
    /// It never learns what came of it.
    Abandon,
}

impl ClientWorkload {
    /// The connections of a client end.
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
