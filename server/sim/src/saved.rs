//! State of a campaign of many seeds that is kept on disk, so that the campaign can be continued.
//!
//! It is continued only as it was begun: with the same choices, and by a program that simulates the
//! same code. Else its seeds would be of two campaigns, and say nothing of either. Reading the file
//! does no harm, whichever program wrote it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::tally::CampaignTally;

/// Raised when older programs could no longer read it.
const VERSION: u32 = 2;
/// No campaign reaches half of what can be counted; from there on runs can be added
/// without a care.
const COUNT_MAX: u64 = u64::MAX / 2;

/// State of a campaign, as it is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CampaignState {
    version: u32,
    /// Names the code that is simulated.
    pub code: String,
    /// Choices of the campaign, by the names of their flags.
    pub choices: BTreeMap<String, String>,
    /// The first seed.
    pub from: u64,
    /// Every seed from `from` up to here is in the tally.
    pub next: u64,
    /// The sums.
    pub tally: CampaignTally,
    /// Processor time taken so far, in ms.
    pub cpu_ms: u64,
    /// Time taken so far by the clock on the wall, in ms.
    pub wall_ms: u64,
}

/// Why a campaign is not gone on with.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// It is something else, or damaged.
    #[error(
        "not the state of a campaign ({0}); choose another --out, or delete the file to begin anew"
    )]
    Unreadable(#[from] serde_json::Error),
    /// It was written by an older or a newer program.
    #[error(
        "its format version is {found}, this program's is {expected}; choose another --out, or \
         delete the file to begin anew"
    )]
    Version {
        /// The file's.
        found: u32,
        /// This program's.
        expected: u32,
    },
    /// No campaign leaves such a state.
    #[error("it contradicts itself; choose another --out, or delete the file to begin anew")]
    Contradiction,
    /// Its seeds ran through other code.
    #[error(
        "its seeds ran through other code than this program simulates: sources {found}, not \
         {expected}; go on with the program that began it, choose another --out, or delete the \
         file to begin anew"
    )]
    Code {
        /// The file's.
        found: String,
        /// This program's.
        expected: String,
    },
    /// Something else was chosen.
    #[error(
        "it is a campaign with {flag} {found}, not {expected}; choose another --out, or ask for \
         the same"
    )]
    Choice {
        /// The flag.
        flag: String,
        /// The file's.
        found: String,
        /// Value that is chosen now.
        expected: String,
    },
}

/// All that is read of a state of another version.
#[derive(Deserialize)]
struct VersionHeader {
    version: u32,
}

impl CampaignState {
    /// A campaign before its first seed.
    pub fn begin(code: &str, choices: BTreeMap<String, String>, from: u64) -> CampaignState {
        CampaignState {
            version: VERSION,
            code: code.to_owned(),
            choices,
            from,
            next: from,
            tally: CampaignTally::default(),
            cpu_ms: 0,
            wall_ms: 0,
        }
    }

