//! The program's critical sections, instruction by instruction.
//!
//! ```text
//!   arm:    rseq_cs := descriptor                 the instruction before `start`
//!   start:  …                                     a thread that is stopped from here on is sent to `abort` when it continues
//!           final store
//!   end:    …
//!   exits:  end, abort, and the targets of branches that leave
//! ```

use crate::machine::{Body, Register, arm, decode};

/// `struct rseq_cs` of `linux/rseq.h`.
#[repr(C)]
struct Descriptor {
    version: u32,
    flags: u32,
    start: u64,
    post_commit_offset: u64,
    abort: u64,
}

unsafe extern "C" {
    // The linker defines these names as the bounds of a section whose name is a C identifier.
    #[link_name = "__start___rseq_cs"]
    static FIRST: Descriptor;
    #[link_name = "__stop___rseq_cs"]
    static END: Descriptor;
}

/// A critical section.
#[derive(Debug)]
pub struct Section {
    /// Address of the instruction before it, which arms it.
    pub arm: u64,
    /// Address to which the kernel leads an aborted thread.
    pub abort: u64,
    /// Addresses of all of its instructions; the last is the final store.
    pub instructions: Vec<u64>,
    /// Addresses at which it is left.
    pub exits: Vec<u64>,
    /// The register that points to the [`dormouse_abi::txn::Txn`] that it commits, if it commits one.
    pub txn: Option<Register>,
}

impl Section {
    /// Returns the address of the final store.
    pub fn last(&self) -> u64 {
        self.instructions[self.instructions.len() - 1]
    }
}

/// Returns the critical sections of this program, in the order of their descriptors.
pub fn all() -> Vec<Section> {
    let (first, end) = (&raw const FIRST, &raw const END);
    let count = (end.addr() - first.addr()) / size_of::<Descriptor>();
    let descriptor = |index: usize| {
        // SAFETY: the descriptors are consecutive between the section's bounds; the loader has relocated them, and no
        // code writes to them.
        unsafe { &*first.wrapping_add(index) }
    };
    (0..count).map(|index| section(descriptor(index))).collect()
}

fn section(descriptor: &Descriptor) -> Section {
    let Descriptor { version, flags, start, post_commit_offset, abort } = *descriptor;
    assert_eq!((version, flags), (0, 0));
    let end = start + post_commit_offset;
    let Body { instructions, targets, txn } = decode(start, end);
    let leaving = targets.into_iter().filter(|target| !(start..end).contains(target));
    let mut exits: Vec<u64> = leaving.chain([end, abort]).collect();
    exits.sort_unstable();
    exits.dedup();
    Section { arm: arm(start), abort, instructions, exits, txn }
}
