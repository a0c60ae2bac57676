//! The valid tokens, and the identity and rights of a connection.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use leasehold_wire::request::Body;
use leasehold_wire::{Error, ErrorCode, TOKEN_BYTES_MAX};

use super::rights::{self, Rights};
use super::tokens::{Digest, TokenEntry};

/// Tokens of a token file, and their rights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenTable {
    tokens: HashMap<Digest, TokenHolder>,
    /// Rights of clients that send no token; `None` if such clients have no rights.
    anonymous: Option<TokenHolder>,
}

#[derive(Clone, Debug, PartialEq)]
struct TokenHolder {
    rights: Arc<Rights>,
    /// Time at which the token expires, in seconds since the beginning of 1970, UTC; `None` if the
    /// token never expires.
    expires: Option<i64>,
}

impl TokenHolder {
    fn rights_at(&self, unix_s: i64) -> Option<Arc<Rights>> {
        let counts = self.expires.is_none_or(|expires| unix_s < expires);
        counts.then(|| Arc::clone(&self.rights))
    }
}

/// Identity that a client claims on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal {
    /// The connection has sent no token.
    Anonymous,
    /// The connection has sent the token with this digest.
    Token(Digest),
}

impl Principal {
    /// Returns the identity of a client that sends this token. An empty token is treated as no
    /// token.
    pub fn from_token(token: &[u8]) -> Principal {
        if token.is_empty() {
            Principal::Anonymous
        } else {
            Principal::Token(Digest::of(token))
        }
    }
}

impl TokenTable {
    /// Builds the table from the entries of a token file.
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

    /// Returns the rights of `principal` at the time `unix_s`, in seconds since the beginning of
    /// 1970, UTC; `None` if `principal` has no rights at that time.
    pub fn rights(&self, principal: Principal, unix_s: i64) -> Option<Arc<Rights>> {
        let holder = match principal {
            Principal::Anonymous => self.anonymous.as_ref(),
            Principal::Token(digest) => self.tokens.get(&digest),
        };
        holder?.rights_at(unix_s)
    }

    /// Returns the number of tokens that are valid at the time `unix_s`, in seconds since the
    /// beginning of 1970, UTC.
    pub fn in_force(&self, unix_s: i64) -> usize {
        let tokens = self.tokens.values();
        tokens.filter_map(|it| it.rights_at(unix_s)).count()
    }

    /// Returns the time after `unix_s` at which the next token expires; `None` if no token will
    /// expire.
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
    /// Looks up the token that a client sends at the beginning of its connection.
    ///
    /// # Errors
    /// Fails with `UNAUTHENTICATED` if the token is invalid or missing. The error is ready to be
    /// sent to the client.
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

    /// Looks up the rights of the connection again. Returns false if the connection has lost its
    /// rights.
    pub(super) fn renew(&self, table: &TokenTable, unix_s: i64) -> bool {
        let Some(principal) = self.principal.get() else {
            return true;
        };
        let rights = table.rights(principal, unix_s);
        let has_some = rights.is_some();
        *self.rights.borrow_mut() = rights;
        has_some
    }

    /// Checks that the connection may make this request.
    ///
    /// # Errors
    /// Fails with `PERMISSION_DENIED`, or with `UNAUTHENTICATED` if the connection has no rights at
    /// all.
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
