//! Reading, checking and writing of the token file. The file contains only digests, so its readers
//! learn no token. Tokens are random and long, so one plain digest is enough.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use leasehold_transport::{PrivateFileError, read_private};
use leasehold_wire::{KEY_BYTES_MAX, TOKEN_MARK};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::Deserialize;
use toml::value::{Datetime, Offset};

use super::rights::{Keys, Rights};
use crate::config::from_toml;

/// Maximum size of a token file in bytes. It is enough for thousands of tokens.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Number of random bytes in a token.
const TOKEN_BYTES: usize = 32;
/// Name of the optional entry in a token file for clients without a token.
pub const ANONYMOUS: &str = "anonymous";
const NAME_BYTES_MAX: usize = 64;

/// SHA-256 digest of a token. The digest identifies the token in files and tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Returns the digest of a token. `token` is in the form in which clients send it.
    pub fn of(token: &[u8]) -> Digest {
        let digest = ring::digest::digest(&ring::digest::SHA256, token);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Digest(bytes)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Digest {
    type Err = ();

    fn from_str(text: &str) -> Result<Digest, ()> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(());
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = text.get(2 * index..2 * index + 2).ok_or(())?;
            let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            *byte = u8::from_str_radix(digits, 16).map_err(|_| ())?;
            is_hex.then_some(()).ok_or(())?;
        }
        Ok(Digest(bytes))
    }
}

/// Returns a new random token. The token is not stored anywhere else.
///
/// # Errors
/// Fails if the operating system provides no random bytes.
pub fn new_token() -> Result<String, AccessError> {
    let mut bytes = [0; TOKEN_BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| AccessError::NoRandomness)?;
    Ok(format!("{TOKEN_MARK}{}", Digest(bytes)))
}

/// Time at which a token expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The time as it was written in the file.
    written: Datetime,
    /// The time in seconds since the beginning of 1970, UTC.
    pub unix_s: i64,
}

impl Expiry {
    fn new(written: Datetime) -> Result<Expiry, String> {
        let Some(date) = written.date else {
            return Err("a date is required, as in 2027-01-01".to_owned());
        };
        let days = days_since_1970(date.year.into(), date.month.into(), date.day.into());
        let (time_s, offset_s) = match (written.time, written.offset) {
            (None, _) => (0, 0),
            (Some(_), None) => {
                return Err(
                    "a time needs its offset from UTC, as in 2027-01-01T12:00:00Z".to_owned(),
                );
            }
            (Some(time), Some(offset)) => {
                let minutes = i64::from(time.hour) * 60 + i64::from(time.minute);
                let offset_min = match offset {
                    Offset::Z => 0,
                    Offset::Custom { minutes } => minutes.into(),
                };
                let seconds = i64::from(time.second.unwrap_or(0));
                (minutes * 60 + seconds, offset_min * 60_i64)
            }
        };
        Ok(Expiry {
            written,
            unix_s: days * 86_400 + time_s - offset_s,
        })
    }
}

impl FromStr for Expiry {
    type Err = String;

    fn from_str(text: &str) -> Result<Expiry, String> {
        let written = text.parse::<Datetime>();
        let usage = |_| "a date is required, as in 2027-01-01 or 2027-01-01T12:00:00Z".to_owned();
        Expiry::new(written.map_err(usage)?)
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.written.fmt(f)
    }
}

/// Returns the number of days from 1970-01-01 to a day of the Gregorian calendar. In the
/// calculation, years begin in March, so that a leap day is the last day of its year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // 1 March of the year 0 is 719,468 days before 1970-01-01.
    year * 365 + leap_days + day_of_year - 719_468
}

/// Entry of one token in a token file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenEntry {
    /// Name of the entry, for readers of the file and for logs.
    pub name: String,
    /// Digest of the token. `None` in the entry [`ANONYMOUS`], which is for clients without a
    /// token.
    pub digest: Option<Digest>,
    /// Time at which the token becomes invalid; `None` if the token never becomes invalid.
    pub expires: Option<Expiry>,
    /// Prefixes of the keys that the client may read.
    pub read: Vec<String>,
    /// Prefixes of the keys that the client may write.
    pub write: Vec<String>,
    /// Whether the client may inspect and change the entire cluster.
    pub admin: bool,
}

impl TokenEntry {
    /// Returns the rights that the entry gives.
    pub fn rights(&self) -> Rights {
        let keys = |prefixes: &[String]| {
            let prefixes = prefixes.iter().map(|prefix| prefix.clone().into());
            Keys::with_prefixes(prefixes)
        };
        Rights {
            read: keys(&self.read),
            write: keys(&self.write),
            admin: self.admin,
        }
    }
}

/// Reason why a token file is refused.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file cannot be read, or users other than its owner may read it.
    #[error("file of tokens ([security] tokens): {}", with_fix(.0))]
    File(#[from] PrivateFileError),
    /// The file is not TOML, or has fields of the wrong name or type.
    #[error("{}: {problem}", file.display())]
    Syntax {
        /// Path of the file.
        file: PathBuf,
        /// Position and description of the problem, in the parser's words.
        problem: String,
    },
    /// An entry is not acceptable.
    #[error("{}: token {name:?}: {problem}", file.display())]
    Entry {
        /// Path of the file.
        file: PathBuf,
        /// Name of the entry.
        name: String,
        /// Problem with the entry, and the values that are accepted.
        problem: String,
    },
    /// The file has no key `token`. Perhaps the file is still being written.
    #[error(
        "{}: holds no token: to revoke all, write `token = []`; to ask clients for none, take `tokens` out of \
         [security] and start the node again",
        file.display()
    )]
    Empty {
        /// Path of the file.
        file: PathBuf,
    },
    /// No new token can be generated.
    #[error("the operating system gives no random bytes for a token")]
    NoRandomness,
}

