//! Measures the language of comments and documents. Each figure may fall, but must not rise.
//!
//! `.ci/language.toml` has the figures of each package. The test fails if a figure is above the one
//! in that file. It also fails if a figure has fallen and the file was not updated.
//! `LANGUAGE=write cargo test --test language` updates the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const FIGURES: &str = ".ci/language.toml";
/// First words that make a doc comment hard to read, because they begin a clause without a noun.
const OPENERS: [&str; 12] = [
    "What", "Whatever", "Who", "Whom", "Whose", "Whoever", "Which", "How", "Such", "So many",
    "So much", "Of",
];
const PRONOUNS: [&str; 5] = ["who", "whom", "whose", "whoever", "whomever"];
/// Maximum number of words of a sentence. Longer sentences must often be read twice.
const WORDS_MAX: usize = 30;
/// Names of types that several packages may export.
const COMMON: [&str; 4] = ["Error", "Config", "Settings", "Stats"];

/// Figures of one package, each under its name.
type Figures = BTreeMap<&'static str, usize>;

/// Comments and type names of one package.
#[derive(Default)]
struct Package {
    /// First lines of doc comments.
    docs: Vec<String>,
    /// All words of all comments.
    words: Vec<String>,
    /// Names of types, each with the number of its definitions.
    types: BTreeMap<String, usize>,
    /// Names that the package exports from its root.
    exported: BTreeSet<String>,
}

impl Package {
    fn add(&mut self, source: &str, is_test: bool) {
        let mut within = false;
        for raw in source.lines() {
            let line = raw.trim_start();
            let comment = ["///", "//!", "//"]
                .iter()
                .find_map(|mark| Some((*mark, line.strip_prefix(mark)?)));
            let Some((mark, text)) = comment else {
                within = false;
                if !is_test && let Some(name) = type_name(raw) {
                    *self.types.entry(name.to_owned()).or_default() += 1;
                    if raw.starts_with("pub ") {
                        self.exported.insert(name.to_owned());
                    }
                }
                continue;
            };
            self.words.extend(words(text));
            if mark != "//" && !within {
                self.docs.push(text.trim().to_owned());
            }
            within = mark != "//";
        }
    }

    fn figures(&self) -> Figures {
        let opens = |doc: &&String| OPENERS.iter().any(|opener| opens_with(doc, opener));
        let shared = self.types.values().filter(|count| **count > 1);
        Figures::from([
            ("docs", self.docs.len()),
            ("openers", self.docs.iter().filter(opens).count()),
            ("pronouns", count_pronouns(&self.words)),
            (
                "see_the_module",
                self.docs
                    .iter()
                    .filter(|doc| doc.starts_with("See the module"))
                    .count(),
            ),
            ("shared_type_names", shared.count()),
            ("types", self.types.len()),
            ("words", self.words.len()),
        ])
    }
}

fn opens_with(doc: &str, opener: &str) -> bool {
    let rest = doc.strip_prefix(opener);
    rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
}

fn count_pronouns(words: &[String]) -> usize {
    let is_pronoun = |word: &&String| PRONOUNS.contains(&word.to_lowercase().as_str());
    words.iter().filter(is_pronoun).count()
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '\'');
    words.filter(|word| !word.is_empty()).map(str::to_owned)
}

/// Returns the name of the type that a line defines. Returns `None` for an indented line.
fn type_name(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ')?.1,
        None => line,
    };
    let rest = ["struct ", "enum ", "trait ", "type "]
        .iter()
        .find_map(|kind| line.strip_prefix(kind))?;
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    Some(&rest[..end.unwrap_or(rest.len())])
}

/// Returns the sentences of a Markdown text. The end of a paragraph, of a list item or of a table
/// cell also ends a sentence.
fn sentences(text: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    let mut is_code = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            is_code = !is_code;
        }
        let starts_again = line.is_empty()
            || line.starts_with(['#', '|', '>'])
            || line.starts_with("```")
            || line.starts_with("- ")
            || line.starts_with("* ")
            || line
                .split_once(". ")
                .is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if starts_again {
            blocks.push(String::new());
        }
        if is_code {
            continue;
        }
        match line.strip_prefix('|') {
            Some(cells) => blocks.extend(cells.split('|').map(str::to_owned)),
            None => {
                let block = blocks.last_mut().expect("one at the start");
                _ = write!(block, "{line} ");
            }
        }
    }
    let ends = [". ", "! ", "? ", ".) "];
    let mut found = Vec::new();
    for block in blocks {
        let mut rest = block.as_str();
        while let Some(end) = ends.iter().filter_map(|end| rest.find(end)).min() {
            let (sentence, after) = rest.split_at(end + 1);
            found.push(sentence.to_owned());
            rest = after;
        }
        found.push(rest.to_owned());
    }
    found.retain(|sentence| words(sentence).next().is_some());
    found
}

fn figures_of_documents(root: &Path) -> Figures {
    let mut files = vec![root.join("README.md")];
    collect(&root.join("docs"), "md", &mut files);
    let text = |file: &PathBuf| std::fs::read_to_string(file).unwrap();
    let sentences: Vec<String> = files
        .iter()
        .flat_map(|file| sentences(&text(file)))
        .collect();
    let is_long = |sentence: &&String| words(sentence).count() > WORDS_MAX;
    let all: Vec<String> = sentences
        .iter()
        .flat_map(|sentence| words(sentence))
        .collect();
    Figures::from([
        ("sentences", sentences.len()),
        ("long_sentences", sentences.iter().filter(is_long).count()),
        ("pronouns", count_pronouns(&all)),
        ("words", all.len()),
    ])
}

