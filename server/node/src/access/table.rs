//! The tokens that count, and what a connection has of them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use leasehold_wire::request::Body;
use leasehold_wire::{Error, ErrorCode, TOKEN_BYTES_MAX};

use super::rights::{self, Rights};
use super::tokens::{Digest, Entry};

/// The tokens of a file, and what they may do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    tokens: HashMap<Digest, Holder>,
    /// Rights of clients without a token; `None` if they have none.
    anonymous: Option<Holder>,
}

#[derive(Clone, Debug, PartialEq)]
struct Holder {
    rights: Arc<Rights>,
    /// Seconds since 1970 began, UTC.
    expires: Option<i64>,
}

impl Holder {
    fn rights_at(&self, unix_s: i64) -> Option<Arc<Rights>> {
        let counts = self.expires.is_none_or(|expires| unix_s < expires);
        counts.then(|| Arc::clone(&self.rights))
    }
}

/// Identity that a connection is taken to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// It has said no token.
    Anonymous,
    /// It has said the token with this digest.
    Token(Digest),
}

impl Who {
    /// Identity of a client that sends this token; an empty token counts as none.
    pub fn says(token: &[u8]) -> Who {
        match token.is_empty() {
            true => Who::Anonymous,
            false => Who::Token(Digest::of(token)),
        }
    }
}

impl Table {
    /// Builds the table of these entries.
    pub fn new(entries: &[Entry]) -> Table {
        let mut table = Table::default();
        for entry in entries {
            let holder = Holder {
                rights: Arc::new(entry.rights()),
                expires: entry.expires.map(|expires| expires.unix_s),
            };
            match entry.digest {
                Some(digest) => drop(table.tokens.insert(digest, holder)),
                None => table.anonymous = Some(holder),
            }
        }
        table
    }

    /// Rights of `who` at a time, in seconds since 1970 began, UTC; `None` if it counts for
    /// nothing then.
    pub fn rights(&self, who: Who, unix_s: i64) -> Option<Arc<Rights>> {
        let holder = match who {
            Who::Anonymous => self.anonymous.as_ref(),
            Who::Token(digest) => self.tokens.get(&digest),
        };
        holder?.rights_at(unix_s)
    }

    /// Tokens that count at a time.
    pub fn in_force(&self, unix_s: i64) -> usize {
        let tokens = self.tokens.values();
        tokens.filter_map(|it| it.rights_at(unix_s)).count()
    }

    /// When the next token expires after this time.
    pub fn next_expiry(&self, unix_s: i64) -> Option<i64> {
        let holders = self.tokens.values().chain(&self.anonymous);
        let ends = holders.filter_map(|holder| holder.expires);
        ends.filter(|ends| *ends > unix_s).min()
    }
}

/// Identity and rights of one connection.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    who: Cell<Option<Who>>,
    rights: RefCell<Option<Arc<Rights>>>,
}

impl Pass {
    /// Takes the token with which a connection begins.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, ready to be sent: the token counts for nothing, or is missing.
    pub(super) fn say(&self, token: &[u8], table: &Table, unix_s: i64) -> Result<(), Error> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(unauthenticated("hello.token is too long to be a token"));
        }
        let who = Who::says(token);
        let Some(rights) = table.rights(who, unix_s) else {
            return Err(unauthenticated(match who {
                Who::Anonymous => "hello.token is missing: this cluster asks for a token",
                Who::Token(_) => "hello.token is unknown, revoked or expired",
            }));
        };
        self.who.set(Some(who));
        *self.rights.borrow_mut() = Some(rights);
        Ok(())
    }

    /// Looks the rights up again. False if the connection had some, and has none any more.
    pub(super) fn renew(&self, table: &Table, unix_s: i64) -> bool {
        let Some(who) = self.who.get() else {
            return true;
        };
        let rights = table.rights(who, unix_s);
        let has_some = rights.is_some();
        *self.rights.borrow_mut() = rights;
        has_some
    }

    /// Whether this request may be carried out.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, or `UNAUTHENTICATED` if the connection may do nothing.
    pub(super) fn check(&self, body: &Body) -> Result<(), Error> {
        match &*self.rights.borrow() {
            Some(rights) => rights::check(rights, body),
            None => Err(unauthenticated("the token was revoked, or has expired")),
        }
    }
}

fn unauthenticated(message: &str) -> Error {
    Error::new(
        ErrorCode::Unauthenticated,
        format!("{message}; ask an operator for one, and give its file as --token-file"),
    )
}
