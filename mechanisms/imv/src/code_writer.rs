//! The ways to write bytes into the text of a running program.
//!
//! ```text
//!   Unprobed ──first write──▶ Mprotect ──refused──▶ ProcMem ──refused──▶ None
//! ```
//!
//! The ladder is only descended. The way that worked is remembered; if it is refused later (for example by a sandbox
//! that was entered after start), the next rung is tried in the same update.

use core::ffi::{CStr, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::MprotectFlags;
use rustix::thread::{MembarrierCommand, membarrier};

use crate::arch::publish_store;
use crate::filter::is_filtered;
use crate::segment::{Segment, os_page_ceil, os_page_floor};
use crate::site::Store;

/// The way in which sites are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeWriter {
    /// Nothing has been written yet.
    Unprobed,
    /// The os_pages of the batch are made writable, and stay executable, during the stores.
    Mprotect,
    /// Through `/proc/self/mem`, opened again for every update.
    ProcMem,
    /// Sites stay as linked and read their key.
    None,
}

impl CodeWriter {
    /// Returns the name that `DORMOUSE_IMV_WRITER` takes.
    pub const fn name(self) -> &'static str {
        match self {
            CodeWriter::Unprobed => "unprobed",
            CodeWriter::Mprotect => "mprotect",
            CodeWriter::ProcMem => "procmem",
            CodeWriter::None => "none",
        }
    }
}

/// The rung in use and the reason for it.
pub(crate) struct Ladder {
    pub(crate) writer: CodeWriter,
    pub(crate) reason: &'static str,
    /// Whether `DORMOUSE_IMV_WRITER` chose the writer: then no other is tried.
    forced: bool,
}

impl Ladder {
    pub(crate) const fn new() -> Ladder {
        Ladder { writer: CodeWriter::Unprobed, reason: "no site has had to be written yet", forced: false }
    }

    pub(crate) const fn unpatched_architecture() -> Ladder {
        Ladder {
            writer: CodeWriter::None,
            reason: "this build reads keys: no patcher for the architecture",
            forced: true,
        }
    }

    /// Reads `DORMOUSE_IMV_WRITER` and registers for the barrier, without which nothing may be written.
    ///
    /// Registration takes microseconds while the process has one thread, and milliseconds later. So it is done at
    /// start.
    pub(crate) fn prepare(&mut self) {
        if self.writer == CodeWriter::None {
            return;
        }
        // SAFETY: getenv(3) with a NUL-terminated name; the result is only read, immediately.
        let value = unsafe { libc::getenv(c"DORMOUSE_IMV_WRITER".as_ptr()) };
        if !value.is_null() {
            // SAFETY: a non-null result of getenv(3) is NUL-terminated.
            let value = unsafe { CStr::from_ptr(value) }.to_bytes();
            let rungs = [CodeWriter::Mprotect, CodeWriter::ProcMem, CodeWriter::None];
            if let Some(writer) = rungs.into_iter().find(|writer| writer.name().as_bytes() == value) {
                *self = Ladder { writer, reason: "forced by DORMOUSE_IMV_WRITER", forced: true };
            }
        }
        let refusal = match self.writer {
            CodeWriter::None => return,
            // A user who forces a writer knows the filter.
            _ if !self.forced && is_filtered() => {
                "a filter of system calls is in force, which may kill for membarrier(2)"
            }
            _ if register_barrier().is_err() => "the kernel offers no membarrier(PRIVATE_EXPEDITED_SYNC_CORE)",
            _ => return,
        };
        (self.writer, self.reason) = (CodeWriter::None, refusal);
    }

    /// Writes `stores`, which are within `span`, as far as the system allows. The caller checks the sites afterwards.
    pub(crate) fn write(&mut self, segment: &Segment, span: Range<usize>, stores: impl Iterator<Item = Store> + Clone) {
        if matches!(self.writer, CodeWriter::Unprobed | CodeWriter::Mprotect) {
            match write_by_mprotect(segment, span, stores.clone()) {
                Ok(()) => {
                    if self.writer == CodeWriter::Unprobed {
                        *self = Ladder { writer: CodeWriter::Mprotect, reason: "first choice", forced: false };
                    }
                    return;
                }
                Err(Refusal::ForeignSpan) => {
                    // This concerns only this object: if it is refused, its sites read their keys.
                    if !self.forced {
                        let _ = write_by_proc_mem(stores);
                    }
                    return;
                }
                Err(Refusal::Kernel) if self.forced => self.refuse("forced mprotect was refused"),
                Err(Refusal::Kernel) => {
                    self.writer = CodeWriter::ProcMem;
                    self.reason = "mprotect of program text to rwx was refused";
                }
            }
        }
        if self.writer == CodeWriter::ProcMem && write_by_proc_mem(stores).is_err() {
            self.refuse(if self.forced {
                "forced /proc/self/mem was refused"
            } else {
                "mprotect of program text to rwx and writing /proc/self/mem were both refused"
            });
        }
    }

