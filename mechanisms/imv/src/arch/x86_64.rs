//! x86-64: a branch is `jmp rel32` or a `nop` of five bytes; a value is a load or a move of an immediate,
//! eight bytes long in both states.

use core::arch::asm;

use dormouse_abi::site::{
    SITE_CALL, SITE_GATED_VALUE, SITE_SIGNED, SITE_VALUE, SITE_WIDTH_SHIFT, X86_BRANCH_LEN, X86_GATED_IMMEDIATE_OFFSET,
    X86_JMP, X86_NOP, X86_TEST, X86_VALUE_LEN,
};

use crate::site::{Form, Site, Store};

/// Whether sites exist and can be patched.
pub(crate) const PATCHED: bool = true;
/// Size of a branch, in bytes.
pub(crate) const GATE_LEN: usize = X86_BRANCH_LEN;

/// Granularity of `mprotect`, in bytes; x86-64 has no other base page.
pub(crate) const fn os_page_bytes() -> usize {
    4096
}

/// Makes a store to text visible to instruction fetches. On a CPU every store is visible. valgrind executes
/// translations of the text, and must be told: this is its client request to discard some (valgrind.h,
/// `VALGRIND_DISCARD_TRANSLATIONS`).
///
/// ```text
///   rotate rdi by 3 + 13 + 61 + 51 = 128 bits; exchange rbx with itself      for a CPU: nothing
///                                                                            for valgrind: rdx := answer to the request at rax
/// ```
pub(crate) fn publish_store(store: Store) {
    const DISCARD_TRANSLATIONS: u64 = 0x1002;
    let span = store.span();
    let request = [DISCARD_TRANSLATIONS, span.start as u64, span.len() as u64, 0, 0, 0];
    // SAFETY: changes no register except the flags and, under valgrind, `rdx`; valgrind reads six words.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0_u64 => _,
            options(nostack),
        );
    }
}

/// Whether an update makes its stores twice.
pub(crate) const STORES_TWICE: bool = false;

/// Returns the store that writes the instruction of a patched site again: none is needed.
pub(crate) fn repeated_store(_site: Site) -> Option<Store> {
    None
}

/// Returns the next store that brings a site towards its variable's state, if it needs one and is in a state that
/// allows one. (A site in any other state, for example with a debugger's breakpoint, is not changed.) A branch may need
/// three stores and a gated value two, in sequence.
///
/// With `bytes_only`, only single bytes are certain to change at once. That is enough for a branch. A value's
/// instruction then stays unchanged, because a thread may be about to execute it, and a gated value is read by the slow
/// path of its gate.
///
/// With `reads_variable`, the site of a value or call goes back to the state in which it was born.
pub(crate) fn next_store(site: Site, bytes_only: bool, reads_variable: bool) -> Option<Store> {
    let wanted = site.wanted();
    match site.form() {
        Form::Branch | Form::DirectBranch => branch_store(site),
        Form::Value | Form::Call if bytes_only => None,
        Form::Value => {
            let seen = site.bytes();
            let patched = match reads_variable {
                true if is_immediate(seen) => load_instruction(site, register_of_immediate(seen))?,
                true => seen,
                false => immediate_instruction(seen, wanted as u32)?,
            };
            (seen != patched).then(|| Store::Double(site.address, u64::from_le_bytes(patched)))
        }
        Form::Call => {
            let seen = site.bytes();
            let patched = call_entry(site, seen, if reads_variable { site.target } else { wanted as usize })?;
            (seen != patched).then(|| Store::Double(site.address, u64::from_le_bytes(patched)))
        }
        Form::GatedValue => {
            let address = site.address + X86_GATED_IMMEDIATE_OFFSET;
            let [gate] = site.bytes();
            if !address.is_multiple_of(8) || !matches!(gate, X86_JMP | X86_TEST) {
                None
            } else if reads_variable {
                (gate == X86_TEST).then_some(Store::Byte(site.address, X86_JMP))
            } else if immediate_behind(site) == wanted {
                (gate == X86_JMP).then_some(Store::Byte(site.address, X86_TEST))
            } else if bytes_only {
                (gate == X86_TEST).then_some(Store::Byte(site.address, X86_JMP))
            } else {
                Some(Store::Double(address, wanted))
            }
        }
    }
}

