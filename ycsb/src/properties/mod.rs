//! The properties of a run: those of YCSB's property files, and `-p name=value` arguments.
//!
//! A property in a later file replaces the same property of an earlier file. An argument replaces
//! the property of every file. Each property keeps the place where it was set, so that an error can
//! name that place. A value that does not parse is an error; no other value is guessed in its
//! place.

mod catalog;
mod parse;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use catalog::{KNOWN, PropertyUse};

/// Workload files that ship with the program: (name, contents).
const EMBEDDED: [(&str, &str); 6] = [
    ("workloada", include_str!("../../workloads/workloada")),
    ("workloadb", include_str!("../../workloads/workloadb")),
    ("workloadc", include_str!("../../workloads/workloadc")),
    ("workloadd", include_str!("../../workloads/workloadd")),
    ("workloade", include_str!("../../workloads/workloade")),
    ("workloadf", include_str!("../../workloads/workloadf")),
];

/// Place where a property was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The property was set in a file.
    File {
        /// Name of the file, as the caller gave it.
        file: Arc<str>,
        /// Line on which the property begins, counted from 1.
        line: usize,
    },
    /// The property was set by an argument of the command line.
    Argument,
    /// The property was not set. It has its default, or no value.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { file, line } => write!(f, "{file}, line {line}"),
            Origin::Argument => f.write_str("command line"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// Reason why the properties cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PropertyError {
    /// A file does not exist, or cannot be read.
    #[error("cannot read property file {file}: {source}")]
    Read {
        /// Name of the file, as the caller gave it.
        file: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file does not exist, but has the name of a workload that ships with the program.
    #[error("there is no property file {file}; -P {name} is the one that ships with the program")]
    NoSuchWorkload {
        /// Name of the file, as the caller gave it.
        file: String,
        /// Name of the workload.
        name: String,
    },
    /// A file contains a malformed `\u` escape. The format of property files allows no other fault.
    #[error("{origin}: found a malformed \\u escape, expected \\u and four hexadecimal digits")]
    BadEscape {
        /// Place of the escape.
        origin: Origin,
    },
    /// An argument of `-p` has no name or no `=`.
    #[error("-p: found \"{found}\", expected name=value")]
    Argument {
        /// Text of the argument.
        found: String,
    },
    /// A property was set to a value that is not accepted.
    #[error("{origin}: {name}: found \"{found}\", expected {expected}")]
    Invalid {
        /// Place where the property was set.
        origin: Origin,
        /// Name of the property.
        name: String,
        /// Value of the property.
        found: String,
        /// Description of the values that the property accepts.
        expected: String,
    },
    /// A required property is not set.
    #[error("{name} is not set, expected {expected}")]
    Missing {
        /// Name of the property.
        name: &'static str,
        /// Description of the values that the property accepts.
        expected: &'static str,
    },
}

#[derive(Clone, Debug)]
struct Entry {
    value: String,
    origin: Origin,
}

/// The properties of a run, by their names.
#[derive(Clone, Debug, Default)]
pub struct Properties {
    entries: BTreeMap<String, Entry>,
    /// Warnings about files that were not found under the given name.
    notes: Vec<String>,
}

impl Properties {
    /// Returns an empty set of properties.
    pub fn new() -> Self {
        Properties::default()
    }

    /// Adds the properties of a file. If the file does not exist, but has the name of one of the
    /// six workloads that ship with the program, that workload is used. The name may begin with
    /// YCSB's folder, `workloads/`; in that case a warning is added.
    ///
    /// # Errors
    /// If the file cannot be read, or holds a malformed escape.
    pub fn load_file(&mut self, file: &str) -> Result<(), PropertyError> {
        let source = match std::fs::read(file) {
            Ok(bytes) => return self.load_bytes(file, bytes),
            Err(source) => source,
        };
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let text = embedded(name).filter(|_| source.kind() == std::io::ErrorKind::NotFound);
        match (text, folder) {
            (Some(text), "") if !file.starts_with('/') => self.load_text(file, text),
            (Some(text), "workloads") => {
                self.notes.push(format!(
                    "there is no file {file}: the {name} that ships with the program is used"
                ));
                self.load_text(file, text)
            }
            (Some(_), _) => Err(PropertyError::NoSuchWorkload {
                file: file.to_owned(),
                name: name.to_owned(),
            }),
            (None, _) => Err(PropertyError::Read {
                file: file.to_owned(),
                source,
            }),
        }
    }

    /// Adds the properties in the contents of a file. Error messages call the file `file`.
    ///
    /// # Errors
    /// If the contents hold a malformed escape.
    pub fn load_bytes(&mut self, file: &str, contents: Vec<u8>) -> Result<(), PropertyError> {
        self.load_text(file, &decode(contents))
    }

    /// Adds the properties in the text of a file. Error messages call the file `file`.
    ///
    /// # Errors
    /// If the text holds a malformed escape.
    pub fn load_text(&mut self, file: &str, text: &str) -> Result<(), PropertyError> {
        let file: Arc<str> = file.into();
        let origin = |line| Origin::File {
            file: Arc::clone(&file),
            line,
        };
        let lines = parse::parse(text).map_err(|bad| PropertyError::BadEscape {
            origin: origin(bad.line),
        })?;
        for line in lines {
            self.insert(line.key, line.value, origin(line.number));
        }
        Ok(())
    }

    /// Adds a `name=value` from the command line.
    ///
    /// # Errors
    /// If there is no name or no `=`.
    pub fn load_argument(&mut self, argument: &str) -> Result<(), PropertyError> {
        match argument.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                self.set(name.trim(), value);
                Ok(())
            }
            _ => Err(PropertyError::Argument {
                found: argument.to_owned(),
            }),
        }
    }

    /// Sets a property, with the same effect as the argument `-p name=value`.
    pub fn set(&mut self, name: &str, value: &str) {
        self.insert(name.to_owned(), value.to_owned(), Origin::Argument);
    }

    fn insert(&mut self, name: String, value: String, origin: Origin) {
        self.entries.insert(name, Entry { value, origin });
    }

    /// Returns the value of a property, without surrounding blanks. If the property is not set,
    /// returns the default of the property; `None` if there is no default.
    pub fn get(&self, name: &str) -> Option<&str> {
        match self.entries.get(name) {
            Some(entry) => Some(entry.value.trim()),
            None => match catalog::lookup(name)? {
                PropertyUse::Default(value) => Some(value),
                PropertyUse::Optional | PropertyUse::Ignored(_) => None,
            },
        }
    }

    /// Returns the value of a property; `None` if it is empty or not set.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }

    /// Returns true if a property was set, even to an empty value.
    pub fn is_set(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Returns the parsed value of a property; `None` if it is empty or not set.
    ///
    /// # Errors
    /// If the value does not parse, or `accept` refuses it. The error contains the text `expected`,
    /// which describes the accepted values.
    pub fn parsed<T: FromStr>(
        &self,
        name: &str,
        expected: &str,
        accept: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, PropertyError> {
        let Some(value) = self.text(name) else {
            return Ok(None);
        };
        match value.parse().ok().filter(accept) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(self.invalid(name, expected)),
        }
    }

    /// Returns the value of a property that is a number. The property must be set or have a
    /// default.
    ///
    /// # Errors
    /// If there is no value, the value does not parse, or `accept` refuses it.
    pub fn number<T: FromStr>(
        &self,
        name: &'static str,
        expected: &'static str,
        accept: impl Fn(&T) -> bool,
    ) -> Result<T, PropertyError> {
        self.parsed(name, expected, accept)?
            .ok_or(PropertyError::Missing { name, expected })
    }

    /// Returns the value of a property that is a whole number below 2^63 (the limit of the numbers
    /// in YCSB's keys).
    ///
    /// # Errors
    /// If there is no value, or the value is not such a number.
    pub fn count(&self, name: &'static str) -> Result<u64, PropertyError> {
        self.number(name, "a whole number from 0 on", |n: &u64| *n < 1 << 63)
    }

    /// Returns the value of a property that is a number from 0 to 1: a probability or a share.
    ///
    /// # Errors
    /// If there is no value, or the value is not such a number.
    pub fn fraction(&self, name: &'static str) -> Result<f64, PropertyError> {
        self.number(name, "a number from 0 to 1", |x| (0.0..=1.0).contains(x))
    }

    /// Returns the value of a property that is `true` or `false`, in upper or lower case.
    ///
    /// # Errors
    /// If there is no value, or the value is another word.
    pub fn flag(&self, name: &'static str) -> Result<bool, PropertyError> {
        self.choice(name, &[("true", true), ("false", false)])
    }

    /// Returns the choice that `words` assigns to the value of a property. Upper and lower case are
    /// not distinguished.
    ///
    /// # Errors
    /// If there is no value, or the value is not in `words`.
    pub fn choice<T: Copy>(
        &self,
        name: &'static str,
        words: &[(&str, T)],
    ) -> Result<T, PropertyError> {
        let value = self.get(name).unwrap_or_default();
        let found = words
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(value));
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.invalid(name, &format!("one of {}", words.join(", ")))
        })
    }

    /// Builds the error for a property that does not accept its present value. `name` is the name
    /// of the property.
    pub fn invalid(&self, name: &str, expected: &str) -> PropertyError {
        let entry = self.entries.get(name);
        PropertyError::Invalid {
            origin: entry.map_or(Origin::Default, |entry| entry.origin.clone()),
            name: name.to_owned(),
            found: self.get(name).unwrap_or_default().to_owned(),
            expected: expected.to_owned(),
        }
    }

    /// Returns a warning for every property that is set but has no effect, and for every file that
    /// was not found under the given name.
    pub fn warnings(&self) -> Vec<String> {
        let warning = |(name, entry): (&String, &Entry)| match catalog::lookup(name) {
            None => Some(format!("{}: unknown property {name}", entry.origin)),
            Some(PropertyUse::Ignored(why)) => {
                Some(format!("{}: {name} is ignored: {why}", entry.origin))
            }
            Some(_) => None,
        };
        let of_entries = self.entries.iter().filter_map(warning);
        self.notes.iter().cloned().chain(of_entries).collect()
    }

    /// Returns every property that has an effect, with the value that was set or the default.
    pub fn effective(&self) -> Vec<(&str, &str)> {
        KNOWN
            .iter()
            .filter(|(_, what)| !matches!(what, PropertyUse::Ignored(_)))
            .filter_map(|(name, _)| Some((*name, self.text(name)?)))
            .collect()
    }
}

