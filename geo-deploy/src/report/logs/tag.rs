//! Tags in an interval log. The tag of a line describes the operations that the line counts.

use leasehold_wire::Path;
use leasehold_ycsb::measurement::path_name;

use crate::report::digest::Class;

/// Description of the operations in one line of a log. The tag of the line contains this
/// description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OperationTag {
    /// Name of the run; "" if the tag does not name a run.
    pub run: String,
    /// Name of the site; "" if the tag does not name a site.
    pub site: String,
    pub class: Class,
    /// Whether the operations succeeded.
    pub done: bool,
    /// Whether latency is measured from the intended start of an operation.
    pub intended: bool,
}

/// Parses a tag of the form `label:site:OPERATION:path`. The label, the site and the path are
/// optional. If the tag is empty, the file name without its extension is parsed instead (`READ` for
/// `READ.hdr`). Returns `None` if the line is not about operations.
pub(super) fn parse_tag(tag: &str, file: &std::path::Path) -> Option<OperationTag> {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy());
    let stem = stem.unwrap_or_default();
    let tag = if tag.is_empty() { &stem } else { tag };
    let parts: Vec<&str> = tag.split(':').collect();
    // Parsed from the right, because a run or a site may have the name of an operation.
    let named = match parts.as_slice() {
        [named @ .., path] if is_path(path) => named,
        named => named,
    };
    let at = named.len().checked_sub(1)?;
    let (class, done, intended) = operation(named[at])?;
    let (run, site) = match &parts[..at] {
        [] => (String::new(), ""),
        [site] => (String::new(), *site),
        [run @ .., site] => (run.join(":"), *site),
    };
    Some(OperationTag {
        run,
        site: site.to_owned(),
        class,
        done,
        intended,
    })
}

/// Returns true if this part of a tag is the path on which an operation was served.
fn is_path(part: &str) -> bool {
    let paths = [
        Path::Unspecified,
        Path::Local,
        Path::Held,
        Path::Forwarded,
        Path::ReadIndex,
        Path::Log,
    ];
    part == "away" || paths.iter().any(|path| path_name(*path) == part)
}

/// Interprets the name of an operation in a log. Returns three values: the class, whether the
/// operations succeeded, and whether latency is measured from the intended start.
fn operation(name: &str) -> Option<(Class, bool, bool)> {
    let plain = name.strip_prefix("Intended-");
    let intended = plain.is_some();
    let plain = plain.unwrap_or(name);
    let unsuccessful = ["-FAILED", "-ABANDONED", "-NEVER-SENT"];
    let stripped = unsuccessful.iter().find_map(|end| plain.strip_suffix(end));
    let class = match stripped.unwrap_or(plain) {
        "READ" | "SCAN" => Class::Reads,
        "UPDATE" | "INSERT" | "DELETE" | "READ-MODIFY-WRITE" => Class::Writes,
        _ => return None,
    };
    Some((class, stripped.is_none(), intended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_every_origin_are_understood() {
        let found = |tag: &str, file: &str| {
            let parsed = parse_tag(tag, std::path::Path::new(file))?;
            let OperationTag {
                run,
                site,
                class,
                done,
                intended,
            } = parsed;
            Some((run, site, class, done, intended))
        };
        let expected = |run: &str, site: &str, class, done, intended| {
            Some((run.to_owned(), site.to_owned(), class, done, intended))
        };
        let log = "out/latency.hlog";
        assert_eq!(
            found("JP:READ:local", log),
            expected("", "JP", Class::Reads, true, false)
        );
        assert_eq!(
            found("QL:JP:UPDATE:log", log),
            expected("QL", "JP", Class::Writes, true, false)
        );
        assert_eq!(
            found("0:Intended-READ-NEVER-SENT", log),
            expected("", "0", Class::Reads, false, true)
        );
        assert_eq!(
            found("", "out/READ-MODIFY-WRITE-FAILED.hdr"),
            expected("", "", Class::Writes, false, false)
        );
        assert_eq!(
            found("READ:UPDATE:log", log),
            expected("", "READ", Class::Writes, true, false)
        );
        assert_eq!(
            found("SCAN:READ:READ-FAILED", log),
            expected("SCAN", "READ", Class::Reads, false, false)
        );
        for other in [
            "",
            "READ:VERIFY",
            "READ:ALL",
            "JP:VERIFY",
            "JP:SCAN-LATENCY-PER-RECORD",
            "JP:ALL",
            "CLEANUP",
        ] {
            assert_eq!(found(other, log), None, "{other}");
        }
    }
}
