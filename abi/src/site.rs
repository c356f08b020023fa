//! Patchable sites: what a compiled gate leaves behind for the patcher.
//!
//! A site is five bytes of code. It is *born* as a jump to the slow path and the four bytes of displacement never change;
//! only the first byte does:
//!
//! ```text
//!   born, armed   E9 dd dd dd dd   jmp  slow path (which reads the key)
//!   dormant       A9 dd dd dd dd   test eax, imm32 (clobbers flags, touches no memory)
//! ```

/// First byte of a site that jumps to its slow path (x86-64 `jmp rel32`).
pub const X86_JMP: u8 = 0xE9;
/// First byte of a dormant site (x86-64 `test eax, imm32`).
pub const X86_TEST: u8 = 0xA9;
/// Bytes of code in one site.
pub const X86_SITE_LEN: usize = 5;

/// Section that holds the [`SiteRecord`]s of one object.
pub const SITES_SECTION: &str = "dormouse_sites";
/// Section that holds the [`EventRecord`]s of one object.
pub const EVENTS_SECTION: &str = "dormouse_events";

/// One patchable site. Read-only, position-independent, 16 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SiteRecord {
    /// Address of the site minus the address of this field.
    pub site: i32,
    /// [`SITE_BRANCH`]; other kinds are reserved.
    pub kind: u32,
    /// Address of the key minus the address of this field.
    pub key: i64,
}

/// [`SiteRecord::kind`] of a static branch.
pub const SITE_BRANCH: u32 = 0;

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
