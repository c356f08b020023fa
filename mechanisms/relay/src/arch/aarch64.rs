//! AArch64: the instructions of each step of the sections.
//!
//! x0 holds the id (or `StampedRecord`), x1 the size, x3, x4 and x5 the fields. They stay unchanged, except that runs use
//! x5. x2, x9 to x13, x16 and x17 are free: x16 and x17 because the linker may change them on the way to a function
//! anyway. x18 is the platform's. There is no memory below the stack pointer that a handler would respect; sections of
//! classes with a plan keep their entry and its session on the stack.
//!
//! | after | x2 | x9 | x10 | x11 | x12 | x16 | x17 |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | `load_context` | | context | thread pointer | | | | |
//! | `arm` | | context | rseq structure | | | | |
//! | `find_stream`, `check_at` | limit of a page | context | state | session | | control block | id |
//! | `compare` | entry | context | | session | | CPU | |
//! | `count` | | context | count | | | counter | |
//! | `fit` | | context | state | session | offset of the record in its page | control block | id |
//! | `find_place` | | context | state | 16 bytes before the place of the fields | | control block | id |
//!
//! # Order
//! Other CPUs may see plain stores in any order, so the final store is a release, which pairs with the Acquire (C) by
//! which readers load the word. On the CPU itself program order is enough, and between two of its threads the kernel
//! switches, which is a full barrier.
//!
//! All that a section reads of a session is at addresses that it computes from the session word: an address dependency,
//! so these loads are made after the load of the word ("Dependency-ordered-before", Arm ARM, B2.3). The id is at an
//! address of its own; it must not be one that was read for an earlier session, so its address is made to depend on the
//! word, too. An acquiring load of the word would do as well, but it would wait for the final store of the record
//! before.
//!
//! # Time
//! `cntvct_el0` may be read speculatively and ahead of earlier instructions (Arm ARM, "The virtual counter"). No `isb`,
//! which would cost tens of cycles, prevents this in a direct section. Timestamps of a stream never decrease all the
//! same:
//! * All sections of a stream run on one CPU, and reads of `cntvct_el0` occur in program order relative to each other
//!   (Arm ARM, CNTVCT_EL0, "Configuration").
//! * Another thread of this CPU, or a thread that has come from another CPU, has returned from an exception in
//!   between. This is a context synchronization event, ahead of which no system register is read (Arm ARM,
//!   "Synchronization requirements for AArch64 System registers").
//! * A thread that was preempted or interrupted in a section starts it again.
//!
//! A reader that has seen the final store and then reads the counter behind an `isb` gets no earlier time: the record's
//! stores depend on its time, and the system counter does not go backwards for devices that communicate (Arm ARM,
//! "The system counter"). As with `rdtsc` on x86-64, a message from another CPU that was received just before a record
//! does not delay the record's time.
//!
//! # Control flow
//! A section has no frame and calls nothing, so that its return address is never in memory and need not be signed. It
//! begins with a landing pad for indirect branches (`bti c`; no operation on older machines), because it may be called
//! by pointer or through the linker's veneers. The abort handler needs none: the kernel sets the program counter itself,
//! and no indirect branch is in a section. It is behind the section, because a conditional branch does not reach
//! another section of the program.

use core::arch::asm;

/// Signature before every abort handler, as an instruction: `brk #0x45e0`.
#[doc(hidden)]
pub const SIGNATURE: u32 = 0xd428_bc00;