/// Whether a site gives another answer than its variable. A site that reads the variable never does.
pub(crate) fn is_stale(site: Site) -> bool {
    let wanted = site.wanted();
    match site.form() {
        Form::Branch | Form::DirectBranch => branch_answer(site).is_some_and(|answer| answer != (wanted != 0)),
        Form::Value => {
            let seen = site.bytes();
            is_immediate(seen) && immediate_instruction(seen, wanted as u32) != Some(seen)
        }
        Form::GatedValue => site.bytes::<1>()[0] == X86_TEST && immediate_behind(site) != wanted,
        Form::Call => {
            let seen = site.bytes();
            !jumps_to(site, seen, site.target) && call_entry(site, seen, site.wanted() as usize) != Some(seen)
        }
    }
}

/// Whether a site is in the state that its variable requires, without reading the variable if that is possible.
pub(crate) fn is_in_line(site: Site) -> bool {
    !is_stale(site)
        && match site.form() {
            Form::Branch | Form::DirectBranch => site.bytes() == wanted_branch(site),
            Form::Value => is_immediate(site.bytes()),
            Form::GatedValue => site.bytes::<1>()[0] == X86_TEST,
            Form::Call => jumps_to(site, site.bytes(), site.wanted() as usize),
        }
}

/// First byte of a branch that falls through.
const NOP: u8 = X86_NOP[0];

/// Returns the bytes of `jmp target`.
fn jump(site: Site) -> [u8; X86_BRANCH_LEN] {
    with_opcode(X86_JMP, (site.target.wrapping_sub(site.address + X86_BRANCH_LEN) as u32).to_le_bytes())
}

/// Returns the bytes of a branch in the state that its key requires.
fn wanted_branch(site: Site) -> [u8; X86_BRANCH_LEN] {
    if (site.wanted() != 0) == site.is_likely() { X86_NOP } else { jump(site) }
}

/// Returns the answer that is in a branch's instruction; `None` if it jumps to the slow path, which reads the key.
fn branch_answer(site: Site) -> Option<bool> {
    let seen: [u8; X86_BRANCH_LEN] = site.bytes();
    match seen[0] {
        X86_TEST | NOP => Some(site.is_likely()),
        _ if site.form() == Form::DirectBranch && seen == jump(site) => Some(!site.is_likely()),
        _ => None,
    }
}

/// Whether the next store to a branch lets threads into the code of an enabled key without a load of the key. (If
/// enabled means a jump, two rounds precede it.)
pub(crate) fn opens_at_once(site: Site) -> bool {
    site.form() == Form::DirectBranch
        && site.is_likely()
        && site.wanted() != 0
        && matches!(site.bytes::<1>(), [X86_JMP])
}

fn with_opcode(opcode: u8, rest: [u8; 4]) -> [u8; X86_BRANCH_LEN] {
    let [a, b, c, d] = rest;
    [opcode, a, b, c, d]
}

/// Returns the next store of a branch:
///
/// ```text
///   nop = 0F 1F 44 00 00 ◀──first byte──▶ A9 1F 44 00 00 ◀──other bytes──▶ A9 distance ◀──first byte──▶ E9 distance = jmp target
///                                                      test eax, …                        ◀─── born: E9 distance = jmp slow
/// ```
/// In each state the five bytes are one instruction, and each step changes its first byte or an immediate that has no
/// effect. So the other bytes may change one by one, a writer of single bytes is enough, and the site may span two
/// cache lines. Every core serialises between two steps.
fn branch_store(site: Site) -> Option<Store> {
    let seen: [u8; X86_BRANCH_LEN] = site.bytes();
    let wanted = wanted_branch(site);
    let [opcode, ..] = seen;
    let rest = |bytes: [u8; X86_BRANCH_LEN]| *bytes.last_chunk::<4>().expect("shorter than a branch");
    if seen == wanted {
        None
    } else if opcode == X86_TEST && rest(seen) == rest(wanted) {
        Some(Store::Byte(site.address, wanted[0]))
    } else if opcode == X86_TEST {
        Some(Store::Loose(site.address + 1, rest(wanted)))
    } else {
        // A direct branch may also be as it was born. Its record does not contain the distance of its slow path.
        let is_born = site.form() == Form::DirectBranch && opcode == X86_JMP;
        (seen == X86_NOP || seen == jump(site) || is_born).then_some(Store::Byte(site.address, X86_TEST))
    }
}

