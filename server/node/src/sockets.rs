//! Options of sockets.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Maximum number of consecutive probes that a silent machine may leave unanswered.
const PROBES: u32 = 3;

/// Makes the kernel send probes to the machine at the other end of a connection. The probes begin
/// after the time `idle` without traffic, and follow every quarter of `idle`.
///
/// Without probes, a connection stays open without any error when that machine loses power or its
/// network. A process that only reads from such a connection would keep the connection's descriptor
/// until the process ends. A connection to a paused process stays open, because the machine of that
/// process answers the probes. While sent data is not acknowledged, the time limit for
/// acknowledgements applies instead of the probes.
///
/// # Errors
/// Fails if the socket is already broken.
pub(super) fn enable_keepalive(socket: impl AsFd, idle: Duration) -> io::Result<()> {
    let socket = socket.as_fd();
    // The kernel counts in seconds.
    let again = (idle / 4).max(Duration::from_secs(1));
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, again)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}
