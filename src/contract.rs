//! Frozen contract of the command line: commands, options, values and defaults. Help texts may
//! change.
//!
//! `tests/contract/` contains the other frozen contracts on which users rely. `CONTRACT=write cargo
//! test` rewrites the file that contains this contract.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command, CommandFactory as _};

const FILE: &str = "tests/contract/command-line.txt";

fn describe(command: &Command, path: &str, text: &mut String) {
    _ = writeln!(text, "{path}");
    for arg in command.get_arguments() {
        _ = writeln!(text, "{path} {}", of_arg(arg));
    }
    for command in command.get_subcommands() {
        describe(command, &format!("{path} {}", command.get_name()), text);
    }
}

fn of_arg(arg: &Arg) -> String {
    let mut words = Vec::new();
    words.extend(arg.get_short().map(|short| format!("-{short}")));
    words.extend(arg.get_long().map(|long| format!("--{long}")));
    words.extend(
        arg.get_visible_aliases()
            .into_iter()
            .flatten()
            .map(|name| format!("--{name}")),
    );
    if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default();
        words.extend(names.iter().map(|name| format!("<{name}>")));
    }
    if arg.is_required_set() {
        words.push("required".to_owned());
    }
    let defaults = arg.get_default_values().iter();
    words.extend(defaults.map(|value| format!("={}", value.to_string_lossy())));
    let values = arg.get_possible_values();
    if arg.get_action().takes_values() && !values.is_empty() {
        let values: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        words.push(format!("of {}", values.join("|")));
    }
    words.join(" ")
}

#[test]
fn the_command_line_is_as_it_was() {
    let mut command = super::Cli::command();
    command.build();
    let mut now = String::new();
    describe(&command, "leasehold", &mut now);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var("CONTRACT").is_ok_and(|value| value == "write") {
        std::fs::write(&file, now).unwrap();
        return;
    }
    let frozen = std::fs::read_to_string(&file).unwrap();
    let removed = frozen
        .lines()
        .filter(|line| !now.lines().any(|other| other == *line));
    let new = now
        .lines()
        .filter(|line| !frozen.lines().any(|other| other == *line));
    let (removed, new): (Vec<_>, Vec<_>) = (removed.collect(), new.collect());
    assert!(
        removed.is_empty() && new.is_empty(),
        "gone: {removed:#?}, new: {new:#?}"
    );
}
