//! Salvage: what is left of a session whose owner was killed, as a trace of its own.
//!
//! # How
//! ```text
//!   DIR/metadata, DIR/state, DIR/cpu_0, …     the trace as far as it got: whole declarations and packets, perhaps a torn one
//!   DIR/.session                              who the owner was, and where its memory is
//!   the memory                                a file; or programs that live still have it mapped
//!        │ read: header, control blocks, chains, then pages, those first that would be overwritten first
//!        ▼
//!   a private copy ── pages behind those on disk, the current one as far as it is committed ──▶ DIR-salvaged
//! ```
//! A packet is known by its stream and its `packet_seq_num`. A packet that is whole on disk is taken from there; of one that both
//! have, the longer.
//!
//! In discard mode, writers that go on change only what lies above the committed bytes, because only an owner gives pages back.
//!
//! In overwrite mode, writers that go on may overwrite pages. So the stream's `reclaimed` is read again after a page was copied, as for
//! a snapshot. The salvaged trace is of one moment, that at which the streams were looked at: later events are left out, so that no event
//! of a thread is missing before one that is there. If everything that a stream had at the moment is overwritten before it is copied,
//! such events are missing, and no packet of the stream can say so. So the streams are looked at again until the current page of each was
//! begun before the moment. If that cannot be had, the trace says so.
//!
//! What programs have entered in the memory's register, and the owner has not taken in, is declared too.
//!
//! # What is checked
//! Everything: directory and memory may hold any bytes. Each packet is read to its end, by the reader that people will use, and has to
//! follow the one before. What cannot be read is left out, and the trace says so (`dormouse:salvage`).
//!
//! The directory may be another user's, who wants to harm the one who salvages. So nothing in it is opened but regular files that lie there, what
//! it names elsewhere (buffers, processes) has to be that user's too, and what is written is in a directory of the salvaging user alone.
//!
//! # Limits
//! The copy takes as much memory as the pages that are not on disk. The clock's frequency is the one that was measured when the session
//! began. After a crash of the machine, files are as whole as the kernel had written them: zeroes in place of bytes can look like values.

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
use find::Found;
pub use merge::Salvage;

/// Makes a trace in `output` (which must not exist or be empty) of what is left of the one in `dir`, which stays as it is.
///
/// # Errors
/// One line; nothing is left behind but an empty directory.
pub fn salvage(dir: &Path, output: &Path) -> Result<Salvage, Error> {
    survive_file_size_limits();
    let mut directory = Directory::open(dir)?;
    let output = Dir::make(output)?;
    let found = Found::of(&directory);
    if let Some(register) = found.copied.as_ref().and_then(|copied| copied.pages.memory.register()) {
        directory.take_in(register);
    }
    merge::merge(&directory, found, &output)
}