    /// Reads what [`CampaignState::to_json`] wrote.
    ///
    /// # Errors
    /// `Unreadable`, `Version`, `Contradiction`.
    pub fn read(json: &[u8]) -> Result<CampaignState, ResumeError> {
        let VersionHeader { version } = serde_json::from_slice(json)?;
        if version != VERSION {
            return Err(ResumeError::Version {
                found: version,
                expected: VERSION,
            });
        }
        let saved: CampaignState = serde_json::from_slice(json)?;
        match saved.is_possible() {
            true => Ok(saved),
            false => Err(ResumeError::Contradiction),
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("names and numbers can be written") + "\n"
    }

    /// Whether a campaign that would begin as `fresh` may go on from here.
    ///
    /// # Errors
    /// `Code`, `Choice`.
    pub fn check_resume(&self, fresh: &CampaignState) -> Result<(), ResumeError> {
        if self.code != fresh.code {
            return Err(ResumeError::Code {
                found: self.code.clone(),
                expected: fresh.code.clone(),
            });
        }
        let (had, wants) = (self.chosen(), fresh.chosen());
        let flags: BTreeSet<&String> = had.keys().chain(wants.keys()).collect();
        for flag in flags {
            let value = |chosen: &BTreeMap<String, String>| {
                let value = chosen.get(flag).cloned();
                value.unwrap_or_else(|| "unset".to_owned())
            };
            let (found, expected) = (value(&had), value(&wants));
            if found != expected {
                return Err(ResumeError::Choice {
                    flag: flag.clone(),
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }

    fn chosen(&self) -> BTreeMap<String, String> {
        let mut chosen = self.choices.clone();
        chosen.insert("--from".to_owned(), self.from.to_string());
        chosen
    }

    fn is_possible(&self) -> bool {
        let own = [self.next, self.cpu_ms, self.wall_ms];
        self.next.checked_sub(self.from) == Some(self.tally.seeds)
            && own.iter().all(|count| *count <= COUNT_MAX)
            && counts(&self.tally).all(|count| count <= COUNT_MAX)
    }
}

/// Every count of a tally; its digest is none.
fn counts(tally: &CampaignTally) -> impl Iterator<Item = u64> {
    let mut counts = Vec::new();
    if let Ok(Value::Object(fields)) = serde_json::to_value(tally) {
        for (name, value) in fields {
            match value {
                Value::Object(by_name) => counts.extend(by_name.values().filter_map(Value::as_u64)),
                single if name != "digest" => counts.extend(single.as_u64()),
                _ => {}
            }
        }
    }
    counts.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> CampaignState {
        let choices = [("--rate", "200"), ("--twice", "false")];
        let choices = choices.map(|(flag, value)| (flag.to_owned(), value.to_owned()));
        let tally = CampaignTally {
            seeds: 5,
            virtual_ns: 300,
            faults: [("crash".to_owned(), 7)].into(),
            digest: u64::MAX,
            ..CampaignTally::default()
        };
        CampaignState {
            next: 8,
            tally,
            cpu_ms: 1500,
            ..CampaignState::begin("c0de", choices.into(), 3)
        }
    }

    fn fresh() -> CampaignState {
        let saved = saved();
        CampaignState::begin(&saved.code, saved.choices, saved.from)
    }

    fn refused(change: impl FnOnce(&mut CampaignState)) -> String {
        let mut saved = saved();
        change(&mut saved);
        let read = CampaignState::read(saved.to_json().as_bytes());
        let result = read.and_then(|saved| saved.check_resume(&fresh()));
        result.expect_err("it is changed").to_string()
    }

    #[test]
    fn what_is_kept_comes_back_and_is_gone_on_with() {
        let read = CampaignState::read(saved().to_json().as_bytes()).unwrap();
        assert_eq!(read, saved());
        read.check_resume(&fresh()).unwrap();
    }

    #[test]
    fn seeds_of_other_code_or_choices_are_not_added_to() {
        let message = refused(|saved| saved.code = "01d".to_owned());
        assert!(message.contains("sources 01d, not c0de"), "{message}");
        let message = refused(|saved| {
            saved.choices.insert("--rate".to_owned(), "9".to_owned());
        });
        assert!(message.contains("--rate 9, not 200"), "{message}");
        let message = refused(|saved| {
            saved.choices.remove("--twice");
        });
        assert!(message.contains("--twice unset, not false"), "{message}");
        let message = refused(|saved| {
            saved.choices.insert("--new".to_owned(), "1".to_owned());
        });
        assert!(message.contains("--new 1, not unset"), "{message}");
        let message = refused(|saved| {
            saved.from += 1;
            saved.next += 1;
        });
        assert!(message.contains("--from 4, not 3"), "{message}");
    }

    #[test]
    fn another_format_is_told_by_its_version_alone() {
        let message = CampaignState::read(b"{ \"version\": 1, \"old\": true }").unwrap_err();
        assert!(message.to_string().contains("version is 1"), "{message}");
        for bad in ["", "[]", "{}", "{ \"version\": 2 }"] {
            let message = CampaignState::read(bad.as_bytes()).unwrap_err().to_string();
            assert!(message.contains("not the state of a campaign"), "{message}");
        }
    }

    #[test]
    fn what_cannot_be_or_could_not_be_added_to_is_refused() {
        let changes: [fn(&mut CampaignState); 6] = [
            |saved| saved.next += 1,
            |saved| saved.from = 9,
            |saved| saved.cpu_ms = u64::MAX,
            |saved| saved.tally.operations = COUNT_MAX + 1,
            |saved| saved.tally.faults.extend([("a".to_owned(), u64::MAX)]),
            |saved| {
                saved.next = u64::MAX;
                saved.tally.seeds = u64::MAX - saved.from;
            },
        ];
        for change in changes {
            assert!(refused(change).contains("contradicts itself"));
        }
    }
}
