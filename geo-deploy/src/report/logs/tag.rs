//! What a line of an interval log counts, from its tag.

use std::path::Path;

use super::super::digest::Class;

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// The run, "" if the tag names none.
    pub run: String,
    /// The site, "" if the tag names none.
    pub site: String,
    pub class: Class,
    /// Whether the operations did what was asked.
    pub done: bool,
    /// Whether latency counts from the intended start.
    pub intended: bool,
}

/// `label:site:OPERATION:path`; label, site and path may be missing. A log without tags
/// is one of a single operation, which names the file (`READ.hdr`). `None` if no
/// operations are counted.
pub(super) fn counted(tag: &str, file: &Path) -> Option<Counted> {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy());
    let stem = stem.unwrap_or_default();
    let tag = if tag.is_empty() { &stem } else { tag };
    let parts: Vec<&str> = tag.split(':').collect();
    let found = parts
        .iter()
        .enumerate()
        .find_map(|(at, part)| Some((at, operation(part)?)));
    let (at, (class, done, intended)) = found?;
    let (run, site) = match &parts[..at] {
        [] => (String::new(), ""),
        [site] => (String::new(), *site),
        [run @ .., site] => (run.join(":"), *site),
    };
    Some(Counted {
        run,
        site: site.to_owned(),
        class,
        done,
        intended,
    })
}

/// Class, success and basis of an operation by its reported name.
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
            let counted = counted(tag, Path::new(file))?;
            let Counted {
                run,
                site,
                class,
                done,
                intended,
            } = counted;
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
        for other in [
            "",
            "JP:VERIFY",
            "JP:SCAN-LATENCY-PER-RECORD",
            "JP:ALL",
            "CLEANUP",
        ] {
            assert_eq!(found(other, log), None, "{other}");
        }
    }
}
