//! Salvage: what is left of a session whose owner was killed, as a trace of its own.
//!
//! # How
//! ```text
//!   DIR/metadata, DIR/state, DIR/cpu_0, …     the trace as far as it got: whole declarations and packets, perhaps a torn one
//!   DIR/.session                              who the owner was, and where its memory is
//!   the memory                                a file; or programs that live still have it mapped
//!        │ read: header, control blocks, chains, then pages, those first that would be overwritten first
//!        ▼
//!   a copy that nobody changes ── pages behind those on disk, the current one as far as it is committed ──▶ DIR-salvaged
//! ```
//! Packets are known by their stream and `packet_seq_num`: what is on disk is taken from there, and of a packet that both have,
//! the longer. In discard mode nothing in the memory changes but by writers that go on behind what is committed, since pages
//! come back by their owner alone. In overwrite mode programs that live on may overwrite: after a page is copied its stream's
//! `reclaimed` is read again, as for a snapshot, and as there, events later than the moment at which the streams were looked at
//! are left out, so that no thread's story has a hole. A stream of which everything up to the moment was overwritten before it could be
//! copied would leave such holes in what others have, and none of its packets to tell; so the streams are looked at until the current page of
//! each is one of before the moment, and where that cannot be had, it is said.
//!
//! # What is checked
//! Everything: directory and memory are whatever somebody has made of them. Each packet is read to its end by the reader that
//! people will use, and has to follow the one before; what cannot be read is left out, and the trace says so
//! (`dormouse:salvage`).
//!
//! # Limits
//! The copy takes as much memory as the pages that are not on disk. The clock's pace is the one that was known when the session
//! began. Files that have lived through a crash of the machine are as whole as the kernel had written them: zeroes that it puts
//! in place of bytes can look like values.

mod copy;
mod directory;
mod find;
mod memory;
mod merge;
mod packets;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::trace::make_dir;

use directory::Directory;
pub use directory::SalvageError;
use find::Found;
pub use merge::Salvage;

/// Makes a trace in `output` (which must not exist or be empty) of what is left of the one in `dir`, which stays as it is.
///
/// # Errors
/// See [`SalvageError`]; nothing is left behind but an empty directory.
pub fn salvage(dir: &Path, output: &Path) -> Result<Salvage, SalvageError> {
    let directory = Directory::open(dir)?;
    make_dir(output)?;
    Ok(merge::merge(&directory, Found::of(&directory), output)?)
}