/// Returns the text of an error, with advice on a fix if the file does not exist. The texts of
/// other errors already contain advice.
fn with_fix(error: &PrivateFileError) -> String {
    match error {
        PrivateFileError::Read { file, source } if source.kind() == ErrorKind::NotFound => {
            let file = file.display();
            format!("{error}; `leasehold token new NAME --file {file}` makes it")
        }
        _ => error.to_string(),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    token: Option<Vec<RawToken>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawToken {
    name: String,
    sha256: Option<String>,
    expires: Option<Datetime>,
    #[serde(default)]
    rights: Vec<RawRight>,
    #[serde(default)]
    admin: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRight {
    prefix: String,
    may: RightKind,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum RightKind {
    Read,
    Write,
}

/// Reads the entries of a token file. Only the owner of the file may have permission to read it.
///
/// # Errors
/// Returns the first problem with the file.
pub fn load(file: &Path) -> Result<Vec<TokenEntry>, AccessError> {
    parse(&read_private(file, FILE_BYTES_MAX)?, file)
}

/// Reads the entries in the text of a token file.
///
/// # Errors
/// Returns the first problem with the text.
pub fn parse(text: &str, file: &Path) -> Result<Vec<TokenEntry>, AccessError> {
    let raw: RawFile = from_toml(text).map_err(|error| AccessError::Syntax {
        file: file.to_owned(),
        problem: error.to_string(),
    })?;
    let Some(found) = raw.token else {
        let file = file.to_owned();
        return Err(AccessError::Empty { file });
    };
    let mut entries = Vec::with_capacity(found.len());
    let (mut names, mut digests) = (BTreeSet::new(), BTreeSet::new());
    for raw in found {
        let name = raw.name.clone();
        let refuse = |problem| AccessError::Entry {
            file: file.to_owned(),
            name: name.clone(),
            problem,
        };
        let entry = entry(raw).map_err(refuse)?;
        if !names.insert(entry.name.clone()) {
            return Err(refuse("two tokens have this name; rename one".to_owned()));
        }
        if entry.digest.is_some_and(|digest| !digests.insert(digest)) {
            let problem = "another token has this sha256; give each a token of its own";
            return Err(refuse(problem.to_owned()));
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn entry(raw: RawToken) -> Result<TokenEntry, String> {
    check_name(&raw.name)?;
    let is_anonymous = raw.name == ANONYMOUS;
    let digest = match raw.sha256 {
        None if is_anonymous => None,
        None => return Err("sha256 is missing: the digest of the token, in hex".to_owned()),
        Some(_) if is_anonymous => {
            return Err("sha256 is not for who says no token; leave it out".to_owned());
        }
        Some(hex) => Some(hex.parse().map_err(|()| {
            "sha256 is not 64 hex digits; `leasehold token new` writes them".to_owned()
        })?),
    };
    let long = raw.rights.iter().find(|it| it.prefix.len() > KEY_BYTES_MAX);
    if let Some(long) = long {
        let found = long.prefix.len();
        return Err(format!(
            "a prefix has {found} bytes; keys have at most {KEY_BYTES_MAX}"
        ));
    }
    let prefixes = |may| {
        let granted = raw.rights.iter().filter(move |right| right.may == may);
        granted.map(|right| right.prefix.clone()).collect()
    };
    Ok(TokenEntry {
        read: prefixes(RightKind::Read),
        write: prefixes(RightKind::Write),
        expires: raw.expires.map(Expiry::new).transpose()?,
        name: raw.name,
        digest,
        admin: raw.admin,
    })
}

/// Checks that a name is allowed for a token.
///
/// # Errors
/// Returns a description of the accepted names.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@/".contains(&byte);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    Err(format!(
        "accepted names are 1 to {NAME_BYTES_MAX} letters, digits, '-', '_', '.', '@' and '/'"
    ))
}

/// Returns the text of a token file with these entries.
pub fn write(entries: &[TokenEntry]) -> String {
    let mut text =
        "# Tokens of clients, as `leasehold token` keeps them: it leaves out other comments.\n\
                    # A node reads this file again within seconds of a change.\n"
            .to_owned();
    if entries.is_empty() {
        // This line distinguishes the file from one that was cut off.
        text += "\ntoken = []\n";
    }
    for entry in entries {
        // Writing to a text cannot fail.
        let _ = write_entry(&mut text, entry);
    }
    text
}

fn write_entry(text: &mut String, entry: &TokenEntry) -> fmt::Result {
    let string = |value: &str| toml::Value::String(value.to_owned());
    write!(text, "\n[[token]]\nname = {}\n", string(&entry.name))?;
    if let Some(digest) = entry.digest {
        writeln!(text, "sha256 = \"{digest}\"")?;
    }
    if let Some(expires) = entry.expires {
        writeln!(text, "expires = {expires}")?;
    }
    writeln!(text, "rights = [")?;
    for (prefixes, may) in [(&entry.read, "read"), (&entry.write, "write")] {
        for prefix in prefixes {
            let prefix = string(prefix);
            writeln!(text, "    {{ prefix = {prefix}, may = \"{may}\" }},")?;
        }
    }
    writeln!(text, "]\nadmin = {}", entry.admin)
}
