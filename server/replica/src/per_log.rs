//! The two logs, and one value for each.

use std::ops::{Index, IndexMut};

/// One of the two logs. The same code handles both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogId {
    /// Commands of clients.
    Commands,
    /// Lease configurations (§3.4).
    Configs,
}

impl LogId {
    /// Both logs.
    pub const ALL: [LogId; 2] = [LogId::Commands, LogId::Configs];

    /// Returns the index of this log in tables with one row for each log.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// One value for each of the two logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerLog<T> {
    /// Value for the log of clients' commands.
    pub commands: T,
    /// Value for the log of lease configurations.
    pub configs: T,
}

impl<T> PerLog<T> {
    /// Builds both values. Calls `of` for each log, first for the log of commands.
    pub fn of(mut of: impl FnMut(LogId) -> T) -> PerLog<T> {
        PerLog {
            commands: of(LogId::Commands),
            configs: of(LogId::Configs),
        }
    }

    /// Returns both values with their logs, commands first.
    pub fn each(self) -> [(LogId, T); 2] {
        [
            (LogId::Commands, self.commands),
            (LogId::Configs, self.configs),
        ]
    }

    /// Whether `holds` returns true for both values.
    pub fn all(&self, mut holds: impl FnMut(LogId, &T) -> bool) -> bool {
        holds(LogId::Commands, &self.commands) && holds(LogId::Configs, &self.configs)
    }
}

impl<T> Index<LogId> for PerLog<T> {
    type Output = T;

    fn index(&self, log: LogId) -> &T {
        match log {
            LogId::Commands => &self.commands,
            LogId::Configs => &self.configs,
        }
    }
}

impl<T> IndexMut<LogId> for PerLog<T> {
    fn index_mut(&mut self, log: LogId) -> &mut T {
        match log {
            LogId::Commands => &mut self.commands,
            LogId::Configs => &mut self.configs,
        }
    }
}

impl<T> From<[T; 2]> for PerLog<T> {
    /// Builds the pair from the values of both logs, commands first.
    fn from([commands, configs]: [T; 2]) -> PerLog<T> {
        PerLog { commands, configs }
    }
}