/// The text of one step of a section.
#[doc(hidden)]
#[macro_export]
macro_rules! section_text {
    // bti c
    (begin $fields:tt) => { "hint 34" };
    (restore $fields:tt) => { "" };
    // The check is outside the section, because an abort does not preserve `which`, and the slow path must know whose
    // id it is.
    (compare_owner) => { "" };
    (compare_owner $other:path) => { "ldur x9, [x0, 4]\n cmp x9, x2\n b.ne 70f" };
    (jump_other) => { "" };
    (jump_other $other:path) => { "70: b {other}" };
    (jump_slow $fields:tt) => { "b {slow}" };
    (check_context $context:literal) => { $crate::section_text!(load_context 0 $context) };
    (load_context $fields:tt $context:literal) => { concat!("
        adrp x9, :gottprel:", $context, "
        ldr x9, [x9, :gottprel_lo12:", $context, "]
        mrs x10, tpidr_el0
        ldr x9, [x10, x9]
        cbz x9, 50f
    ") };
    (arm) => { "
        adrp x11, {rseq_offset}
        ldr x11, [x11, :lo12:{rseq_offset}]
        add x10, x10, x11
        adrp x11, 66b
        add x11, x11, :lo12:66b
        str x11, [x10, {RSEQ_CS}]
    " };
    // (X) pairs with the store of the word, by the dependencies above. Without a session the count is 0. A thread that
    // is not registered has a number beyond any count.
    (find_stream) => { concat!("
        adrp x11, {session}
        ldr x11, [x11, :lo12:{session}]
        ldr w16, [x10, {CPU_ID}]
        ldr w17, [x11, {CPU_COUNT}]
        cmp w16, w17
        b.hs 50f
        eor x17, x11, x11
        ldr w17, [x0, x17]
        ", $crate::section_text!(check_id)) };
    (find_control entry) => { concat!("ldr w17, [x2]\n", $crate::section_text!(check_id)) };
    (check_id) => { "
        mov w13, {ID_MAX}
        cmp w17, w13
        b.hi 50f
        ldp x10, x2, [x11, {STREAMS}] // and {PAGE_LIMIT_BYTES}
        add x16, x10, x16, lsl {STRIDE_SHIFT}
        ldr x10, [x16]
    " };
    // Number 0 is no plan, and the last one is that of a class without an id.
    (find_entry) => { "
        ldrh w16, [x0, 2]
        sub w17, w16, 1
        mov w13, 0xfffe
        cmp w17, w13
        b.hs 58f
        adrp x17, {entries}
        ldr x17, [x17, :lo12:{entries}]
        cbz x17, 58f
        add x2, x17, x16, lsl {ENTRY_SHIFT}
        sub sp, sp, 16
        .cfi_adjust_cfa_offset 16
    " };
    // The section needs all registers that it may change.
    (keep_entry) => { "str x2, [sp]" };
    (next_entry) => { "
        ldr x2, [sp]
        add x2, x2, {NEXT}
        ldar x2, [x2]
        cbnz x2, 10b
        add sp, sp, 16
        .cfi_adjust_cfa_offset -16
    " };
    (leave_entry) => { "
        .cfi_adjust_cfa_offset 16
        ldr x2, [sp], 16
        .cfi_adjust_cfa_offset -16
    " };
    (jump_unplanned) => { "b {unplanned}" };
    // (E) Acquire pairs with the store of the source. (X) pairs with that of the session: what follows depends on it.
    (compare $fields:tt) => { concat!("
        add x11, x2, {SOURCE}
        ldar w13, [x11]
        cmp w13, {SOURCE_EVERYBODY}
        b.lo 44f
        ldr x11, [x2, {SESSION_WORD}]
        ldr x11, [x11]
        ldr w16, [x10, {CPU_ID}]
        ldr w17, [x11, {CPU_COUNT}]
        cmp w16, w17
        b.hs 50f
        cmp w13, {SOURCE_EVERYBODY}
        b.eq 48f
        cmp w13, {SOURCE_RANDOM}
        b.eq 46f
        ", $crate::section_text!(load_compared $fields), "
        b 47f
        44:
        cbz w13, 50f
        b 40f
        46:
        ", $crate::section_text!(draw_random), "
        47:
        ldr x13, [x2, {SCALE}]
        mul x12, x12, x13
        ldp x13, x17, [x2, {FIRST}] // and {SPAN}
        sub x12, x12, x13
        cmp x12, x17
        b.ls 48f
    ") };
    (count) => { "
        ldr x13, [x11, {UNRECORDED}]
        add x16, x13, x16, lsl {UNRECORDED_SHIFT}
        ldr w13, [x2, {COUNTER}]
        add x16, x16, x13
        ldr x10, [x16]
        cbz x10, 50f
        add x10, x10, 1
        b 49f
        48:
    " };
    (load_compared 0) => { "b 50f" };
    (load_compared 1) => { "mov x12, x3" };
    (load_compared 2) => { "
        ldr w13, [x2, {WORD}]
        cmp w13, 0
        csel x12, x3, x4, eq
    " };
    (load_compared 3) => { "
        ldr w13, [x2, {WORD}]
        cmp w13, 1
        csel x12, x3, x4, lo
        csel x12, x12, x5, ls
    " };
    (load_compared runs) => { "
        mov x12, x3
        ldr w13, [x2, {FIRST_RUN}]
        cbz w13, 45f
        ldr w17, [x3, 20]
        cmp w13, w17
        b.ne 50f
        add x12, x12, 24
        45:
        cmp x12, x4
        b.hs 50f
        ldr w13, [x2, {RUN_MIN}]
        ldr w17, [x12, 20]
        cmp w13, w17
        b.hi 50f
        ldr w13, [x2, {WORD}]
        ldr x17, [x12, 8]
        cmp x13, x17
        b.hs 50f
        ldr x12, [x12]
        ldr x12, [x12, x13, lsl 3]
        ldr w13, [x2, {SOURCE}]
        cmp w13, {SOURCE_TEXT}
        b.ne 47f
        rev x12, x12
    " };
    // `dormouse_abi::rule::random` has the same arithmetic.
    (draw_random) => { concat!("
        adrp x10, {random}
        ldr x10, [x10, :lo12:{random}]
        add x10, x10, x16, lsl {RANDOM_STRIDE_SHIFT}
        ldr x12, [x10]
        ", $crate::section_text!(constant "RANDOM_STEP"), "
        add x12, x12, x13
        str x12, [x10]
        ", $crate::section_text!(constant "RANDOM_KEY"), "
        eor x13, x13, x12
        mul x17, x12, x13
        umulh x12, x12, x13
        eor x12, x12, x17
    ") };
    // Loads x13 with an operand of 64 bits.
    (constant $name:literal) => { concat!("
        movz x13, ({", $name, "} >> 48) & 0xffff, lsl 48
        movk x13, ({", $name, "} >> 32) & 0xffff, lsl 32
        movk x13, ({", $name, "} >> 16) & 0xffff, lsl 16
        movk x13, {", $name, "} & 0xffff
    ") };
    (fit $fields:tt) => { "
        and x12, x10, 0xffffff
        add x13, x12, x1
        cmp x13, x2
        b.hi 50f
    " };
    (fit_tagged $fields:tt) => { "
        str x11, [sp, 8]
        and x12, x10, 0xffffff
        ldr x13, [x11, {TAGS_SIZE}]
        add x13, x13, x12
        add x13, x13, x1
        cmp x13, x2
        b.hi 50f
    " };
    // For a header that is `LESS` bytes shorter than the one that the size includes.
    (fit_less $fields:tt) => { "
        and x12, x10, 0xffffff
        sub x12, x12, {LESS}
        add x13, x12, x1
        cmp x13, x2
        b.hi 50f
    " };
    // The page's offset: the unit, in bits 24 to 47, times 4,096. If a stray pointer has overwritten the state word,
    // nothing is written outside the mapping.
    (find_place) => { "
        ldp x11, x13, [x11, {BASE}] // and {LAST_PAGE_OFFSET}
        ubfx x2, x10, 24, 24
        cmp x13, x2, lsl 12
        b.lo 50f
        add x11, x11, x2, lsl 12
        add x11, x11, x12
    " };
    (store_header $fields:tt $context:literal) => { "
        ldr x2, [x16, {EXPIRY}]
        mrs x12, cntvct_el0
        cmp x2, x12, lsr 32
        b.ls 50f
        bfi x17, x12, 16, 48
        stp x17, x9, [x11]
    " };
    // The tags follow the header, and x11 follows the tags.
    (store_tagged_header $fields:tt $context:literal) => { concat!($crate::section_text!(store_header $fields $context), "
        ldr x2, [sp, 8]
        ldr x13, [x2, {TAGS_SIZE}]
        cbz x13, 57f
        add x2, x2, {TAG_OFFSETS_END}
        sub x2, x2, x13
        mrs x9, tpidr_el0
        56:
        ldr x12, [x2], 8
        cbz x12, 59f
        ldr x12, [x9, x12]
        59:
        str x12, [x11, 16]
        add x11, x11, 8
        subs x13, x13, 8
        b.ne 56b
        57:
    ") };
    // The epoch of this time is its upper half plus one.
    (store_compact_header) => { "
        ldr x2, [x16, {EPOCH}]
        mrs x12, cntvct_el0
        sub x2, x2, 1
        cmp x2, x12, lsr 32
        b.ne 50f
        strb w17, [x11, {LESS}]
        str w12, [x11, {LESS} + 1]
    " };
    // (A) pairs with (C), by which readers load the word.
    (commit) => { "add x10, x10, x1\n stlr x10, [x16]" };
    // Either the state word with the record's size, or the counter, becomes visible. (A) pairs with (C), by which readers
    // load the word.
    (commit_either) => { "
        ldr x2, [sp, 8]
        ldr x2, [x2, {TAGS_SIZE}]
        add x10, x10, x1
        add x10, x10, x2
        49:
        stlr x10, [x16]
    " };
    // (A) pairs with (C), by which readers load the word.
    (commit_less) => { "add x10, x10, x1\n sub x10, x10, {LESS}\n stlr x10, [x16]" };
    (signature) => { ".inst {SIGNATURE}" };

    (arm_at) => { "
        mrs x10, tpidr_el0
        ldr x11, [x0, {RSEQ_OFFSET}]
        add x10, x10, x11
        adrp x11, 66b
        add x11, x11, :lo12:66b
        str x11, [x10, {RSEQ_CS}]
    " };
    (check_at) => { "
        ldr w16, [x10, {CPU_ID}]
        ldr w17, [x0, {CPU}]
        cmp w16, w17
        b.ne 51f
        ldr x11, [x0, {SESSION}]
        ldr x16, [x0, {SESSION_WORD}]
        ldr x17, [x16]
        cmp x17, x11
        b.ne 53f
        ldr x16, [x0, {CONTROL}]
        ldr x10, [x16]
        ldr x17, [x0, {STATE}]
        cmp x10, x17
        b.ne 51f
        ldr x2, [x11, {PAGE_LIMIT_BYTES}]
        ldrh w17, [x0, {ID}]
        ldr x9, [x0, {TIMESTAMP}]
    " };
    (store_header_at context) => { "
        bfi x17, x9, 16, 48
        ldr x12, [x0, {CONTEXT}]
        stp x17, x12, [x11]
    " };
    (store_header_at compact) => { "
        strb w17, [x11, {LESS}]
        str w9, [x11, {LESS} + 1]
    " };
    (store_header_at extended) => { "
        mov w12, {EXTENDED}
        strb w12, [x11, {LESS}]
        strh w17, [x11, {LESS} + 1]
        str x9, [x11, {LESS} + 3]
    " };
    (result_at $result:literal) => { concat!("mov w0, ", $result) };

    (store 0 $injected:tt) => { "" };
    (store 1 $injected:tt) => { "str x3, [x11, 16]" };
    (store 2 $injected:tt) => { "stp x3, x4, [x11, 16]" };
    (store 3 $injected:tt) => { "stp x3, x4, [x11, 16]\n str x5, [x11, 32]" };
    // Copies each segment: its whole words, two at a time; then, if it is exact and has more bytes, its last eight
    // bytes, or all bytes if there are fewer. x9 is the segment, x11 the place of its copy, and x2 and x5 are the
    // places of the next word in both.
    (store runs $injected:tt) => { concat!("
        mov x9, x3
        add x11, x11, 16
        30:
        cmp x9, x4
        b.eq 39f
        ldp x2, x17, [x9]
        mov x5, x11
        tbz x17, 0, 31f
        ldr x12, [x2], 8
        str x12, [x5], 8
        31:
        lsr x17, x17, 1
        cbz x17, 33f
        32:
        ldp x12, x13, [x2], 16
        stp x12, x13, [x5], 16
        sub x17, x17, 1
        cbnz x17, 32b
        33:
        ldp w12, w17, [x9, 16]
        cbz w12, 37f
        cmp w17, 8
        b.lo 34f
        sub x12, x12, 8
        ldr x13, [x2, x12]
        str x13, [x5, x12]
        b 37f
        34:
        tbz w17, 2, 35f
        ldr w12, [x2], 4
        str w12, [x5], 4
        35:
        tbz w17, 1, 36f
        ldrh w12, [x2], 2
        strh w12, [x5], 2
        36:
        tbz w17, 0, 37f
        ldrb w12, [x2]
        strb w12, [x5]
        37:
        ", $crate::section_text!(point 5 $injected), "
        add x11, x11, x17
        add x9, x9, 24
        b 30b
        39:
    ") };

    // Interrupts the section if the point is chosen, once the section has passed it as often as the second word says.
    // Changes the flags, x12 and x13, which nothing needs at a point.
    (point $point:literal []) => { "" };
    (point $point:literal [$injected:path]) => { concat!("
        adrp x13, {injected}
        add x13, x13, :lo12:{injected}
        ldr w12, [x13]
        cmp w12, ", $point, "
        b.ne 80f
        ldr w12, [x13, 4]
        subs w12, w12, 1
        str w12, [x13, 4]
        b.pl 80f
        brk 1
        80:
    ") };
}

/// Returns the virtual counter, in ticks, read after all earlier loads. Otherwise it could be read ahead of them, and a
/// thread that has just claimed a stream could get an earlier time than the previous claimant. The barrier waits for
/// the loads, but not for reads of system registers, which the `isb` holds back (Arm ARM, DSB and ISB).
#[inline(always)]
pub fn timestamp() -> u64 {
    let ticks: u64;
    // SAFETY: every AArch64 CPU has these instructions, which change nothing, and Linux lets user mode read the counter
    // or reads it for user mode.
    unsafe {
        asm!("dsb ishld", "isb", "mrs {ticks}, cntvct_el0", ticks = out(reg) ticks, options(nostack, preserves_flags));
    }
    ticks
}

/// Returns the frequency that the firmware has told for the counter, in Hz.
pub fn told_frequency_hz() -> u64 {
    let frequency_hz: u64;
    // SAFETY: every AArch64 CPU has the register, and Linux lets user mode read it.
    unsafe {
        asm!(
            "mrs {frequency_hz}, cntfrq_el0",
            frequency_hz = out(reg) frequency_hz,
            options(nostack, nomem, pure, preserves_flags),
        );
    }
    frequency_hz
}
