//! Options of sockets.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Maximum number of probes that a silent machine may leave unanswered.
const PROBES: u32 = 3;

/// Makes the kernel probe the machine at the other end after `idle` without any sign of life, and
/// then every quarter of `idle`. A connection stays open silently when the machine at its other end
/// loses power or its network. If this process only reads from such a connection, the connection
/// would keep its descriptor for as long as the process runs. A paused process at the other end is
/// no such case, because its machine answers the probes. While sent data waits to be acknowledged,
/// the time limit of that data applies instead.
///
/// # Errors
/// If the socket is broken already.
pub(super) fn enable_keepalive(socket: impl AsFd, idle: Duration) -> io::Result<()> {
    let socket = socket.as_fd();
    // The kernel counts in seconds.
    let again = (idle / 4).max(Duration::from_secs(1));
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, again)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}
