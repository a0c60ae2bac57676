//! Clients that lose their connections while they wait. They do not learn on such a connection
//! whether what they asked is executed. They go on under a new connection, and ask again, or do
//! not.

use rand::RngExt as _;

use super::Workload;
use crate::fault::Fault;
use crate::world::World;

/// A replica notices within so many ns that a connection has ended: perhaps after what its
/// client asks on the next one.
const NOTICED_NS: u64 = 1_500_000_000;

/// Reaction of a client, with regard to what it waits for.
enum Then {
    /// It asks its replica again, at once.
    AskHome,
    /// It asks any replica again, at once.
    AskAny,
    /// It asks again when its timeout passes.
    Wait,
    /// It never learns what came of it.
    GiveUp,
}

impl Workload {
    /// The connections of a client end.
    pub(super) fn hang_up(&mut self, index: usize, world: &mut World) {
        let open = self.operations.of(index);
        if open.is_empty() {
            return;
        }
        world.note_fault(Fault::HangUp);
        let client = &mut self.clients[index];
        let before = std::mem::replace(&mut client.connection, self.connections);
        self.connections += 1;
        let home = client.home;
        for node in std::mem::take(&mut client.asked) {
            let after_ns = self.chooser.rng.random_range(0..NOTICED_NS);
            world.hang_up(node, before, after_ns);
        }
        match self.draw_then() {
            Then::AskHome => self.send(&open, home, world),
            Then::AskAny => {
                let any = self.chooser.rng.random_range(0..world.n());
                self.send(&open, any, world);
            }
            Then::Wait => {}
            Then::GiveUp => open.into_iter().for_each(|id| {
                self.forsake(id, world);
            }),
        }
    }

    fn draw_then(&mut self) -> Then {
        match self.chooser.rng.random_range(0..4) {
            0 => Then::AskHome,
            1 => Then::AskAny,
            2 => Then::Wait,
            _ => Then::GiveUp,
        }
    }
}
