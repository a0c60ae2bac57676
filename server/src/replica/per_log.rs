//! One value for each of the two logs.

use std::ops::{Index, IndexMut};

use super::message::LogId;

/// One value for each of the two logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerLog<T> {
    /// For the log of clients' commands.
    pub commands: T,
    /// For the log of lease configurations.
    pub configs: T,
}

impl<T> PerLog<T> {
    /// What `of` says for each log, commands first.
    pub fn of(mut of: impl FnMut(LogId) -> T) -> PerLog<T> {
        PerLog {
            commands: of(LogId::Commands),
            configs: of(LogId::Configs),
        }
    }

    /// Both values, commands first, as messages carry them.
    pub fn into_array(self) -> [T; 2] {
        [self.commands, self.configs]
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
