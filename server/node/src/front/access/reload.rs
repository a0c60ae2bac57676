//! The table of tokens in force, and the tracking of changes to its file.
//!
//! Another thread reads the file every second and compares it with the text that was read before.
//! So a change is noticed even if the time stamp of the file is the same. If the file cannot be
//! read or parsed, the last known tokens stay in force. The log then repeats the problem, because a
//! token that was meant to be revoked may be among them. Tokens continue to expire in the meantime.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_transport::read_private;
use leasehold_wire::Error;
use leasehold_wire::request::Body;
use tokio::time::sleep;

use super::table::{AuthState, TokenTable};
use super::tokens::{self, AccessError, FILE_BYTES_MAX};
use crate::watch::files::{CHECK_INTERVAL, FileWatcher};

/// Current table of tokens. The table is updated when the token file changes.
#[derive(Debug)]
pub(crate) struct Access {
    file: PathBuf,
    table: RefCell<TokenTable>,
    /// Time at which the rights of all connections were last looked up, in seconds since 1970.
    renewed_s: Cell<i64>,
    /// Whether the token file cannot be used in its current state.
    outdated: Cell<bool>,
    /// Number of connections that were refused because they sent no valid token.
    unauthenticated: Cell<u64>,
    /// Number of requests that were refused because a right was missing.
    denied: Cell<u64>,
    /// Number of connections that were closed because their token was revoked or had expired.
    revoked: Cell<u64>,
}

impl Access {
    /// Loads the tokens from a token file.
    ///
    /// # Errors
    /// Fails if the file cannot be used.
    pub(crate) fn load(file: &Path) -> Result<Access, AccessError> {
        let entries = tokens::load(file)?;
        tracing::info!(file = %file.display(), tokens = entries.len(), "clients need a token");
        Ok(Access {
            file: file.to_owned(),
            table: RefCell::new(TokenTable::new(&entries)),
            renewed_s: Cell::new(unix_s()),
            outdated: Cell::default(),
            unauthenticated: Cell::default(),
            denied: Cell::default(),
            revoked: Cell::default(),
        })
    }

    /// Looks up the token that a client sends at the beginning of its connection.
    ///
    /// # Errors
    /// Returns the errors of [`AuthState::authenticate`].
    pub(crate) fn admit(&self, auth: &AuthState, token: &[u8]) -> Result<(), Error> {
        let outcome = auth.authenticate(token, &self.table.borrow(), unix_s());
        outcome.inspect_err(|_| count(&self.unauthenticated))
    }

    /// Checks that a connection may make a request with this body.
    ///
    /// # Errors
    /// Returns the errors of [`AuthState::check`].
    pub(crate) fn check(&self, auth: &AuthState, body: &Body) -> Result<(), Error> {
        auth.check(body).inspect_err(|_| count(&self.denied))
    }

    /// Looks up the rights of a connection again. Returns false if the connection has lost them.
    pub(crate) fn renew(&self, auth: &AuthState) -> bool {
        let keeps = auth.renew(&self.table.borrow(), self.renewed_s.get());
        if !keeps {
            count(&self.revoked);
        }
        keeps
    }

    /// Keeps the table of tokens up to date with the token file for as long as the future is
    /// polled. Calls `renew_all` when the rights of connections may have changed.
    pub(crate) async fn follow(self: Rc<Self>, renew_all: impl Fn()) {
        let mut watch = TokenFileWatcher::default();
        loop {
            sleep(CHECK_INTERVAL).await;
            let found = watch.check(&self.file).await;
            self.outdated.set(watch.watcher.is_unusable());
            let now = unix_s();
            if self.has_changed(found, now) || self.has_expired(now) {
                self.renewed_s.set(now);
                renew_all();
            }
        }
    }

    fn has_changed(&self, found: Option<TokenTable>, now: i64) -> bool {
        let Some(table) = found.filter(|found| *found != *self.table.borrow()) else {
            return false;
        };
        let tokens = table.in_force(now);
        tracing::info!(file = %self.file.display(), tokens, "tokens have changed");
        *self.table.borrow_mut() = table;
        true
    }

    /// Whether the rights of connections must be looked up again. This is necessary if a token has
    /// expired, or the clock was set back, since the last lookup.
    fn has_expired(&self, now: i64) -> bool {
        let last = self.renewed_s.get();
        let next = self.table.borrow().next_expiry(last);
        next.is_some_and(|next| next <= now) || now < last
    }

    /// Returns the counters about tokens, by name.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 5] {
        let in_force = self.table.borrow().in_force(unix_s());
        [
            ("tokens", in_force as u64),
            ("tokens_outdated", self.outdated.get().into()),
            ("clients_unauthenticated", self.unauthenticated.get()),
            ("clients_revoked", self.revoked.get()),
            ("requests_denied", self.denied.get()),
        ]
    }
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// Returns the number of seconds since the beginning of 1970, UTC, by the machine's calendar clock.
fn unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

/// Result of a check of the token file. Another thread makes the check.
enum TokenFileCheck {
    Same,
    Other(Arc<str>, Result<TokenTable, AccessError>),
    Unreadable(AccessError),
}

/// Last known state of the token file.
#[derive(Default)]
struct TokenFileWatcher {
    /// Text of the file when it was last read; `None` if it could not be read.
    text: Option<Arc<str>>,
    /// Reason why the last text of the file cannot be used; `None` if the text can be used.
    refusal: Option<String>,
    watcher: FileWatcher<TokenFileCheck>,
}

impl TokenFileWatcher {
    /// Reads the token file. Returns the tokens in the file if the text has changed since the last
    /// read.
    async fn check(&mut self, file: &Path) -> Option<TokenTable> {
        match self.read(file).await {
            Ok(table) => {
                self.watcher.mark_usable();
                table
            }
            Err(problem) => {
                self.report(file, &problem);
                None
            }
        }
    }

    async fn read(&mut self, file: &Path) -> Result<Option<TokenTable>, String> {
        let (path, known) = (file.to_owned(), self.text.clone());
        let found = self
            .watcher
            .check(move || check_file(&path, known.as_deref()));
        match found.await? {
            TokenFileCheck::Same => self.refusal.clone().map_or(Ok(None), Err),
            TokenFileCheck::Other(text, parsed) => {
                self.text = Some(text);
                let parsed = parsed.map_err(|error| error.to_string());
                self.refusal = parsed.as_ref().err().cloned();
                parsed.map(Some)
            }
            TokenFileCheck::Unreadable(error) => {
                // The next text that is read is then new, even if it is the same.
                self.text = None;
                Err(error.to_string())
            }
        }
    }

    fn report(&mut self, file: &Path, problem: &str) {
        if !self.watcher.mark_unusable(problem) {
            return;
        }
        tracing::error!(
            file = %file.display(),
            problem,
            "the file of tokens cannot be used: the tokens read before stay in force, and what \
             was removed since then is NOT REVOKED; mend the file, it is read every second"
        );
    }
}

fn check_file(file: &Path, known: Option<&str>) -> TokenFileCheck {
    let text = match read_private(file, FILE_BYTES_MAX) {
        Ok(text) if known == Some(text.as_str()) => return TokenFileCheck::Same,
        Ok(text) => text,
        Err(error) => return TokenFileCheck::Unreadable(error.into()),
    };
    let parsed = tokens::parse(&text, file).map(|entries| TokenTable::new(&entries));
    TokenFileCheck::Other(text.into(), parsed)
}
