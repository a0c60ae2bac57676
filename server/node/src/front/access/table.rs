//! The tokens that count, and what a connection has of them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use leasehold_wire::request::Body;
use leasehold_wire::{Error, ErrorCode, TOKEN_BYTES_MAX};

use super::rights::{self, Rights};
use super::tokens::{Digest, TokenEntry};

/// The tokens of a file, and what they may do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenTable {
    tokens: HashMap<Digest, TokenHolder>,
    /// Rights of clients without a token; `None` if they have none.
    anonymous: Option<TokenHolder>,
}

#[derive(Clone, Debug, PartialEq)]
struct TokenHolder {
    rights: Arc<Rights>,
    /// Seconds since 1970 began, UTC.
    expires: Option<i64>,
}

impl TokenHolder {
    fn rights_at(&self, unix_s: i64) -> Option<Arc<Rights>> {
        let counts = self.expires.is_none_or(|expires| unix_s < expires);
        counts.then(|| Arc::clone(&self.rights))
    }
}

/// Identity that a connection is taken to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    /// It has said no token.
    Anonymous,
    /// It has said the token with this digest.
    Token(Digest),
}

impl Principal {
    /// Identity of a client that sends this token; an empty token counts as none.
    pub fn from_token(token: &[u8]) -> Principal {
        if token.is_empty() {
            Principal::Anonymous
        } else {
            Principal::Token(Digest::of(token))
        }
    }
}

impl TokenTable {
    /// Builds the table of these entries.
    pub fn new(entries: &[TokenEntry]) -> TokenTable {
        let mut table = TokenTable::default();
        for entry in entries {
            let holder = TokenHolder {
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

    /// Rights of `principal` at a time, in seconds since 1970 began, UTC; `None` if it counts for
    /// nothing then.
    pub fn rights(&self, principal: Principal, unix_s: i64) -> Option<Arc<Rights>> {
        let holder = match principal {
            Principal::Anonymous => self.anonymous.as_ref(),
            Principal::Token(digest) => self.tokens.get(&digest),
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
pub(crate) struct AuthState {
    principal: Cell<Option<Principal>>,
    rights: RefCell<Option<Arc<Rights>>>,
}

impl AuthState {
    /// Takes the token with which a connection begins.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, ready to be sent: the token counts for nothing, or is missing.
    pub(super) fn authenticate(
        &self,
        token: &[u8],
        table: &TokenTable,
        unix_s: i64,
    ) -> Result<(), Error> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(unauthenticated("hello.token is too long to be a token"));
        }
        let principal = Principal::from_token(token);
        let Some(rights) = table.rights(principal, unix_s) else {
            return Err(unauthenticated(match principal {
                Principal::Anonymous => "hello.token is missing: this cluster asks for a token",
                Principal::Token(_) => "hello.token is unknown, revoked or expired",
            }));
        };
        self.principal.set(Some(principal));
        *self.rights.borrow_mut() = Some(rights);
        Ok(())
    }

    /// Looks the rights up again. False if the connection had some, and has none any more.
    pub(super) fn renew(&self, table: &TokenTable, unix_s: i64) -> bool {
        let Some(principal) = self.principal.get() else {
            return true;
        };
        let rights = table.rights(principal, unix_s);
        let has_some = rights.is_some();
        *self.rights.borrow_mut() = rights;
        has_some
    }

    /// Checks that this request may be carried out.
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
