//! Lines on standard output and standard error. None of it panics: `println!` and
//! `eprintln!` do when a pipe is closed, a disk is full, or a terminal is gone.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// Prints a line to standard output; see [`print_line`](crate::output::print_line).
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        $crate::output::print_line(::std::format_args!($($words)*))
    };
}

/// Prints a line to standard error, if there is one; see
/// [`note_line`](crate::output::note_line).
#[macro_export]
macro_rules! note {
    ($($words:tt)*) => {
        $crate::output::note_line(::std::format_args!($($words)*))
    };
}

/// Prints a line to standard output, which is a result of the command. If the reader has
/// closed the pipe (`| head`), the process ends with status 0: nobody wants the rest. Any
/// other error ends it with status 1, because the result would be lost. Neither runs
/// destructors, so what must be cleaned up, or written elsewhere, comes first.
pub fn print_line(words: Arguments<'_>) {
    or_end(print(|out| writeln!(out, "{words}")));
}

/// Prints bytes to standard output as they are; errors as in [`print_line`].
pub fn print_bytes(bytes: &[u8]) {
    or_end(print(|out| out.write_all(bytes)));
}

/// Prints a line to standard error. An error is ignored: there is no place left to
/// report it, and the work goes on.
pub fn note_line(words: Arguments<'_>) {
    // In one piece, so that lines of several processes do not mix.
    let _ = io::stderr().write_all(format!("{words}\n").as_bytes());
}

fn print(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write(&mut out).and_then(|()| out.flush())
}

fn or_end(printed: io::Result<()>) {
    let Err(error) = printed else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    note_line(format_args!(
        "leasehold: writing to standard output: {error}"
    ));
    std::process::exit(1);
}
