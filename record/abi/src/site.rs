//! Patchable sites: the records of compiled gates and of reads of immediate values, which the patcher reads.
//!
//! Every site is *born* correct, without a patcher: it reads the variable. Its bytes on x86-64, by its form:
//!
//! ```text
//!   branch   born          E9 dd dd dd dd                    jmp slow path, which reads the key
//!            between       A9 .. .. .. ..                    test eax, imm32, with any immediate
//!            falls through 0F 1F 44 00 00                    nop: the key is disabled (enabled if SITE_LIKELY)
//!            jumps         E9 tt tt tt tt                    jmp target: the key is enabled (disabled if SITE_LIKELY)
//!            The target of a branch that reads its key is the slow path; that of a direct branch is the code behind it.
//!
//!   value    born          3E.. [REX] 8B|0F xx mm dd dd dd dd mov(zx, sx) r32, [variable]
//!            patched       3E REX C7 mm ii ii ii ii           mov r32, imm32
//!                          └─ eight bytes, aligned to 8 ─┘    any number of 3E prefixes may precede it
//!
//!   gated    born          E9 dd dd dd dd  REX B8+r 0 (imm64) jmp slow path, which reads the variable
//!   value    patched       A9 dd dd dd dd  REX B8+r imm64     test eax, imm32; mov r64, imm64
//!                                                   └ aligned to 8
//!
//!   call     born          E9 dd dd dd dd .. .. ..           jmp slow path, which jumps to the address in the variable
//!            patched       E9 ff ff ff ff .. .. ..           jmp function
//!                          └─ eight bytes, aligned to 8 ─┘
//! ```
//! On AArch64 there are branches only: `b slow` when born, `b target` when it jumps, `nop` when it falls through.

/// Opcode of a gate that jumps (x86-64 `jmp rel32`).
pub const X86_JMP: u8 = 0xE9;
/// Opcode of a gate that does not jump (x86-64 `test eax, imm32`): of a gated value while it is patched, or of a branch
/// between two states.
pub const X86_TEST: u8 = 0xA9;
/// Bytes of a branch that falls through (x86-64 `nop dword ptr [rax + rax + 0]`).
pub const X86_NOP: [u8; X86_BRANCH_LEN] = [0x0F, 0x1F, 0x44, 0x00, 0x00];
/// Size of a branch, in bytes of code.
pub const X86_BRANCH_LEN: usize = 5;

/// Section that holds the [`SiteRecord`]s of one object.
pub const SITES_SECTION: &str = "dormouse_sites";
/// Section that holds the [`EventRecord`]s of one object.
pub const EVENTS_SECTION: &str = "dormouse_events";
/// Section that holds the [`TunableRecord`]s of one object.
pub const TUNABLES_SECTION: &str = "dormouse_tunables";

/// One patchable site. Read-only, position-independent, 16 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SiteRecord {
    /// Address of the site minus the address of this field. The site of a gated value is its gate.
    pub site: i32,
    /// The form, one of `SITE_…`, with the bits below.
    pub kind: u32,
    /// Address of the key or variable minus the address of this field; with [`SITE_INDIRECT`], that of a word that
    /// contains the key's address.
    pub key: i32,
    /// Address to which a patched branch jumps, or of a call's slow path, minus the address of this field. Zero for
    /// values.
    pub target: i32,
}

