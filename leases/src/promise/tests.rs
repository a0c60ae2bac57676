//! Directed schedules for the promise engine.