/// Size of a call's entry, which is replaced at once, in bytes.
const CALL_LEN: usize = 8;

/// Returns the bytes of a call's entry that jumps to `function`, or, if that is out of reach, to the slow path, which
/// loads its address; `None` if the entry is not as this crate makes it. Only the distance changes, in one aligned word.
fn call_entry(site: Site, seen: [u8; CALL_LEN], function: usize) -> Option<[u8; CALL_LEN]> {
    if !site.address.is_multiple_of(CALL_LEN) || seen[0] != X86_JMP {
        return None;
    }
    let next = site.address + X86_BRANCH_LEN;
    let distance_to = |address: usize| i32::try_from(address.wrapping_sub(next) as isize).ok();
    let distance = distance_to(function).or_else(|| distance_to(site.target))?;
    let mut patched = seen;
    patched[1..X86_BRANCH_LEN].copy_from_slice(&distance.to_le_bytes());
    Some(patched)
}

/// Whether a call's entry jumps to an address.
fn jumps_to(site: Site, seen: [u8; CALL_LEN], address: usize) -> bool {
    let [opcode, a, b, c, d, ..] = seen;
    let distance = i32::from_le_bytes([a, b, c, d]) as isize;
    opcode == X86_JMP && (site.address + X86_BRANCH_LEN).wrapping_add_signed(distance) == address
}

fn immediate_behind(site: Site) -> u64 {
    let all: [u8; X86_GATED_IMMEDIATE_OFFSET + 8] = site.bytes();
    u64::from_le_bytes(*all.last_chunk().expect("longer than 8"))
}

const PREFIX: u8 = 0x3E;
const REX: u8 = 0x40;
const REX_B: u8 = 1;
const REX_R: u8 = 4;
const MOV_IMMEDIATE: u8 = 0xC7;

/// Whether the eight bytes of a value have the patched form.
fn is_immediate(bytes: [u8; X86_VALUE_LEN]) -> bool {
    bytes[0] == PREFIX && bytes[1] & !REX_B == REX && bytes[2] == MOV_IMMEDIATE && bytes[3] & 0xF8 == 0xC0
}

/// Returns the register that an instruction with an immediate loads.
fn register_of_immediate(bytes: [u8; X86_VALUE_LEN]) -> u8 {
    bytes[3] & 7 | (bytes[1] & REX_B) << 3
}

/// Returns the load of a site's variable to a register, extended as the site says; `None` if it is out of reach.
///
/// ```text
///   4 bytes: 3E REX 8B /r      1, 2 bytes: REX 0F xx /r       /r: [rip + disp32]; xx: B6, B7, BE, BF
/// ```
fn load_instruction(site: Site, register: u8) -> Option<[u8; X86_VALUE_LEN]> {
    let distance = site.key.wrapping_sub(site.address + X86_VALUE_LEN) as isize;
    let [a, b, c, d] = i32::try_from(distance).ok()?.to_le_bytes();
    let (rex, memory) = (REX | register >> 1 & REX_R, (register & 7) << 3 | 5);
    let extended = |unsigned: u8| if site.kind & SITE_SIGNED != 0 { unsigned + 8 } else { unsigned };
    let [first, second, third] = match site.kind >> SITE_WIDTH_SHIFT & 3 {
        0 => [rex, 0x0F, extended(0xB6)],
        1 => [rex, 0x0F, extended(0xB7)],
        _ => [PREFIX, rex, 0x8B],
    };
    Some([first, second, third, memory, a, b, c, d])
}

