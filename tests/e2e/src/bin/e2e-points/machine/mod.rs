//! The machine: its registers, breakpoints and instructions.
//!
//! ```text
//!                      x86-64                            AArch64
//!   breakpoint         int3, one byte; stops behind it   brk, four bytes; stops before it
//!   arming a section   mov to fs:[…]                     str to [x, 8]
//!   single steps       each instruction                  each instruction, but an exclusive load and its store at once
//! ```

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// Instructions of a critical section.
#[derive(Debug)]
pub struct Body {
    /// Address of each.
    pub instructions: Vec<u64>,
    /// Targets of its branches.
    pub targets: Vec<u64>,
    /// The register that points to the [`dormouse_abi::txn::Txn`] that it commits, if it commits one.
    pub txn: Option<Register>,
}

/// Kinds of instructions that the search for a record call tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It calls a function.
    Call,
    /// It returns from one.
    Return,
    /// It does neither.
    Other,
}

/// Offset of the number of stores in a transaction.
pub const STORE_COUNT: u64 = std::mem::offset_of!(dormouse_abi::txn::Txn, store_count) as u64;
/// Offset of the target of the final store.
pub const LAST_TARGET: u64 = std::mem::offset_of!(dormouse_abi::txn::Txn, last) as u64;
/// Offset of the first plain store.
const STORES: u64 = std::mem::offset_of!(dormouse_abi::txn::Txn, stores) as u64;

/// Returns bytes of this program's text.
fn text(begin: u64, len: usize) -> &'static [u8] {
    // SAFETY: the bytes are instructions of a section, or those just before it, which are mapped as long as the program
    // runs; sites, which are patched, are elsewhere.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(begin as usize), len) }
}
