//! The program's critical sections, instruction by instruction.
//!
//! ```text
//!   arm:    mov fs:[… + rseq_cs], descriptor      the instruction before `start`
//!   start:  …                                     a thread that is stopped from here on is sent to `abort` when it continues
//!           final store
//!   end:    …
//!   exits:  end, abort, and the targets of branches that leave
//! ```

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

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

/// Returns bytes of this program's text.
fn text(begin: u64, len: usize) -> &'static [u8] {
    // SAFETY: the bytes are instructions of a section, or those just before it, which are mapped as long as the program
    // runs; sites, which are patched, are elsewhere.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(begin as usize), len) }
}

fn section(descriptor: &Descriptor) -> Section {
    let Descriptor { version, flags, start, post_commit_offset, abort } = *descriptor;
    assert_eq!((version, flags), (0, 0));
    let bytes = text(start, post_commit_offset as usize);
    let instructions: Vec<Instruction> = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).iter().collect();
    let end = start + post_commit_offset;
    assert_eq!(instructions.last().map(Instruction::next_ip), Some(end), "a section ends within an instruction");
    let targets = instructions.iter().filter(|instruction| instruction.op0_kind() == OpKind::NearBranch64);
    let leaving = targets.map(Instruction::near_branch_target).filter(|target| !(start..end).contains(target));
    let mut exits: Vec<u64> = leaving.chain([end, abort]).collect();
    exits.sort_unstable();
    exits.dedup();
    let txn = instructions.windows(2).find_map(|pair| {
        let base = pair[0].memory_base();
        let counts = pair[0].mnemonic() == Mnemonic::Mov && pair[0].memory_displacement64() == STORE_COUNT;
        let lists = pair[1].mnemonic() == Mnemonic::Lea && pair[1].memory_displacement64() == STORES;
        (counts && lists && base != Register::None && pair[1].memory_base() == base).then_some(base)
    });
    Section { arm: arm(start), abort, instructions: instructions.iter().map(Instruction::ip).collect(), exits, txn }
}

/// Offset of the number of stores in a transaction.
pub const STORE_COUNT: u64 = std::mem::offset_of!(dormouse_abi::txn::Txn, store_count) as u64;
/// Offset of the target of the final store.
pub const LAST_TARGET: u64 = std::mem::offset_of!(dormouse_abi::txn::Txn, last) as u64;
const STORES: u64 = std::mem::offset_of!(dormouse_abi::txn::Txn, stores) as u64;

/// Returns the instruction before a section's first: it stores a register to the thread's rseq structure.
fn arm(start: u64) -> u64 {
    let is_arming = |begin: &u64| {
        let len = (start - begin) as usize;
        let instruction = Decoder::with_ip(64, text(*begin, len), *begin, DecoderOptions::NONE).decode();
        instruction.len() == len
            && instruction.mnemonic() == Mnemonic::Mov
            && instruction.segment_prefix() == Register::FS
            && instruction.op0_kind() == OpKind::Memory
    };
    (4..=12).map(|len| start - len).find(is_arming).expect("a section is armed just before it begins")
}