/// Bits of [`SiteRecord::kind`] that hold the form.
pub const SITE_FORM_MASK: u32 = 3;
/// [`SiteRecord::kind`] of a static branch that jumps to a slow path, which reads the key, while the key is enabled.
pub const SITE_BRANCH: u32 = 0;
/// [`SiteRecord::kind`] of a value of 1, 2 or 4 bytes.
pub const SITE_VALUE: u32 = 1;
/// [`SiteRecord::kind`] of a value with a gate before it: of 8 bytes, or of another loaded object.
pub const SITE_GATED_VALUE: u32 = 2;
/// [`SiteRecord::kind`] of a static branch that reads no key once it is patched: its target is code of the program.
pub const SITE_DIRECT_BRANCH: u32 = 3;
/// Lower of the two bits of [`SiteRecord::kind`] that hold the binary logarithm of the value's width in bytes.
pub const SITE_WIDTH_SHIFT: u32 = 2;
/// Bit of [`SiteRecord::kind`]: the value is sign-extended to the register.
pub const SITE_SIGNED: u32 = 1 << 4;
/// Bit of [`SiteRecord::kind`]: the key belongs to another loaded object, and is found through a word that the loader fills in.
pub const SITE_INDIRECT: u32 = 1 << 5;
/// Bit of [`SiteRecord::kind`] of a direct branch: it falls through while the key is enabled, and jumps while it is disabled.
pub const SITE_LIKELY: u32 = 1 << 6;
/// [`SiteRecord::kind`] of the entry of a static call, whose variable holds the address of a function. (The form is that of a
/// direct branch, so that versions which know neither skip both; the width is that of an address.)
pub const SITE_CALL: u32 = 1 << 7 | 3 << SITE_WIDTH_SHIFT | SITE_DIRECT_BRANCH;

/// Size of the part of a value's instruction that is replaced at once, in bytes.
pub const X86_VALUE_LEN: usize = 8;
/// Offset of a gated value's immediate from its gate, in bytes.
pub const X86_GATED_IMMEDIATE_OFFSET: usize = 7;

/// A variable that a program lets its operators see and set. Absolute addresses.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TunableRecord {
    /// Its name, such as `server.batch_size`, NUL-terminated.
    pub name: *const core::ffi::c_char,
    /// Its description, one line, NUL-terminated.
    pub description: *const core::ffi::c_char,
    /// The variable or the static key.
    pub variable: *mut core::ffi::c_void,
    /// Type of the variable, one of [`TunableType`].
    pub value_type: u32,
    /// Zero.
    pub reserved: u32,
    /// Minimum that may be set, as 64 bits: `u64` for unsigned types, `i64` for signed ones, `f64` for floats.
    pub min: u64,
    /// Maximum that may be set, in the same form.
    pub max: u64,
}

// SAFETY: the fields are addresses of statics. Access to their targets follows the rules of the variable's owner.
unsafe impl Sync for TunableRecord {}

/// Type of a tunable, the values of [`TunableRecord::value_type`].
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "they are named like the types")]
pub enum TunableType {
    /// A static key: on or off.
    Key = 0,
    Bool = 1,
    U8 = 2,
    U16 = 3,
    U32 = 4,
    U64 = 5,
    I8 = 6,
    I16 = 7,
    I32 = 8,
    I64 = 9,
    F32 = 10,
    F64 = 11,
}

impl TunableType {
    /// All types, in the order of their numbers.
    pub const ALL: [TunableType; 12] = {
        use TunableType::*;
        [Key, Bool, U8, U16, U32, U64, I8, I16, I32, I64, F32, F64]
    };

    /// Returns the type with a number.
    pub fn from_number(number: u32) -> Option<TunableType> {
        TunableType::ALL.get(number as usize).copied()
    }

    /// Returns the size of the variable, in bytes.
    pub const fn size_bytes(self) -> usize {
        use TunableType::*;
        match self {
            Bool | U8 | I8 => 1,
            U16 | I16 => 2,
            Key | U32 | I32 | F32 => 4,
            U64 | I64 | F64 => 8,
        }
    }

    /// Returns its name in texts.
    pub const fn name(self) -> &'static str {
        ["key", "bool", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64"][self as usize]
    }
}

/// Announces one event class of an object. 16 bytes.
///
/// A class may be announced many times (inlining and monomorphisation repeat it); readers drop repetitions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EventRecord {
    /// Address of the class's key minus the address of this field.
    pub key: i64,
    /// Address of the function or structure that describes the fields minus the address of this field.
    pub describe: i64,
}

const _: () = assert!(size_of::<SiteRecord>() == 16);
const _: () = assert!(size_of::<EventRecord>() == 16);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<TunableRecord>() == 48);