/// Returns `3E REX C7 /0 imm32` for the register that the instruction in `bytes` loads (in either form), or `None` if
/// it has neither form.
///
/// ```text
///   3E REX 8B /r      3E 3E 8B /r      3E 0F xx /r      REX 0F xx /r       /r: [rip + disp32]; xx: B6, B7, BE, BF
/// ```
fn immediate_instruction(bytes: [u8; X86_VALUE_LEN], value: u32) -> Option<[u8; X86_VALUE_LEN]> {
    let is_rex = |byte: u8| byte & !(REX_R | REX_B) == REX;
    let register = if is_immediate(bytes) {
        register_of_immediate(bytes)
    } else {
        let rex = match bytes {
            [PREFIX, PREFIX, 0x8B, ..] | [PREFIX, 0x0F, 0xB6 | 0xB7 | 0xBE | 0xBF, ..] => 0,
            [PREFIX, rex, 0x8B, ..] | [rex, 0x0F, 0xB6 | 0xB7 | 0xBE | 0xBF, ..] if is_rex(rex) => rex,
            _ => return None,
        };
        // Relative to the instruction pointer, and no other addressing mode.
        if bytes[3] & 0xC7 != 0x05 {
            return None;
        }
        bytes[3] >> 3 & 7 | (rex & REX_R) << 1
    };
    let mut patched = [PREFIX, REX | register >> 3, MOV_IMMEDIATE, 0xC0 | register & 7, 0, 0, 0, 0];
    patched[4..].copy_from_slice(&value.to_le_bytes());
    Some(patched)
}

/// The entry of a static call: a function without a prologue, which jumps to another of the same type.
///
/// ```text
///   site:  E9 (slow - next)  3 bytes that are never executed      born       E9 (function - next)      patched
///   slow:  jmp [target]
///   section dormouse_sites += { site - ., SITE_CALL, target - ., slow - . }
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __call_entry {
    ($target:path, ($($argument:ident: $type:ty),*) $(-> $result:ty)?) => {
        #[unsafe(naked)]
        extern "C" fn entry($($argument: $type),*) $(-> $result)? {
            ::core::arch::naked_asm!(
                ".balign 8",
                "2:",
                ".byte 0xe9",
                ".long 4f - 3f",
                "3:",
                ".byte 0xcc, 0xcc, 0xcc",
                "4:",
                "jmp qword ptr [rip + {target}]",
                $crate::__site_record!("143", "{target}", "4b - ."),
                target = sym $target,
            )
        }
    };
}
const _: () = assert!(SITE_CALL == 143);

/// The gate of this architecture. Flags are clobbered, because a site is a `test` between two states.
#[doc(hidden)]
#[macro_export]
macro_rules! __gate {
    ($form:tt $gate:tt) => {
        $crate::__patched_gate!($form $gate { ".byte 0xe9", ".long {slow} - 3f", "3:", } (nomem, nostack))
    };
}

