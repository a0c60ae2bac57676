//! The group file: the members of a group, with their addresses and settings.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_leases::time::ClockBound;
use leasehold_lock_core::settings::SettingsError;
use leasehold_lock_core::{ClockModel, GroupSettings, MemberId, rules};
use leasehold_transport::is_loopback;
use serde::Deserialize;

/// Maximum length of the name of a group or a member, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Maximum length of an address, in bytes.
const ADDRESS_BYTES_MAX: usize = 256;
/// Maximum size of a group file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Default term, in ms.
const TERM_MS: u64 = 10_000;
/// Default bound on the error of clock rates.
const RHO: f64 = 0.001;
/// Maximum of this bound. With a larger one, waits would be much longer than the term.
const RHO_MAX: f64 = 0.25;

/// A group. Its members agree on the owners of resources, and have the same group file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    name: String,
    members: Vec<GroupMember>,
    settings: GroupSettings,
    warn: Duration,
}

/// Member of a group.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupMember {
    /// Name, which is unique in the group.
    pub name: String,
    /// Address at which the member listens and the others reach it, as `host:port`. The answers to
    /// a member go to this address only, so a second process with its name gets none.
    pub address: String,
}

/// Error in a group file.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The file cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The contents of the file are wrong.
    #[error("{}: {source}", file.display())]
    File {
        /// Path of the file.
        file: PathBuf,
        /// The error.
        source: Box<GroupError>,
    },
    /// The text is not TOML, or a field is missing, unknown, or of the wrong type.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A duration or the number of members is wrong.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A field has a value that cannot be used.
    #[error("`{field}` is {value:?}: {problem}")]
    Field {
        /// Name of the field.
        field: String,
        /// Its value.
        value: String,
        /// Problem with the value, and how to correct it.
        problem: String,
    },
}

/// Contents of a group file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupFile {
    group: String,
    #[serde(default)]
    clocks: Clocks,
    epsilon_ms: Option<u64>,
    rho: Option<f64>,
    t_max_ms: Option<u64>,
    attempt_ms: Option<u64>,
    renew_ms: Option<u64>,
    warn_ms: Option<u64>,
    #[serde(default)]
    insecure: bool,
    #[serde(rename = "member")]
    members: Vec<GroupMember>,
}

/// Clocks on which a group relies.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Clocks {
    /// Clocks that nobody sets or steers. Their rates are wrong by at most `rho`.
    #[default]
    Bounded,
    /// The wall clocks of all members, which differ by at most `epsilon_ms`.
    Synchronised,
}

impl Group {
    /// Reads a group file.
    ///
    /// # Errors
    /// Any [`GroupError`]. It names the file, the field, and how to correct it.
    pub fn load(file: &Path) -> Result<Group, GroupError> {
        let text = read(file).map_err(|source| {
            let file = file.to_owned();
            GroupError::Read { file, source }
        })?;
        Group::from_toml(&text).map_err(|source| {
            let (file, source) = (file.to_owned(), Box::new(source));
            GroupError::File { file, source }
        })
    }

    /// Parses the text of a group file.
    ///
    /// # Errors
    /// The field that is wrong, and how to correct it.
    pub fn from_toml(text: &str) -> Result<Group, GroupError> {
        let GroupFile {
            group,
            clocks,
            epsilon_ms,
            rho,
            t_max_ms,
            attempt_ms,
            renew_ms,
            warn_ms,
            insecure,
            members,
        } = toml::from_str(text)?;
        let ms = Duration::from_millis;
        let term = ms(t_max_ms.unwrap_or(TERM_MS));
        let number = u8::try_from(members.len());
        let number = number.map_err(|_| SettingsError::Members(members.len()))?;
        let clocks = clock_model(clocks, epsilon_ms, rho)?;
        let mut settings = GroupSettings::new(number, term, clocks);
        settings.attempt = attempt_ms.map_or(settings.attempt, ms);
        settings.renew = renew_ms.map_or(settings.renew, ms);
        settings.validate()?;
        let warn = warn_ms.map_or(term / 4, ms);
        check_name("group", &group)?;
        if warn.is_zero() || warn + settings.renew > term {
            let problem = format!(
                "it must be above 0, and `warn_ms` + `renew_ms` must be at most `t_max_ms` = {}, so \
                 that an owner that renews in time is not warned",
                term.as_millis()
            );
            return Err(field("warn_ms", &warn.as_millis().to_string(), problem));
        }
        check_members(&members)?;
        if let Some(member) = members.iter().find(|it| !is_loopback(&it.address))
            && !insecure
        {
            let problem =
                "other machines may reach this address, and members prove nothing to each \
                           other: use addresses of this machine, such as 127.0.0.1:7401; or write \
                           `insecure = true` if all machines of the network may own everything"
                    .to_owned();
            return Err(field("member.address", &member.address, problem));
        }
        Ok(Group {
            name: group,
            members,
            settings,
            warn,
        })
    }

