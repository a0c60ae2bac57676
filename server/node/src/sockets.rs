//! Options of sockets.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Maximum number of consecutive probes that a silent machine may leave unanswered.
const PROBES: u32 = 3;

/// Makes the kernel probe the other end's machine after the time `idle` without traffic, and then
/// every quarter of `idle`. Without probes, a connection stays open without any error when that
/// machine loses power or its network. If this process only reads from such a connection, it would
/// keep the connection's descriptor for as long as it runs. A connection to a paused process is not
/// closed, because the machine of that process answers the probes. While sent data waits to be
/// acknowledged, the time limit of that data applies instead.
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
