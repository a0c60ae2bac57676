//! Reasons why a command is not executed for now. An answer with such a reason does not guarantee
//! that the command has no effect: a copy of the command may be executed later.

use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{ErrorCode, Outcome};

const SENT_AGAIN: &str =
    "the client has sent this write again, and the later request will be answered";
const NO_ROOM: &str = "there is no room for another session (limits.sessions_max), and all have \
                       been active lately; try again later";
const TOO_MANY_SESSION_OPENS: &str = "more sessions are opened here in a second than this replica allows \
                                 (limits.sessions_opened_per_s); try again later";
const TOO_MANY_MERGES: &str = "too many long merges or transactions are in flight here, or their values are too large, or too many of them rewrite the same value; try again later";
const CLIENT_DISCONNECTED: &str = "the client has gone";

fn unavailable(message: &str) -> Outcome {
    Outcome::error(ErrorCode::Unavailable, message)
}

/// Returns the answer to the older of two requests with the same write, because the client has sent
/// the write again. Every request must be answered, because the node reserves space for the answer.
pub fn sent_again() -> Outcome {
    unavailable(SENT_AGAIN)
}

/// Returns the answer to a client that needs a session while there is no room for one.
pub fn no_room() -> Outcome {
    unavailable(NO_ROOM)
}

/// Returns the answer to a client that needs a session while too many sessions are being opened.
pub fn too_many_session_opens() -> Outcome {
    unavailable(TOO_MANY_SESSION_OPENS)
}

/// Returns the answer to a merge of long fields that is refused because long merges would have to
/// wait at present.
pub fn too_many_merges() -> Outcome {
    unavailable(TOO_MANY_MERGES)
}

/// Returns the answer to a disconnected client. The client does not receive this answer.
pub fn client_disconnected() -> Outcome {
    unavailable(CLIENT_DISCONNECTED)
}

fn says(outcome: &Outcome, message: &str) -> bool {
    matches!(&outcome.result, Some(Answer::Error(error)) if error.message == message)
}

/// Whether an outcome tells a client that a later request repeats its write, and that the later
/// request will be answered instead.
pub fn is_sent_again(outcome: &Outcome) -> bool {
    says(outcome, SENT_AGAIN)
}

/// Whether an outcome tells a client that there was no room for its session when its command was
/// executed.
pub fn is_no_room(outcome: &Outcome) -> bool {
    says(outcome, NO_ROOM)
}

/// Whether an outcome tells a client that its session was not opened at this replica.
pub fn is_too_many_session_opens(outcome: &Outcome) -> bool {
    says(outcome, TOO_MANY_SESSION_OPENS)
}

/// Whether an outcome tells a client that its merge was refused because merges must wait at this
/// replica.
pub fn is_too_many_merges(outcome: &Outcome) -> bool {
    says(outcome, TOO_MANY_MERGES)
}

/// Whether an outcome tells a client that this replica has not sent the client's request to any
/// other replica and will never send it.
pub fn is_unsent(outcome: &Outcome) -> bool {
    is_too_many_session_opens(outcome) || is_too_many_merges(outcome)
}

/// Whether an outcome is the answer to a disconnected client. If it is, the write of that client
/// has not left this replica.
pub fn is_client_disconnected(outcome: &Outcome) -> bool {
    says(outcome, CLIENT_DISCONNECTED)
}