/// Reads the value of an immediate: a constant in the instruction stream, which [`Imv::set`](crate::Imv::set) changes.
///
/// ```text
///   imv_read!(BATCH_SIZE)
/// ```
///
/// The argument is the path of a `static` [`Imv`](crate::Imv). It may be used wherever
/// [`static_branch!`](crate::static_branch) may; each copy that the compiler makes is a site of its own.
///
/// ```text
///   1, 2, 4 bytes:
///     site:  3E.. mov(zx, sx) r32, [variable]     born         mov r32, imm32      patched; both eight bytes, aligned to 8
///   8 bytes:
///     site:  E9 (slow - next)                     born         A9 …                patched
///     next:  mov r64, imm64                       the immediate is aligned to 8
///     after:
///     slow:  mov r64, [variable]; jmp after
///   section dormouse_sites += { site - ., form, width and sign, variable - ., 0 }
/// ```
///
/// The operands and options are explained at [`static_branch!`](crate::static_branch). A read orders nothing, like a
/// relaxed load; until a setter returns, threads may see the old value or the new one, never a mixture. The prefix `3E`
/// has no effect on these instructions; it gives them the length and the alignment that one store can replace, without
/// a `nop`.
///
/// Wait-free; async-signal-safe.
///
/// ```
/// use dormouse_imv::{imv, imv_read};
///
/// imv! {
///     /// Requests that are handled at once.
///     static BATCH_SIZE: u32 = 16;
///     static SCALE: f64 = 0.5;
/// }
///
/// assert_eq!(imv_read!(BATCH_SIZE), 16);
/// BATCH_SIZE.set(64).unwrap();
/// assert_eq!(imv_read!(BATCH_SIZE), 64);
/// assert_eq!(imv_read!(SCALE), 0.5);
/// ```
#[macro_export]
macro_rules! imv_read {
    ($key:path $(,)?) => {{
        let bits: u64 = match const { $crate::shape_of(&$key) } {
            (1, false) => $crate::imv_read!(@value $key, "{{rex}} movzx {0:e}, byte ptr [rip + {1}]", "1"),
            (1, true) => $crate::imv_read!(@value $key, "{{rex}} movsx {0:e}, byte ptr [rip + {1}]", "17"),
            (2, false) => $crate::imv_read!(@value $key, "{{rex}} movzx {0:e}, word ptr [rip + {1}]", "5"),
            (2, true) => $crate::imv_read!(@value $key, "{{rex}} movsx {0:e}, word ptr [rip + {1}]", "21"),
            (4, _) => $crate::imv_read!(@value $key, ".byte 0x3e\n{{rex}} mov {0:e}, dword ptr [rip + {1}]", "9"),
            _ => {
                let bits: u64;
                // SAFETY: the instruction reads no stack and no memory except the variable, whose address the linker
                // provides; both paths through the gate set the register, and the directives add read-only data to
                // other sections.
                unsafe {
                    ::core::arch::asm!(
                        ".balign 8, 0x3e",
                        ".byte 0x3e",
                        "2:",
                        ".byte 0xe9",
                        ".long 5f - 3f",
                        "3:",
                        "movabs {0:r}, 0",
                        "4:",
                        ".subsection 1",
                        "5:",
                        "mov {0:r}, qword ptr [rip + {1}]",
                        "jmp 4b",
                        ".previous",
                        $crate::__site_record!("14", "{1}", "0"),
                        out(reg) bits,
                        sym $key,
                        options(nomem, nostack),
                    );
                }
                bits
            }
        };
        // SAFETY: the bits are those of a value that was set, or of the initial one.
        unsafe { $crate::value_of(&$key, bits) }
    }};
    (@value $key:path, $load:literal, $kind:literal) => {{
        let bits: u32;
        // SAFETY: both states of the site are one whole instruction that sets the register; if it is a load, it reads
        // the variable, which is a static. The directives add read-only data to another section.
        unsafe {
            ::core::arch::asm!(
                ".balign 8, 0x3e",
                "2:",
                $load,
                $crate::__site_record!($kind, "{1}", "0"),
                out(reg) bits,
                sym $key,
                options(nomem, nostack, preserves_flags),
            );
        }
        bits as u64
    }};
}

const fn kind(form: u32, width_log2: u32, signed: u32) -> u32 {
    form | width_log2 << SITE_WIDTH_SHIFT | signed
}
const _: () = assert!(kind(SITE_VALUE, 0, 0) == 1 && kind(SITE_VALUE, 0, SITE_SIGNED) == 17);
const _: () = assert!(kind(SITE_VALUE, 1, 0) == 5 && kind(SITE_VALUE, 1, SITE_SIGNED) == 21);
const _: () = assert!(kind(SITE_VALUE, 2, 0) == 9 && kind(SITE_GATED_VALUE, 3, 0) == 14);

// The template contains these literals, because it cannot name constants.
const _: () = assert!(X86_JMP == 0xE9 && X86_BRANCH_LEN == 1 + 4);
