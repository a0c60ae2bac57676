//! Real processes on one machine.
