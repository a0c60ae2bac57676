//! Commands in texts for users, completed with the directory of the cluster.

use std::path::Path;

/// Directory of a cluster for which a user gives no `--dir`.
pub const DEFAULT_DIR: &str = "leasehold-cluster";

/// Beginnings of the commands that act on the cluster in a directory.
const COMMANDS: [&str; 3] = ["leasehold cluster ", "leasehold fault ", "leasehold lease "];

/// Appends `--dir` to every command in backquotes that acts on a cluster. The commands in the text
/// must not have this option yet. For the default directory, returns the text unchanged.
pub fn with_dir(text: &str, dir: &Path) -> String {
    if dir == Path::new(DEFAULT_DIR) {
        return text.to_owned();
    }
    let option = format!(" --dir {}", shell_word(dir));
    let parts: Vec<String> = (text.split('`').enumerate())
        .map(|(index, part)| {
            let is_command = COMMANDS.iter().any(|command| part.starts_with(command));
            if index % 2 == 1 && is_command {
                format!("{part}{option}")
            } else {
                part.to_owned()
            }
        })
        .collect();
    parts.join("`")
}

/// Returns a path as one word for a shell, in quotes if it needs them.
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+,:@%=".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_a_directory_that_is_not_the_default() {
        let text = "down; `leasehold cluster start JP`, or `resume`; see `leasehold fault list`";
        assert_eq!(with_dir(text, Path::new(DEFAULT_DIR)), text);
        assert_eq!(
            with_dir(text, Path::new("one")),
            "down; `leasehold cluster start JP --dir one`, or `resume`; see `leasehold fault list --dir one`"
        );
        assert_eq!(
            with_dir("`leasehold lease set cost` changes it", Path::new("/a b")),
            "`leasehold lease set cost --dir '/a b'` changes it"
        );
        let other = "`leasehold serve` and leasehold cluster down";
        assert_eq!(with_dir(other, Path::new("one")), other);
    }

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        for (path, word) in [
            ("a/b-c_1.d", "a/b-c_1.d"),
            ("a b", "'a b'"),
            ("it's", "'it'\\''s'"),
            ("$HOME", "'$HOME'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }
}