/// Decodes the contents of a file. A byte order mark determines the encoding. Without a byte order
/// mark, contents that are valid UTF-8 are decoded as UTF-8. Other contents are decoded as Latin-1,
/// which YCSB always uses.
fn decode(bytes: Vec<u8>) -> String {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
        String::from_utf16_lossy(&units.collect::<Vec<_>>())
    };
    match bytes.as_slice() {
        [0xEF, 0xBB, 0xBF, rest @ ..] => decode(rest.to_vec()),
        [0xFF, 0xFE, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xFE, 0xFF, rest @ ..] => utf16(rest, u16::from_be_bytes),
        _ => String::from_utf8(bytes)
            .unwrap_or_else(|error| error.as_bytes().iter().map(|&b| char::from(b)).collect()),
    }
}

fn embedded(name: &str) -> Option<&'static str> {
    let found = EMBEDDED.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Properties {
        let mut properties = Properties::new();
        properties.load_text("test.properties", text).unwrap();
        properties
    }

    #[test]
    fn arguments_win_over_later_files_over_earlier_ones() {
        let mut properties = of("threadcount=1\nfieldcount=2\nseed=3");
        properties.load_text("second", "fieldcount=20").unwrap();
        properties.load_argument("threadcount = 8 ").unwrap();
        assert_eq!(properties.get("threadcount"), Some("8"));
        assert_eq!(properties.get("fieldcount"), Some("20"));
        assert_eq!(properties.get("seed"), Some("3"));
        assert_eq!(properties.get("fieldlength"), Some("100"), "the default");
        assert_eq!(properties.get("recordcount"), None);
    }

    #[test]
    fn an_error_names_place_property_value_and_what_is_accepted() {
        let message = |result: Result<bool, PropertyError>| result.unwrap_err().to_string();
        let properties = of("\nreadallfields=maybe");
        assert_eq!(
            message(properties.flag("readallfields")),
            "test.properties, line 2: readallfields: found \"maybe\", expected one of true, false"
        );
        let mut properties = Properties::new();
        properties.load_argument("recordcount=-5").unwrap();
        assert_eq!(
            properties.count("recordcount").unwrap_err().to_string(),
            "command line: recordcount: found \"-5\", expected a whole number from 0 on"
        );
        let missing = Properties::new().count("recordcount").unwrap_err();
        assert!(missing.to_string().starts_with("recordcount is not set"));
    }

    #[test]
    fn malformed_input_is_refused() {
        let mut properties = Properties::new();
        for argument in ["recordcount", "=5", ""] {
            assert!(properties.load_argument(argument).is_err(), "{argument}");
        }
        let error = properties.load_text("f", "a=1\nb=\\u12").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("f, line 2: found a malformed")
        );
        let error = properties
            .load_file("/nowhere/such.properties")
            .unwrap_err();
        assert!(error.to_string().contains("/nowhere/such.properties"));
        assert!(of("target=nan").fraction("target").is_err());
    }

    #[test]
    fn shipped_workloads_are_found_by_name() {
        for name in ["workloada", "workloads/workloade"] {
            let mut properties = Properties::new();
            properties.load_file(name).unwrap();
            assert_eq!(properties.get("recordcount"), Some("1000"), "{name}");
            assert!(properties.warnings().is_empty());
        }
    }

    #[test]
    fn a_workload_in_a_folder_without_it_is_not_replaced_by_another() {
        for name in [
            "wrongdir/workloadc",
            "/opt/ycsb/workloads/workloadf",
            "./workloada",
            "/workloadb",
        ] {
            let refusal = Properties::new().load_file(name).unwrap_err().to_string();
            assert!(refusal.contains(name), "{refusal}");
            let bare = name.rsplit_once('/').unwrap().1;
            assert!(refusal.contains(&format!("; -P {bare} is")), "{refusal}");
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_property() {
        let text = "recordcount=5\nlabel=é";
        let utf16 = |unit: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(unit).collect();
        let files: [(&[u8], Vec<u8>); 3] = [
            (b"\xEF\xBB\xBF", text.into()),
            (b"\xFF\xFE", utf16(u16::to_le_bytes)),
            (b"\xFE\xFF", utf16(u16::to_be_bytes)),
        ];
        for (mark, contents) in files {
            let mut properties = Properties::new();
            let file = [mark, &contents].concat();
            properties.load_bytes("f", file).unwrap();
            assert_eq!(properties.get("recordcount"), Some("5"), "{mark:?}");
            assert_eq!(properties.get("label"), Some("é"), "{mark:?}");
            assert!(properties.warnings().is_empty());
        }
    }

    #[test]
    fn warnings_are_for_what_has_no_effect() {
        let warnings = of("recordcount=1\nrecordcuont=2\nmeasurementtype=histogram").warnings();
        assert_eq!(
            warnings,
            [
                "test.properties, line 3: measurementtype is ignored: measurements are always HdrHistograms",
                "test.properties, line 2: unknown property recordcuont",
            ]
        );
    }

    #[test]
    fn the_effective_properties_include_defaults_and_nothing_unknown() {
        let properties = of("fieldcount=3\nmystery=1\ndb=x");
        let effective = properties.effective();
        assert!(effective.contains(&("fieldcount", "3")));
        assert!(effective.contains(&("fieldlength", "100")));
        assert!(
            !effective
                .iter()
                .any(|(name, _)| ["mystery", "db"].contains(name))
        );
    }

    #[test]
    fn files_that_are_not_utf8_are_latin_1() {
        assert_eq!(decode(vec![b'l', b'=', 0xE9]), "l=é");
        assert_eq!(decode("l=é".into()), "l=é");
    }

    #[test]
    fn every_known_name_is_there_once() {
        let mut names: Vec<_> = KNOWN.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KNOWN.len());
    }
}
