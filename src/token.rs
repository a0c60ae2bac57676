//! `leasehold token`: keeps the file of tokens that nodes read.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use leasehold_node::access::tokens::{self, ANONYMOUS, AccessError, Digest, Expiry, TokenEntry};
use rustix::fs::{FlockOperation, Gid, Uid, fchown, flock};

use crate::terminal::{note, say};

const EXAMPLES: &str = "\
Nodes read the file that `tokens` in [security] of their configuration names, and read it again within \
seconds of a change. It holds digests of tokens, not the tokens. Give every node the same file.

Clients take a token from a file that only its owner may read: --token-file, or the path in \
LEASEHOLD_TOKEN_FILE.

Examples:
  leasehold token new app1 --read users/ --write users/ --out app1.token
  leasehold token new backup --read '' --expires 2099-01-01 --out backup.token
  leasehold token new operator --admin --out operator.token
  leasehold token list
  leasehold token revoke app1";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct TokenArgs {
    /// The file of tokens
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        default_value = "tokens.toml"
    )]
    file: PathBuf,
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Makes a token, writes its digest and its rights to the file, and prints it once
    ///
    /// To read is to get, and to scan within a prefix; to write is to put and to delete. A compare-and-swap and
    /// a merge of fields need both. In a transaction, comparisons and gets need the right to read, and puts need
    /// the right to write. All its other operations need both. The name `anonymous` stands for clients without a token.
    New(NewArgs),
    /// Shows the tokens of the file, with their rights
    List,
    /// Takes a token out of the file: its connections end within seconds
    Revoke {
        /// The token's name
        name: String,
    },
}

#[derive(Args)]
struct NewArgs {
    /// What to call it, in the file and in lists
    name: String,
    /// It may read the keys that begin with PREFIX; '' for all keys; may be given again
    #[arg(long, value_name = "PREFIX")]
    read: Vec<String>,
    /// It may write the keys that begin with PREFIX; '' for all keys; may be given again
    #[arg(long, value_name = "PREFIX")]
    write: Vec<String>,
    /// It may see who holds which keys and what is asked for, change leases and move leadership
    #[arg(long)]
    admin: bool,
    /// It counts until this day begins in UTC (2099-01-01), or until a time (2099-01-01T12:00:00Z)
    #[arg(long, value_name = "DATE")]
    expires: Option<String>,
    /// Writes the token to a new file that only you may read, instead of to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn run(args: &TokenArgs) -> anyhow::Result<()> {
    match &args.command {
        TokenCommand::New(new) => add(&args.file, new),
        TokenCommand::List => list(&args.file),
        TokenCommand::Revoke { name } => revoke(&args.file, name),
    }
}

fn add(file: &Path, args: &NewArgs) -> anyhow::Result<()> {
    let name = &args.name;
    tokens::check_name(name).map_err(|accepted| anyhow::anyhow!("NAME: '{name}': {accepted}"))?;
    if name == ANONYMOUS && args.out.is_some() {
        bail!("--out: '{ANONYMOUS}' is for clients without a token, so there is none to write");
    }
    let expires = args.expires.as_deref().map(expiry).transpose()?;
    let locked = LockedTokenFile::take(file)?;
    let mut entries = locked.entries_or_none()?;
    if entries.iter().any(|entry| entry.name == *name) {
        bail!(
            "{0} has a token '{name}' already; choose another name, or revoke it first: `leasehold token \
             revoke {name} --file {0}`",
            file.display()
        );
    }
    let token = (name != ANONYMOUS).then(tokens::new_token).transpose()?;
    entries.push(TokenEntry {
        name: name.clone(),
        digest: token.as_ref().map(|token| Digest::of(token.as_bytes())),
        expires,
        read: args.read.clone(),
        write: args.write.clone(),
        admin: args.admin,
    });
    let Some(token) = token else {
        locked.write(&entries)?;
        note!(
            "{}: clients without a token have these rights now",
            file.display()
        );
        return Ok(());
    };
    match &args.out {
        Some(out) => {
            write_out(out, &token)?;
            locked.write(&entries).inspect_err(|_| {
                // The token is not in the file of tokens, so it is useless.
                let _ = std::fs::remove_file(out);
            })?;
            note!("the token is in {}", out.display());
        }
        None => {
            locked.write(&entries)?;
            say!("{token}");
            note!("it is shown this once; keep it in a file with mode 0600, for --token-file");
        }
    }
    if args.read.is_empty() && args.write.is_empty() && !args.admin {
        note!("note: it has no rights but to ask how a replica is; see --read, --write, --admin");
    }
    Ok(())
}

fn expiry(text: &str) -> anyhow::Result<Expiry> {
    let expiry: Result<Expiry, String> = text.parse();
    let expiry = expiry.map_err(|usage| anyhow::anyhow!("--expires: '{text}': {usage}"))?;
    if has_passed(expiry) {
        bail!("--expires: {expiry} has passed");
    }
    Ok(expiry)
}

