//! Prints lines to standard output and standard error without ever panicking. In contrast,
//! `println!` and `eprintln!` panic if a pipe is closed, a disk is full, or a terminal is gone.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

/// Prints a line to standard output; see [`print_line`].
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        $crate::output::print_line(::std::format_args!($($words)*))
    };
}

/// Prints a line to standard error, if there is one; see
/// [`note_line`].
#[macro_export]
macro_rules! note {
    ($($words:tt)*) => {
        $crate::output::note_line(::std::format_args!($($words)*))
    };
}

/// Error after which nothing more is printed to standard output.
static FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Prints a line to standard output. If the reader has closed the pipe (`| head`) or the disk is
/// full, the command still continues, because its other work must not stop halfway. After such an
/// error nothing more is printed. At the end, [`finish`] returns the error, unless the error is a
/// closed pipe.
pub fn print_line(words: Arguments<'_>) {
    print(|out| writeln!(out, "{words}"));
}

/// Prints bytes to standard output unchanged. Errors are handled as in [`print_line`].
pub fn print_bytes(bytes: &[u8]) {
    print(|out| out.write_all(bytes));
}

/// Prints a line to standard error. An error is ignored, because there is nowhere to report it.
pub fn note_line(words: Arguments<'_>) {
    // Written in one piece, so that lines of several processes do not mix.
    let _ = io::stderr().write_all(format!("{words}\n").as_bytes());
}

/// Returns true if nothing more is printed to standard output, because an error has occurred. A
/// command that only prints may then end.
pub fn is_closed() -> bool {
    FAILURE.get().is_some()
}

/// Returns `Ok` if all printed data has reached standard output. A program calls this at its end.
///
/// # Errors
/// The error that caused a loss of data. A pipe that the reader has closed is not an error, because
/// the reader needs no more data.
pub fn finish() -> Result<(), &'static io::Error> {
    match FAILURE.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
    if FAILURE.get().is_some() {
        return;
    }
    let mut out = io::stdout().lock();
    if let Err(error) = write(&mut out).and_then(|()| out.flush()) {
        FAILURE.get_or_init(|| error);
    }
}