    /// Descends to the last rung.
    pub(crate) fn refuse(&mut self, reason: &'static str) {
        self.writer = CodeWriter::None;
        self.reason = reason;
    }
}

enum Refusal {
    /// The kernel refused.
    Kernel,
    /// Some site is not in the object's own text, so the protection to restore is not known.
    ForeignSpan,
}

/// Writes the stores:
///
/// ```text
///   span := rwx        never rw: other threads execute there
///   each byte
///   span := its former protection
/// ```
fn write_by_mprotect(
    segment: &Segment,
    span: Range<usize>,
    stores: impl Iterator<Item = Store>,
) -> Result<(), Refusal> {
    let pages = os_page_floor(span.start)..os_page_ceil(span.end);
    if pages.start < segment.addresses.start || pages.end > segment.addresses.end {
        return Err(Refusal::ForeignSpan);
    }
    let rwx = MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC;
    protect(&pages, rwx).map_err(|_| Refusal::Kernel)?;
    for store in stores {
        // (C) No acquire partner: the bytes are fetched as code. Release orders them after the key's new value; the
        // barrier of the update makes them effective.
        match store {
            Store::Byte(address, byte) => {
                // SAFETY: the address is a site's, inside `pages`, which are writable now, and aligned to the store's
                // size; Rust holds no reference to text.
                unsafe { AtomicU8::from_ptr(address as *mut u8) }.store(byte, Ordering::Release);
            }
            Store::Loose(address, bytes) => {
                for (index, byte) in bytes.into_iter().enumerate() {
                    // SAFETY: each byte of a site inside `pages`, which are writable now; bytes are always aligned, and Rust
                    // holds no reference to text.
                    unsafe { AtomicU8::from_ptr((address + index) as *mut u8) }.store(byte, Ordering::Release);
                }
            }
            Store::Word(address, word) => {
                // SAFETY: a site's address inside `pages`, which are writable now, and aligned to 4 bytes; Rust holds no
                // reference to text.
                unsafe { AtomicU32::from_ptr(address as *mut u32) }.store(word, Ordering::Release);
            }
            Store::Double(address, double) => {
                // SAFETY: a site's address inside `pages`, which are writable now, and aligned to 8 bytes; Rust holds no
                // reference to text.
                unsafe { AtomicU64::from_ptr(address as *mut u64) }.store(double, Ordering::Release);
            }
        }
        publish_store(store);
    }
    // If restoring is refused the os_pages stay rwx: less hardened, but the stores are done.
    let _ = protect(&pages, segment.protection);
    Ok(())
}

fn protect(pages: &Range<usize>, protection: MprotectFlags) -> Result<(), Errno> {
    // SAFETY: whole os_pages of one loaded text segment, which stay readable and executable throughout.
    unsafe { rustix::mm::mprotect(pages.start as *mut c_void, pages.len(), protection) }
}

/// Writes the stores through `/proc/self/mem`, which ignores the protection of memory. An inherited descriptor would
/// write the parent's text, so each update opens its own. The bytes of a longer write become visible in an unspecified
/// order, so stores that need an order are left out.
fn write_by_proc_mem(stores: impl Iterator<Item = Store>) -> Result<(), Errno> {
    let memory = rustix::fs::open(c"/proc/self/mem", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    for store in stores {
        let (address, bytes): (_, &[u8]) = match &store {
            Store::Byte(address, byte) => (*address, core::slice::from_ref(byte)),
            Store::Loose(address, bytes) => (*address, bytes),
            Store::Word(..) | Store::Double(..) => continue,
        };
        rustix::io::pwrite(&memory, bytes, address as u64)?;
        publish_store(store);
    }
    Ok(())
}

fn register_barrier() -> Result<(), Errno> {
    membarrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore)
}

/// Makes every running thread of the process execute a core-serialising instruction before this returns.
pub(crate) fn synchronise_cores() -> bool {
    let barrier = || membarrier(MembarrierCommand::PrivateExpeditedSyncCore);
    match barrier() {
        // Not registered: this address space did not inherit the registration.
        Err(Errno::PERM) => register_barrier().and_then(|()| barrier()).is_ok(),
        answer => answer.is_ok(),
    }
}
