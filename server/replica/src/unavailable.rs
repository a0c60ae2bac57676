//! Why a command is not executed for now. What clients are told is no promise: a copy of the
//! command may be executed later.

use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{ErrorCode, Outcome};

const SENT_AGAIN: &str =
    "the client has sent this write again, and the later request will be answered";
const NO_ROOM: &str = "there is no room for another session (limits.sessions_max), and all have \
                       been active lately; try again later";
const TOO_MANY_SESSION_OPENS: &str = "more sessions are opened here in a second than this replica allows \
                                 (limits.sessions_opened_per_s); try again later";
const TOO_MANY_MERGES: &str = "too many long merges are in flight here, or merges into large records or into one; try again later";
const CLIENT_DISCONNECTED: &str = "the client has gone";

fn unavailable(message: &str) -> Outcome {
    Outcome::error(ErrorCode::Unavailable, message)
}

/// To a request that was repeated. Every request is answered: the node keeps room for
/// the answer until then.
pub fn sent_again() -> Outcome {
    unavailable(SENT_AGAIN)
}

/// To a client that needs a session, for which there is no room.
pub fn no_room() -> Outcome {
    unavailable(NO_ROOM)
}

/// To a client that needs a session, of which too many are opened.
pub fn too_many_session_opens() -> Outcome {
    unavailable(TOO_MANY_SESSION_OPENS)
}

/// To a client that merges long fields when merges must wait.
pub fn too_many_merges() -> Outcome {
    unavailable(TOO_MANY_MERGES)
}

/// To a client that does not hear it any more.
pub fn client_disconnected() -> Outcome {
    unavailable(CLIENT_DISCONNECTED)
}

fn says(outcome: &Outcome, message: &str) -> bool {
    matches!(&outcome.result, Some(Answer::Error(error)) if error.message == message)
}

/// Whether a client is told that it has sent a command again: a later request of it will be
/// answered.
pub fn is_sent_again(outcome: &Outcome) -> bool {
    says(outcome, SENT_AGAIN)
}

/// Whether a client is told that there was no room when its command was executed.
pub fn is_no_room(outcome: &Outcome) -> bool {
    says(outcome, NO_ROOM)
}

/// Whether a client is told that its session was not opened here.
pub fn is_too_many_session_opens(outcome: &Outcome) -> bool {
    says(outcome, TOO_MANY_SESSION_OPENS)
}

/// Whether a client is told that its merge would have to wait here.
pub fn is_too_many_merges(outcome: &Outcome) -> bool {
    says(outcome, TOO_MANY_MERGES)
}

/// Whether a client is told that this request of it has not left this replica, nor will.
pub fn is_unsent(outcome: &Outcome) -> bool {
    is_too_many_session_opens(outcome) || is_too_many_merges(outcome)
}

/// Whether a client that has disconnected is told so. A write of it has not left this replica either.
pub fn is_client_disconnected(outcome: &Outcome) -> bool {
    says(outcome, CLIENT_DISCONNECTED)
}