fn collect(folder: &Path, kind: &str, files: &mut Vec<PathBuf>) {
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" || name == "results" {
            continue;
        }
        if path.is_dir() {
            collect(&path, kind, files);
        } else if path.extension().is_some_and(|found| found == kind) {
            files.push(path);
        }
    }
}

/// Returns the packages of the workspace by folder. A source file belongs to the nearest
/// `Cargo.toml` above it.
fn packages(root: &Path) -> BTreeMap<String, Package> {
    let mut manifests = Vec::new();
    collect(root, "toml", &mut manifests);
    manifests.retain(|file| file.file_name().is_some_and(|name| name == "Cargo.toml"));
    let folders: Vec<&Path> = manifests.iter().filter_map(|file| file.parent()).collect();
    let mut sources = Vec::new();
    collect(root, "rs", &mut sources);
    let mut packages: BTreeMap<String, Package> = BTreeMap::new();
    for source in sources {
        let inside = folders.iter().filter(|folder| source.starts_with(folder));
        let folder = inside.max_by_key(|folder| folder.components().count());
        let folder = folder
            .expect("the root is a package")
            .strip_prefix(root)
            .unwrap();
        let name = match folder.to_string_lossy().into_owned() {
            name if name.is_empty() => "leasehold".to_owned(),
            name => name,
        };
        let within = source
            .strip_prefix(root)
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let is_test = ["tests", "benches", "examples"].iter().any(|part| {
            within
                .split('/')
                .any(|found| found == *part || found == format!("{part}.rs"))
        });
        let text = std::fs::read_to_string(&source).unwrap();
        packages.entry(name).or_default().add(&text, is_test);
    }
    packages
}

#[test]
fn comments_and_documents_are_no_harder_to_read_than_before() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let packages = packages(root);
    let mut now: BTreeMap<String, Figures> = packages
        .iter()
        .map(|(name, package)| (name.clone(), package.figures()))
        .collect();
    now.insert("documents".to_owned(), figures_of_documents(root));
    now.insert("workspace".to_owned(), exported_twice(&packages));
    println!("{}", table(&now));
    let file = root.join(FIGURES);
    if std::env::var("LANGUAGE").is_ok_and(|value| value == "write") {
        std::fs::write(&file, text(&now)).unwrap();
        return;
    }
    let allowed: BTreeMap<String, BTreeMap<String, usize>> =
        toml::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let mut problems = Vec::new();
    for (name, figures) in &now {
        for (figure, found) in counted(figures) {
            let most = allowed.get(name).and_then(|all| all.get(figure)).copied();
            let most = most.unwrap_or_default();
            if found > most {
                problems.push(format!("{name}: {figure} is {found}, more than {most}"));
            } else if found < most {
                problems.push(format!("{name}: {figure} fell from {most} to {found}"));
            }
        }
    }
    assert!(
        problems.is_empty(),
        "{}\nreword what rose; if all fell, LANGUAGE=write cargo test --test language lowers {FIGURES}",
        problems.join("\n")
    );
}

/// Returns the figures that must not rise. The other figures are totals, so they may rise.
fn counted(figures: &Figures) -> impl Iterator<Item = (&'static str, usize)> {
    let whole = ["docs", "words", "types", "sentences"];
    let figures = figures
        .iter()
        .filter(move |(name, _)| !whole.contains(name));
    figures.map(|(name, count)| (*name, *count))
}

fn text(all: &BTreeMap<String, Figures>) -> String {
    let mut text = String::from(
        "# Figures of `tests/language.rs`, by folder of the package. They may fall and never rise.\n",
    );
    for (name, figures) in all {
        _ = write!(text, "\n[\"{name}\"]\n");
        for (figure, count) in counted(figures) {
            _ = writeln!(text, "{figure} = {count}");
        }
    }
    text
}

fn table(all: &BTreeMap<String, Figures>) -> String {
    let mut text = String::new();
    let share = |figures: &Figures, part: &str, whole: &str, of: f64| {
        let (part, whole) = (figures.get(part)?, figures.get(whole)?);
        Some(*part as f64 * of / (*whole).max(1) as f64)
    };
    let mut row = |name: &str, figures: &Figures| {
        let cells = [
            ("openers %", share(figures, "openers", "docs", 100.0)),
            (
                "pronouns in 1,000 words",
                share(figures, "pronouns", "words", 1000.0),
            ),
            (
                "shared type names %",
                share(figures, "shared_type_names", "types", 100.0),
            ),
            (
                "long sentences %",
                share(figures, "long_sentences", "sentences", 100.0),
            ),
        ];
        let cells = cells
            .iter()
            .filter_map(|(name, share)| Some(format!("{name} {:.2}", (*share)?)));
        _ = writeln!(text, "{name:<20} {}", cells.collect::<Vec<_>>().join(", "));
    };
    let mut sum = Figures::new();
    for (name, figures) in all {
        row(name, figures);
        if name != "documents" {
            for (figure, count) in figures {
                *sum.entry(figure).or_default() += count;
            }
        }
    }
    row("all", &sum);
    text
}

/// Returns the number of names that are exported by more than one package.
fn exported_twice(packages: &BTreeMap<String, Package>) -> Figures {
    let mut exporters: BTreeMap<&str, usize> = BTreeMap::new();
    for name in packages.values().flat_map(|package| &package.exported) {
        *exporters.entry(name).or_default() += 1;
    }
    let twice = exporters
        .iter()
        .filter(|(name, count)| **count > 1 && !COMMON.contains(name));
    Figures::from([("names_exported_twice", twice.count())])
}
