//! The place of an event in a slice.

use super::number::{put_fraction, put_u64};

/// Place of an event in a slice.
#[derive(Debug, Clone, Copy)]
pub struct Within<'a> {
    /// Number of the slice, from 1 on.
    pub slice: u64,
    /// Time since the slice's begin, in nanoseconds.
    pub since_ns: u64,
    /// Number of slices that enclose the event on its thread.
    pub depth: u32,
    /// Name and duration in nanoseconds of what the event ends.
    pub ended: Option<(&'a str, u64)>,
}

impl Within<'_> {
    /// Appends the time since the slice's begin in seconds.
    pub(super) fn put_since(&self, out: &mut Vec<u8>) {
        out.push(b'+');
        put_u64(out, self.since_ns / 1_000_000_000);
        out.push(b'.');
        put_fraction(out, (self.since_ns % 1_000_000_000) as u32);
    }
}
