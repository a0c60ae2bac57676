//! Options of sockets.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Probes that a silent machine may leave unanswered.
const PROBES: u32 = 3;

/// Makes the kernel ask the machine at the other end for a sign of life: after `idle` without
/// any, and then every quarter of it. A connection says nothing when its other end loses its
/// power or its network. A connection that is only read from would stay, and keep its
/// descriptor, for as long as this process runs. A process that stands still is no such case:
/// its machine answers. Where data waits to be acknowledged, the time limit of that decides.
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
