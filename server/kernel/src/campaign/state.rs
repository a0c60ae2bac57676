//! State of a campaign. The state is stored on disk so that the campaign can be continued.
//!
//! A campaign can be continued only with the same options and the same simulated code. Otherwise
//! its results would mix two different campaigns. A file that another program wrote is refused.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Sums;

/// Version of the file format. A format that older programs cannot read gets a higher version.
const VERSION: u32 = 2;
/// Maximum value of a count. No campaign reaches this value. Two counts can be added without an
/// overflow.
const COUNT_MAX: u64 = u64::MAX / 2;

/// State of a campaign with sums `S`, as it is stored on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CampaignState<S> {
    version: u32,
    /// Identifies the code that is simulated.
    pub code: String,
    /// Options of the campaign. The keys are the names of the flags.
    pub choices: BTreeMap<String, String>,
    /// The first seed.
    pub from: u64,
    /// The first seed that is not included in the sums yet. All seeds from `from` to the seed
    /// before this one are included.
    pub next: u64,
    /// Sums over the seeds from `from` (included) to `next` (excluded).
    #[serde(rename = "tally")]
    pub sums: S,
    /// Processor time used so far, in ms.
    pub cpu_ms: u64,
    /// Elapsed time so far, in ms.
    pub wall_ms: u64,
}

/// Reason why a campaign cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The file does not contain the state of a campaign, or is damaged.
    #[error(
        "not the state of a campaign ({0}); choose another --out, or delete the file to begin anew"
    )]
    Unreadable(#[from] serde_json::Error),
    /// The file was written by an older or newer program.
    #[error(
        "its format version is {found}, this program's is {expected}; choose another --out, or \
         delete the file to begin anew"
    )]
    Version {
        /// Version in the file.
        found: u32,
        /// Version that this program writes.
        expected: u32,
    },
    /// Numbers in the file contradict each other.
    #[error("it contradicts itself; choose another --out, or delete the file to begin anew")]
    Contradiction,
    /// The seeds in the file were run with a different version of the simulated code.
    #[error(
        "its seeds ran through other code than this program simulates: sources {found}, not \
         {expected}; go on with the program that began it, choose another --out, or delete the \
         file to begin anew"
    )]
    Code {
        /// Code in the file.
        found: String,
        /// Code that this program simulates.
        expected: String,
    },
    /// An option of this campaign differs from the same option in the file.
    #[error(
        "it is a campaign with {flag} {found}, not {expected}; choose another --out, or ask for \
         the same"
    )]
    Choice {
        /// Name of the flag.
        flag: String,
        /// Value in the file.
        found: String,
        /// Value that is requested now.
        expected: String,
    },
}

/// Version of a state's file format. If the version is not [`VERSION`], no other field of the state
/// is read.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl<S: Sums + Serialize + DeserializeOwned> CampaignState<S> {
    /// Creates the state of a campaign before its first seed.
    pub fn begin(code: &str, choices: BTreeMap<String, String>, from: u64) -> CampaignState<S> {
        CampaignState {
            version: VERSION,
            code: code.to_owned(),
            choices,
            from,
            next: from,
            sums: S::default(),
            cpu_ms: 0,
            wall_ms: 0,
        }
    }

    /// Reads a state that [`CampaignState::to_json`] wrote.
    ///
    /// # Errors
    /// `Unreadable`, `Version` or `Contradiction`.
    pub fn read(json: &[u8]) -> Result<CampaignState<S>, ResumeError> {
        let Versioned { version } = serde_json::from_slice(json)?;
        if version != VERSION {
            return Err(ResumeError::Version {
                found: version,
                expected: VERSION,
            });
        }
        let saved: CampaignState<S> = serde_json::from_slice(json)?;
        if saved.is_possible() {
            Ok(saved)
        } else {
            Err(ResumeError::Contradiction)
        }
    }

    /// Returns the state as JSON.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("names and numbers can be written") + "\n"
    }

    /// Checks that a campaign may continue from this state. `fresh` is the state with which the
    /// campaign would otherwise begin.
    ///
    /// # Errors
    /// `Code` or `Choice`, if the state differs from `fresh` in its code or an option.
    pub fn check_resume(&self, fresh: &CampaignState<S>) -> Result<(), ResumeError> {
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
        self.next.checked_sub(self.from) == Some(self.sums.seeds())
            && own.iter().all(|count| *count <= COUNT_MAX)
            && counts(&self.sums).all(|count| count <= COUNT_MAX)
    }
}