    /// Returns the name of the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the members, in the order of the file.
    pub fn members(&self) -> &[GroupMember] {
        &self.members
    }

    /// Returns the settings that all members share.
    pub fn settings(&self) -> &GroupSettings {
        &self.settings
    }

    /// Returns the time before the end of a lease at which its owner is warned.
    pub fn warn(&self) -> Duration {
        self.warn
    }

    /// Returns the time after its start for which a member is silent, and acquires nothing.
    pub fn restart_wait(&self) -> Duration {
        rules::restart_wait(&self.settings)
    }

    /// Returns the member with this name.
    pub fn member(&self, name: &str) -> Option<MemberId> {
        let index = self.members.iter().position(|it| it.name == name)?;
        u8::try_from(index).ok().map(MemberId)
    }

    /// Returns the names of all members.
    pub(crate) fn names(&self) -> Vec<String> {
        self.members.iter().map(|it| it.name.clone()).collect()
    }

    /// Returns the name of a member of this group.
    pub(crate) fn name_of(&self, member: MemberId) -> &str {
        &self.members[usize::from(member.0)].name
    }

    /// Returns everything in which the files of all members must agree: a line for each field.
    pub(crate) fn agreement(&self) -> String {
        let GroupSettings {
            members,
            term,
            clocks,
            attempt,
            renew,
        } = &self.settings;
        let mut text = format!("group = {:?}\n", self.name);
        // Writing to a string cannot fail.
        let _ = match clocks {
            ClockModel::Bounded(bound) => {
                writeln!(text, "clocks = \"bounded\"\nrho = {}e-6", bound.rho_ppm)
            }
            ClockModel::Synchronised { epsilon } => {
                let epsilon_ms = epsilon.as_millis();
                writeln!(text, "clocks = \"synchronised\"\nepsilon_ms = {epsilon_ms}")
            }
        };
        let durations = [
            ("t_max_ms", term),
            ("attempt_ms", attempt),
            ("renew_ms", renew),
            ("warn_ms", &self.warn),
        ];
        for (name, duration) in durations {
            let _ = writeln!(text, "{name} = {}", duration.as_millis());
        }
        let _ = writeln!(text, "members = {members}");
        for (index, GroupMember { name, address }) in self.members.iter().enumerate() {
            let _ = writeln!(text, "member {} = {name:?} at {address:?}", index + 1);
        }
        text
    }
}

/// Checks the fields about clocks.
fn clock_model(
    clocks: Clocks,
    epsilon_ms: Option<u64>,
    rho: Option<f64>,
) -> Result<ClockModel, GroupError> {
    match (clocks, epsilon_ms, rho) {
        (Clocks::Synchronised, Some(epsilon_ms), None) => Ok(ClockModel::Synchronised {
            epsilon: Duration::from_millis(epsilon_ms),
        }),
        (Clocks::Synchronised, None, _) => {
            let problem = "such a group needs `epsilon_ms`, the maximum difference between the \
                           clocks of any two members; add it";
            Err(field("clocks", "synchronised", problem))
        }
        (Clocks::Synchronised, Some(_), Some(rho)) => {
            let problem = "it is for groups without synchronised clocks; leave it out";
            Err(field("rho", &rho.to_string(), problem))
        }
        (Clocks::Bounded, Some(epsilon_ms), _) => {
            let problem = "it is for groups with synchronised clocks; leave it out, or add \
                           `clocks = \"synchronised\"`";
            Err(field("epsilon_ms", &epsilon_ms.to_string(), problem))
        }
        (Clocks::Bounded, None, rho) => {
            let rho = rho.unwrap_or(RHO);
            if !(0.0..=RHO_MAX).contains(&rho) {
                let problem = format!("it must be between 0 and {RHO_MAX}");
                return Err(field("rho", &rho.to_string(), problem));
            }
            let rho_ppm = (rho * 1e6).ceil() as u32;
            Ok(ClockModel::Bounded(ClockBound { rho_ppm }))
        }
    }
}

fn read(file: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    let opened = std::fs::File::open(file)?;
    opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::other("a group file has at most 1 MiB"));
    }
    Ok(text)
}

fn field(field: impl Into<String>, value: &str, problem: impl Into<String>) -> GroupError {
    GroupError::Field {
        field: field.into(),
        value: value.to_owned(),
        problem: problem.into(),
    }
}

fn check_name(name: &str, value: &str) -> Result<(), GroupError> {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if (1..=NAME_BYTES_MAX).contains(&value.len()) && value.chars().all(is_allowed) {
        return Ok(());
    }
    let problem = format!("give a name of 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`");
    Err(field(name, value, problem))
}

