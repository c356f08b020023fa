//! Salvage: makes a new trace of the remains of a session whose owner was killed.
//!
//! # Method
//! ```text
//!   DIR/metadata, DIR/state, DIR/cpu_0, …     the trace so far: whole declarations and packets, perhaps a torn one
//!   DIR/.session                              identity of the owner, and place of its memory
//!   the memory                                a file, or still mapped by live programs
//!        │ read: header, control blocks, chains, then pages, those first that would be overwritten first
//!        ▼
//!   a private copy ── pages after those on disk, and the committed part of the current one ──▶ DIR-salvaged
//! ```
//! A packet is identified by its stream and its `packet_seq_num`. A packet that is whole on disk is taken from there.
//! If both places have a packet, the longer one is taken.
//!
//! In discard mode, live writers change only the bytes after the committed ones, because only an owner returns pages.
//!
//! In overwrite mode, live writers may overwrite pages. So the stream's `reclaimed` is read again after a page was
//! copied, as for a snapshot. The salvaged trace shows one moment, at which the streams were looked at: later events
//! are left out, so that no event of a thread is missing before one that is present. If everything that a stream had at
//! the moment is overwritten before it is copied, those events are missing, and no packet of the stream can tell. So
//! the streams are looked at again until the current page of each was begun before the moment. If that does not
//! succeed, the trace says so.
//!
//! Classes and processes that programs have entered in the memory's register, and that the owner has not taken in, are
//! declared too.
//!
//! # Checks
//! Everything is checked: directory and memory may contain any bytes. Each packet is read to its end, by the reader
//! that users will use, and must follow the previous one. Unreadable parts are left out, and the trace says so
//! (`dormouse:salvage`).
//!
//! The directory may belong to another user who wants to harm the salvaging user. So only regular files in the
//! directory itself are opened. Anything it names elsewhere (buffers, processes) must belong to that user too. The
//! output is in a directory of the salvaging user alone.
//!
//! # Limits
//! The copy takes as much memory as the pages that are not on disk. The clock's frequency is the one that was measured
//! when the session began. After a crash of the machine, files are as complete as the kernel had written them: zeroes
//! instead of bytes can look like values.

mod copy;
mod directory;
mod find;
mod memory;
mod merge;
mod packets;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::dir::Dir;
use crate::error::Error;
use crate::fault::survive_file_size_limits;

use directory::Directory;
use find::SearchResult;
pub use merge::Salvage;

/// Makes a trace in `output` (which must be empty or not exist) of the remains of the one in `dir`, which stays
/// unchanged.
///
/// # Errors
/// One line with the reason; only an empty directory is left.
pub fn salvage(dir: &Path, output: &Path) -> Result<Salvage, Error> {
    survive_file_size_limits();
    let mut directory = Directory::open(dir)?;
    let output = Dir::make(output)?;
    let search_result = SearchResult::of(&directory);
    if let Some(register) = search_result.copied.as_ref().and_then(|copied| copied.pages.memory.register()) {
        directory.take_in(register);
    }
    merge::merge(&directory, search_result, &output)
}