/// Returns every number in the sums except digests.
fn counts(sums: &impl Serialize) -> impl Iterator<Item = u64> {
    let mut counts = Vec::new();
    if let Ok(Value::Object(fields)) = serde_json::to_value(sums) {
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

    /// An example of sums: plain numbers, numbers by name, and a digest.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    struct Tally {
        seeds: u64,
        virtual_ns: u64,
        operations: u64,
        faults: BTreeMap<String, u64>,
        digest: u64,
    }

    impl Sums for Tally {
        fn seeds(&self) -> u64 {
            self.seeds
        }

        fn virtual_ns(&self) -> u64 {
            self.virtual_ns
        }

        fn merge(&mut self, other: &Tally) {
            self.seeds += other.seeds;
        }
    }

    type Saved = CampaignState<Tally>;

    fn saved() -> Saved {
        let choices = [("--rate", "200"), ("--twice", "false")];
        let choices = choices.map(|(flag, value)| (flag.to_owned(), value.to_owned()));
        let tally = Tally {
            seeds: 5,
            virtual_ns: 300,
            faults: [("crash".to_owned(), 7)].into(),
            digest: u64::MAX,
            ..Tally::default()
        };
        Saved {
            next: 8,
            sums: tally,
            cpu_ms: 1500,
            ..CampaignState::begin("c0de", choices.into(), 3)
        }
    }

    fn fresh() -> Saved {
        let saved = saved();
        Saved::begin(&saved.code, saved.choices, saved.from)
    }

    fn refused(change: impl FnOnce(&mut Saved)) -> String {
        let mut saved = saved();
        change(&mut saved);
        let read = Saved::read(saved.to_json().as_bytes());
        let result = read.and_then(|saved| saved.check_resume(&fresh()));
        result.expect_err("it is changed").to_string()
    }

    #[test]
    fn what_is_kept_comes_back_and_is_gone_on_with() {
        let read = Saved::read(saved().to_json().as_bytes()).unwrap();
        assert_eq!(read, saved());
        read.check_resume(&fresh()).unwrap();
    }

    #[test]
    fn seeds_of_other_code_or_choices_are_not_added_to() {
        let text = refused(|saved| saved.code = "01d".to_owned());
        assert!(text.contains("sources 01d, not c0de"), "{text}");
        let text = refused(|saved| {
            saved.choices.insert("--rate".to_owned(), "9".to_owned());
        });
        assert!(text.contains("--rate 9, not 200"), "{text}");
        let text = refused(|saved| {
            saved.choices.remove("--twice");
        });
        assert!(text.contains("--twice unset, not false"), "{text}");
        let text = refused(|saved| {
            saved.choices.insert("--new".to_owned(), "1".to_owned());
        });
        assert!(text.contains("--new 1, not unset"), "{text}");
        let text = refused(|saved| {
            saved.from += 1;
            saved.next += 1;
        });
        assert!(text.contains("--from 4, not 3"), "{text}");
    }

    #[test]
    fn another_format_is_told_by_its_version_alone() {
        let text = Saved::read(b"{ \"version\": 1, \"old\": true }").unwrap_err();
        assert!(text.to_string().contains("version is 1"), "{text}");
        for bad in ["", "[]", "{}", "{ \"version\": 2 }"] {
            let text = Saved::read(bad.as_bytes()).unwrap_err().to_string();
            assert!(text.contains("not the state of a campaign"), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_or_could_not_be_added_to_is_refused() {
        let changes: [fn(&mut Saved); 6] = [
            |saved| saved.next += 1,
            |saved| saved.from = 9,
            |saved| saved.cpu_ms = u64::MAX,
            |saved| saved.sums.operations = COUNT_MAX + 1,
            |saved| saved.sums.faults.extend([("a".to_owned(), u64::MAX)]),
            |saved| {
                saved.next = u64::MAX;
                saved.sums.seeds = u64::MAX - saved.from;
            },
        ];
        for change in changes {
            assert!(refused(change).contains("contradicts itself"));
        }
    }
}