fn check_members(members: &[GroupMember]) -> Result<(), GroupError> {
    for (index, member) in members.iter().enumerate() {
        let GroupMember { name, address } = member;
        check_name("member.name", name)?;
        let port = address
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty());
        let port = port.and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) || address.len() > ADDRESS_BYTES_MAX {
            let problem = "give a host and a port above 0, such as 127.0.0.1:7401";
            return Err(field("member.address", address, problem));
        }
        let earlier = &members[..index];
        if earlier.iter().any(|it| it.name == *name) {
            let problem = "an earlier member has this name; give each member its own";
            return Err(field("member.name", name, problem));
        }
        if earlier.iter().any(|it| it.address == *address) {
            let problem = "an earlier member has this address; give each member its own";
            return Err(field("member.address", address, problem));
        }
    }
    Ok(())
}

/// Returns the first field in which two members' [`Group::agreement`]s differ, with both values.
pub(crate) fn difference(mine: &str, other: &str) -> Option<(String, String)> {
    let (mut mine, mut other) = (mine.lines(), other.lines());
    loop {
        match (mine.next(), other.next()) {
            (None, None) => return None,
            (mine, other) if mine == other => {}
            (mine, other) => {
                let words = |line: Option<&str>| line.unwrap_or("nothing more").to_owned();
                return Some((words(mine), words(other)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        group = "printers"
        clocks = "synchronised"
        epsilon_ms = 100

        [[member]]
        name = "a"
        address = "127.0.0.1:7401"

        [[member]]
        name = "b"
        address = "127.0.0.1:7402"

        [[member]]
        name = "c"
        address = "127.0.0.1:7403"
    "#;

    #[test]
    fn a_short_file_is_enough() {
        let group = Group::from_toml(GOOD).unwrap();
        assert_eq!(group.name(), "printers");
        assert_eq!(group.settings().term, Duration::from_secs(10));
        assert_eq!(group.member("c"), Some(MemberId(2)));
        assert_eq!(group.member("d"), None);
    }

    #[test]
    fn each_error_names_the_field_and_the_fix() {
        let wrong = |from: &str, to: &str| {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from:?} is in the file");
            Group::from_toml(&text).unwrap_err().to_string()
        };
        for (from, to, told) in [
            ("group = \"printers\"", "", "missing field `group`"),
            (
                "printers",
                "the printers",
                "`group` is \"the printers\": give a name",
            ),
            ("\"synchronised\"", "\"none\"", "`synchronised`"),
            ("epsilon_ms = 100", "", "needs `epsilon_ms`"),
            (
                "epsilon_ms = 100",
                "epsilon_ms = 100\nrho = 0.1",
                "`rho` is \"0.1\"",
            ),
            (
                "clocks = \"synchronised\"",
                "",
                "`epsilon_ms` is \"100\": it is for groups with",
            ),
            (
                "epsilon_ms = 100",
                "epsilon_ms = 5000",
                "increase `t_max_ms`",
            ),
            (
                "epsilon_ms = 100",
                "epsilon = 100",
                "unknown field `epsilon`",
            ),
            (
                "epsilon_ms = 100",
                "epsilon_ms = 100\nwarn_ms = 9000",
                "`warn_ms` is \"9000\"",
            ),
            (
                "\"b\"",
                "\"a\"",
                "`member.name` is \"a\": an earlier member",
            ),
            (
                "7402",
                "7401",
                "`member.address` is \"127.0.0.1:7401\": an earlier",
            ),
            (":7402", "", "give a host and a port"),
            ("127.0.0.1:7402", "10.0.0.2:7402", "insecure = true"),
        ] {
            let error = wrong(from, to);
            assert!(error.contains(told), "{error}");
        }
        let two = &GOOD[..GOOD.rfind("[[member]]").unwrap()];
        let error = Group::from_toml(two).unwrap_err().to_string();
        assert!(error.contains("3 to 15 members"), "{error}");
    }

    #[test]
    fn clocks_need_not_be_synchronised() {
        let text = GOOD.replace("clocks = \"synchronised\"", "rho = 0.0005");
        let group = Group::from_toml(&text.replace("epsilon_ms = 100", "")).unwrap();
        let bound = ClockBound { rho_ppm: 500 };
        assert_eq!(group.settings().clocks, ClockModel::Bounded(bound));
        assert!(group.agreement().contains("rho = 500e-6"));
        let wrong = text
            .replace("epsilon_ms = 100", "")
            .replace("0.0005", "0.3");
        let error = Group::from_toml(&wrong).unwrap_err().to_string();
        assert!(
            error.contains("`rho` is \"0.3\": it must be between 0 and 0.25"),
            "{error}"
        );
    }

    #[test]
    fn a_difference_between_groups_is_named() {
        let mine = Group::from_toml(GOOD).unwrap().agreement();
        assert_eq!(difference(&mine, &mine), None);
        let other = GOOD.replace("epsilon_ms = 100", "epsilon_ms = 200");
        let other = Group::from_toml(&other).unwrap().agreement();
        let told = difference(&mine, &other).unwrap();
        let expected = ("epsilon_ms = 100".to_owned(), "epsilon_ms = 200".to_owned());
        assert_eq!(told, expected);
        let shorter = mine.lines().next().unwrap();
        assert_eq!(difference(&mine, shorter).unwrap().1, "nothing more");
    }
}