fn has_passed(expiry: Expiry) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.is_ok_and(|now| now.as_secs() as i64 >= expiry.unix_s)
}

/// Writes a token to a new file. Returns an error if the file exists.
fn write_out(out: &Path, token: &str) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let created = options.write(true).create_new(true).mode(0o600).open(out);
    if let Err(error) = &created
        && error.kind() == ErrorKind::AlreadyExists
    {
        let out = out.display();
        bail!("--out: {out} exists, and is not written over; name a new file");
    }
    let mut created = created.with_context(|| format!("--out: creating {}", out.display()))?;
    let written = writeln!(created, "{token}").and_then(|()| created.sync_all());
    written.with_context(|| format!("--out: writing {}", out.display()))
}

fn list(file: &Path) -> anyhow::Result<()> {
    let entries = tokens::load(file)?;
    let wide = entries.iter().map(|entry| entry.name.len()).max();
    let wide = wide.unwrap_or(0).max(4);
    say!("{:wide$}  {:20}  may", "name", "until");
    for entry in &entries {
        let until = match entry.expires {
            None => "no end".to_owned(),
            Some(expires) if has_passed(expires) => "expired".to_owned(),
            Some(expires) => expires.to_string(),
        };
        say!("{:wide$}  {until:20}  {}", entry.name, may(entry));
    }
    Ok(())
}

/// Describes the rights of a token in words.
fn may(entry: &TokenEntry) -> String {
    let mut words = Vec::new();
    for (what, prefixes) in [("read", &entry.read), ("write", &entry.write)] {
        words.extend(prefixes.iter().map(|prefix| match prefix.as_str() {
            "" => format!("{what} all keys"),
            prefix => format!("{what} {prefix:?}"),
        }));
    }
    if entry.admin {
        words.push("administer".to_owned());
    }
    if words.is_empty() {
        "ask for the status".to_owned()
    } else {
        words.join(", ")
    }
}

fn revoke(file: &Path, name: &str) -> anyhow::Result<()> {
    let locked = LockedTokenFile::take(file)?;
    let mut entries = tokens::load(&locked.file)?;
    let before = entries.len();
    entries.retain(|entry| entry.name != name);
    if entries.len() == before {
        bail!(
            "{0} has no token '{name}'; `leasehold token list --file {0}` shows which there are",
            file.display()
        );
    }
    locked.write(&entries)?;
    say!(
        "{name} is revoked in {}: nodes that read this file end its connections within seconds",
        file.display()
    );
    Ok(())
}

/// The file of tokens, locked so that no other `leasehold token` can change it.
struct LockedTokenFile {
    file: PathBuf,
    dir: PathBuf,
    /// Lock on the directory that contains the file. The lock is not on the file itself, because
    /// the file is replaced.
    lock: File,
}

impl LockedTokenFile {
    fn take(file: &Path) -> anyhow::Result<LockedTokenFile> {
        // If the path is a link, its target is replaced, and not the link.
        let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        let dir = match file.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
            _ => PathBuf::from("."),
        };
        let lock = File::open(&dir).with_context(|| format!("opening {}", dir.display()))?;
        flock(&lock, FlockOperation::LockExclusive)
            .with_context(|| format!("locking {}", dir.display()))?;
        Ok(LockedTokenFile { file, dir, lock })
    }

    fn entries_or_none(&self) -> anyhow::Result<Vec<TokenEntry>> {
        match std::fs::metadata(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            _ => match tokens::load(&self.file) {
                Err(AccessError::Empty { .. }) => Ok(Vec::new()),
                loaded => Ok(loaded?),
            },
        }
    }

    /// Replaces the file in one step, so that a node reads either the old or the new file.
    fn write(&self, entries: &[TokenEntry]) -> anyhow::Result<()> {
        let writing = || format!("writing {}", self.file.display());
        let text = tokens::write(entries);
        if text.len() > tokens::FILE_BYTES_MAX {
            let (file, most) = (self.file.display(), tokens::FILE_BYTES_MAX);
            bail!("{file}: would be longer than {most} bytes, the most that a node reads");
        }
        // The new file has mode 0600.
        let mut new = tempfile::NamedTempFile::new_in(&self.dir).with_context(writing)?;
        new.write_all(text.as_bytes()).with_context(writing)?;
        self.keep_owner(new.as_file()).with_context(writing)?;
        new.as_file().sync_all().with_context(writing)?;
        new.persist(&self.file).with_context(writing)?;
        self.lock.sync_all().with_context(writing)
    }

    /// Gives the new file the owner and the group of the old file, so that a node can still read
    /// the file.
    fn keep_owner(&self, new: &File) -> std::io::Result<()> {
        let Ok(old) = std::fs::metadata(&self.file) else {
            return Ok(());
        };
        let now = new.metadata()?;
        if (old.uid(), old.gid()) == (now.uid(), now.gid()) {
            return Ok(());
        }
        let (owner, group) = (Uid::from_raw(old.uid()), Gid::from_raw(old.gid()));
        Ok(fchown(new, Some(owner), Some(group))?)
    }
}
