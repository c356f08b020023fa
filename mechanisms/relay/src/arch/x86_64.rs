//! x86-64: the instructions of each step of the sections.
//!
//! rdi holds the id (or `StampedRecord`), rsi the size, rcx, r8 and r9 the fields. They stay unchanged, except that runs
//! use rcx, and classes with a plan rdi for their entry. These, and a plan's session, are saved below the stack pointer, where
//! no handler writes (psABI, "red zone"). rax, rdx, r10, r11 are free, and so is r9 if it holds no word.
//!
//! | after | rax | r10 | r11 | rdx |
//! | --- | --- | --- | --- | --- |
//! | `arm` | | rseq structure's offset | | |
//! | `find_stream`, `check_at` | control block | state | session | |
//! | `compare` | CPU | | session | |
//! | `count` | | | counter | 1 |
//! | `fit` | control block | state | session | offset of the record's end in its page |
//! | `find_place` | | 16 bytes before the place of the fields | control block | |
//!
//! Stores become visible in program order, so the final store publishes the earlier ones (Intel SDM, volume 3,
//! "Memory Ordering"), and loads are made in program order.
//!
//! The time of a direct section may be read ahead of earlier loads. Timestamps of a stream never decrease all the same:
//! all its sections run on one CPU, whose readings of the counter do not go backwards, and a thread that was preempted
//! starts its section again.

/// Signature before every abort handler.
#[doc(hidden)]
pub const SIGNATURE: u32 = dormouse_abi::rseq::SIGNATURE_X86;

/// The text of one step of a section.
#[doc(hidden)]
#[macro_export]
macro_rules! section_text {
    (begin runs) => { "mov qword ptr [rsp - 8], rcx" };
    (begin $words:tt) => { "" };
    (restore runs) => { "mov rcx, qword ptr [rsp - 8]" };
    (restore $words:tt) => { "" };
    // The check is outside the section, because an abort does not preserve `which`, and the slow path must know whose
    // id it is.
    (compare_owner) => { "" };
    (compare_owner $other:path) => { "cmp qword ptr [rdi + 4], rdx\n jne 70f" };
    (jump_other) => { "" };
    (jump_other $other:path) => { "70: jmp {other}" };
    (jump_slow $fields:tt) => { concat!($crate::section_text!(restore $fields), "\n jmp {slow}") };
    (check_context $context:literal) => {
        concat!("mov rax, qword ptr [rip + ", $context, "@GOTTPOFF]\n cmp qword ptr fs:[rax], 0\n je 50f")
    };
    // The context word is in r9, unless r9 holds a word of the fields.
    (load_context 3 $context:literal) => { $crate::section_text!(check_context $context) };
    (load_context $fields:tt $context:literal) => {
        concat!("mov r9, qword ptr [rip + ", $context, "@GOTTPOFF]\n mov r9, qword ptr fs:[r9]\n test r9, r9\n jz 50f")
    };
    (arm) => { "
        mov r10, qword ptr [rip + {rseq_offset}]
        lea rax, [rip + 66b]
        mov qword ptr fs:[r10 + {RSEQ_CS}], rax
    " };
    // (X) pairs with the store of the word. Without a session the count is 0. A thread that is not registered has a
    // number beyond any count.
    (find_stream) => { concat!("
        mov r11, qword ptr [rip + {session}]
        mov eax, dword ptr fs:[r10 + {CPU_ID}]
        cmp eax, dword ptr [r11 + {CPU_COUNT}]
        jae 50f
        ", $crate::section_text!(find_control class)) };
    // Number 0 is no plan, and the last one is that of a class without an id.
    (find_entry) => { "
        movzx eax, word ptr [rdi + 2]
        lea r10d, [rax - 1]
        cmp r10d, 0xfffe
        jae 58f
        shl eax, {ENTRY_SHIFT}
        mov r10, qword ptr [rip + {entries}]
        test r10, r10
        jz 58f
        mov qword ptr [rsp - 16], rdi
        lea rdi, [r10 + rax]
    " };
    (keep_entry) => { "" };
    (next_entry) => { "
        mov rdi, qword ptr [rdi + {NEXT}]
        test rdi, rdi
        jnz 10b
        mov rdi, qword ptr [rsp - 16]
    " };
    (leave_entry) => { "
        mov rdx, rdi
        mov rdi, qword ptr [rsp - 16]
    " };
    (jump_unplanned) => { "jmp {unplanned}" };
    // (E) pairs with the store of the source, and (X) with that of the session: loads are made in program order.
    (compare $fields:tt) => { concat!("
        mov edx, dword ptr [rdi + {SOURCE}]
        cmp edx, {SOURCE_EVERYBODY}
        jb 44f
        mov r11, qword ptr [rdi + {SESSION_WORD}]
        mov r11, qword ptr [r11]
        mov eax, dword ptr fs:[r10 + {CPU_ID}]
        cmp eax, dword ptr [r11 + {CPU_COUNT}]
        jae 50f
        cmp edx, {SOURCE_EVERYBODY}
        je 48f
        cmp edx, {SOURCE_RANDOM}
        je 46f
        ", $crate::section_text!(load_compared $fields), "
        jmp 47f
        44:
        test edx, edx
        jz 50f
        jmp 40f
        46:
        ", $crate::section_text!(draw_random), "
        47:
        imul r10, qword ptr [rdi + {SCALE}]
        sub r10, qword ptr [rdi + {FIRST}]
        cmp r10, qword ptr [rdi + {SPAN}]
        jbe 48f
    ") };
    (count) => { "
        shl rax, {UNRECORDED_SHIFT}
        add rax, qword ptr [r11 + {UNRECORDED}]
        mov r11d, dword ptr [rdi + {COUNTER}]
        add r11, rax
        cmp qword ptr [r11], 0
        je 50f
        mov edx, 1
        jmp 49f
        48:
    " };
    (load_compared 0) => { "jmp 50f" };
    (load_compared 1) => { "mov r10, rcx" };
    (load_compared 2) => { "
        mov r10, rcx
        cmp dword ptr [rdi + {WORD}], 0
        cmovne r10, r8
    " };
    (load_compared 3) => { "
        mov r10, rcx
        cmp dword ptr [rdi + {WORD}], 1
        cmove r10, r8
        cmova r10, r9
    " };
    (load_compared runs) => { "
        mov r10, rcx
        mov edx, dword ptr [rdi + {FIRST_RUN}]
        test edx, edx
        jz 45f
        cmp edx, dword ptr [rcx + 20]
        jne 50f
        add r10, 24
        45:
        cmp r10, r8
        jae 50f
        mov edx, dword ptr [rdi + {RUN_MIN}]
        cmp edx, dword ptr [r10 + 20]
        ja 50f
        mov edx, dword ptr [rdi + {WORD}]
        cmp rdx, qword ptr [r10 + 8]
        jae 50f
        mov r10, qword ptr [r10]
        mov r10, qword ptr [r10 + rdx * 8]
        cmp dword ptr [rdi + {SOURCE}], {SOURCE_TEXT}
        jne 47f
        bswap r10
    " };
    // `dormouse_abi::rule::random` has the same arithmetic. The CPU's number follows from the place.
    (draw_random) => { "
        shl rax, {RANDOM_STRIDE_SHIFT}
        mov r10, rax
        add r10, qword ptr [rip + {random}]
        movabs rdx, {RANDOM_STEP}
        add rdx, qword ptr [r10]
        mov qword ptr [r10], rdx
        movabs rax, {RANDOM_KEY}
        xor rax, rdx
        mul rdx
        xor rdx, rax
        mov rax, r10
        mov r10, rdx
        sub rax, qword ptr [rip + {random}]
        shr rax, {RANDOM_STRIDE_SHIFT}
    " };
    (find_control $id:ident) => { "
        cmp dword ptr [rdi], {ID_MAX}
        ja 50f
        shl rax, {STRIDE_SHIFT}
        add rax, qword ptr [r11 + {STREAMS}]
        mov r10, qword ptr [rax]
    " };
    // The program determines the length of runs, so all 64 bits are compared.
    (fit runs) => { "
        mov edx, r10d
        and edx, 0xffffff
        add rdx, rsi
        cmp rdx, qword ptr [r11 + {PAGE_LIMIT_BYTES}]
        ja 50f
    " };
    (fit $words:tt) => { "
        mov edx, r10d
        and edx, 0xffffff
        add edx, esi
        cmp edx, dword ptr [r11 + {PAGE_LIMIT_BYTES}]
        ja 50f
    " };
    // The comparison for a record with tags.
    (fit_tagged runs) => { "
        mov qword ptr [rsp - 24], r11
        mov edx, r10d
        and edx, 0xffffff
        add rdx, rsi
        add rdx, qword ptr [r11 + {TAGS_SIZE}]
        cmp rdx, qword ptr [r11 + {PAGE_LIMIT_BYTES}]
        ja 50f
    " };
    (fit_tagged $words:tt) => { "
        mov qword ptr [rsp - 24], r11
        mov edx, r10d
        and edx, 0xffffff
        add edx, esi
        add edx, dword ptr [r11 + {TAGS_SIZE}]
        cmp edx, dword ptr [r11 + {PAGE_LIMIT_BYTES}]
        ja 50f
    " };
    // The comparison for a header that is `LESS` bytes shorter than the one that the size includes.
    (fit_less runs) => { "
        mov edx, r10d
        and edx, 0xffffff
        add rdx, rsi
        sub rdx, {LESS}
        cmp rdx, qword ptr [r11 + {PAGE_LIMIT_BYTES}]
        ja 50f
    " };
    (fit_less $words:tt) => { "
        mov edx, r10d
        and edx, 0xffffff
        add edx, esi
        sub edx, {LESS}
        cmp edx, dword ptr [r11 + {PAGE_LIMIT_BYTES}]
        ja 50f
    " };
    // The page's offset: the unit, in bits 24 to 47, times 4,096. If a stray pointer has overwritten the state word,
    // nothing is written outside the mapping.
    (find_place) => { "
        shl r10, 16
        shr r10, 28
        and r10, -4096
        cmp r10, qword ptr [r11 + {LAST_PAGE_OFFSET}]
        ja 50f
        add r10, qword ptr [r11 + {BASE}]
        add r10, rdx
        sub r10, rsi
        mov r11, rax
    " };
    (store_header $fields:tt $context:literal) => { concat!("
        rdtsc
        cmp edx, dword ptr [r11 + {EXPIRY}]
        jae 50f
        shl rdx, 48
        shl rax, 16
        or rax, rdx
        mov ax, word ptr [rdi]
        mov qword ptr [r10], rax
        ", $crate::section_text!(store_context $fields $context)
    ) };
    // The word is tested again, because a signal handler may have cleared it before the section.
    (store_context 3 $context:literal) => {
        concat!("mov rax, qword ptr [rip + ", $context, "@GOTTPOFF]\n mov rax, qword ptr fs:[rax]\n test rax, rax\n jz 50f\n mov qword ptr [r10 + 8], rax")
    };
    (store_context $fields:tt $context:literal) => { "mov qword ptr [r10 + 8], r9" };
    // The header is before the tags; rdx counts up to 0.
    (store_tagged_header $fields:tt $context:literal) => { concat!("
        rdtsc
        cmp edx, dword ptr [r11 + {EXPIRY}]
        jae 50f
        shl rdx, 48
        shl rax, 16
        or rax, rdx
        mov ax, word ptr [rdi]
        mov rdx, qword ptr [rsp - 24]
        mov rdx, qword ptr [rdx + {TAGS_SIZE}]
        neg rdx
        mov qword ptr [r10 + rdx], rax
        ", $crate::section_text!(store_tagged_context $fields $context), "
        test rdx, rdx
        jz 57f
        56:
        mov rax, qword ptr [rsp - 24]
        mov rax, qword ptr [rax + rdx + {TAG_OFFSETS_END}]
        test rax, rax
        jz 59f
        mov rax, qword ptr fs:[rax]
        59:
        mov qword ptr [r10 + rdx + 16], rax
        add rdx, 8
        jnz 56b
        57:
    ") };
    (store_tagged_context 3 $context:literal) => {
        concat!("mov rax, qword ptr [rip + ", $context, "@GOTTPOFF]\n mov rax, qword ptr fs:[rax]\n test rax, rax\n jz 50f\n mov qword ptr [r10 + rdx + 8], rax")
    };
    (store_tagged_context $fields:tt $context:literal) => { "mov qword ptr [r10 + rdx + 8], r9" };
    // The epoch of this time is its upper half plus one.
    (store_compact_header) => { "
        rdtsc
        inc edx
        cmp edx, dword ptr [r11 + {EPOCH}]
        jne 50f
        movzx edx, byte ptr [rdi]
        mov byte ptr [r10 + {LESS}], dl
        mov dword ptr [r10 + {LESS} + 1], eax
    " };
    (commit) => { "add qword ptr [r11], rsi" };
    // Either the size is added to the state word, or 1 to a counter.
    (commit_either) => { "
        mov rdx, qword ptr [rsp - 24]
        mov rdx, qword ptr [rdx + {TAGS_SIZE}]
        add rdx, rsi
        49:
        add qword ptr [r11], rdx
    " };
    (commit_less) => { "lea rdx, [rsi - {LESS}]\n add qword ptr [r11], rdx" };
    // The signature is the operand of an undefined instruction.
    (signature) => { ".byte 0x0f, 0xb9, 0x3d\n .long {SIGNATURE}" };

    (arm_at) => { "
        mov r10, qword ptr [rdi + {RSEQ_OFFSET}]
        lea rax, [rip + 66b]
        mov qword ptr fs:[r10 + {RSEQ_CS}], rax
    " };
    (check_at) => { "
        mov eax, dword ptr fs:[r10 + {CPU_ID}]
        cmp eax, dword ptr [rdi + {CPU}]
        jne 51f
        mov r11, qword ptr [rdi + {SESSION}]
        mov rax, qword ptr [rdi + {SESSION_WORD}]
        cmp qword ptr [rax], r11
        jne 53f
        mov rax, qword ptr [rdi + {CONTROL}]
        mov r10, qword ptr [rax]
        cmp r10, qword ptr [rdi + {STATE}]
        jne 51f
    " };
    (store_header_at context) => { "
        mov rax, qword ptr [rdi + {TIMESTAMP}]
        shl rax, 16
        mov ax, word ptr [rdi + {ID}]
        mov qword ptr [r10], rax
        mov rax, qword ptr [rdi + {CONTEXT}]
        mov qword ptr [r10 + 8], rax
    " };
    (store_header_at compact) => { "
        mov al, byte ptr [rdi + {ID}]
        mov byte ptr [r10 + {LESS}], al
        mov eax, dword ptr [rdi + {TIMESTAMP}]
        mov dword ptr [r10 + {LESS} + 1], eax
    " };
    (store_header_at extended) => { "
        mov byte ptr [r10 + {LESS}], {EXTENDED}
        mov ax, word ptr [rdi + {ID}]
        mov word ptr [r10 + {LESS} + 1], ax
        mov rax, qword ptr [rdi + {TIMESTAMP}]
        mov qword ptr [r10 + {LESS} + 3], rax
    " };
    (result_at 0) => { "xor eax, eax" };
    (result_at $result:literal) => { concat!("mov eax, ", $result) };

    // Interrupts the section if the point is chosen, once the section has passed it as often as the second word says.
    // Changes the flags, which nothing needs at a point.
    (point $point:literal []) => { "" };
    (point $point:literal [$injected:path]) => {
        concat!(
            "cmp dword ptr [rip + {injected}], ", $point, "\n jne 80f\n",
            "dec dword ptr [rip + {injected} + 4]\n jns 80f\n int3\n 80:"
        )
    };
    (store 0 $injected:tt) => { "" };
    (store 1 $injected:tt) => { "mov qword ptr [r10 + 16], rcx" };
    (store 2 $injected:tt) => { concat!($crate::section_text!(store 1 []), "\n mov qword ptr [r10 + 24], r8") };
    (store 3 $injected:tt) => { concat!($crate::section_text!(store 2 []), "\n mov qword ptr [r10 + 32], r9") };
    // Copies each segment: its whole words from the last to the first, two at a time; then, if it is exact and has more
    // bytes, its last eight bytes, or all bytes if there are fewer.
    (store runs $injected:tt) => { concat!("
        add r10, 16
        30:
        cmp rcx, r8
        je 39f
        mov rdx, qword ptr [rcx]
        mov r9, qword ptr [rcx + 8]
        test r9b, 1
        jz 31f
        mov rax, qword ptr [rdx + r9 * 8 - 8]
        mov qword ptr [r10 + r9 * 8 - 8], rax
        dec r9
        31:
        test r9, r9
        jz 33f
        32:
        mov rax, qword ptr [rdx + r9 * 8 - 8]
        mov qword ptr [r10 + r9 * 8 - 8], rax
        mov rax, qword ptr [rdx + r9 * 8 - 16]
        mov qword ptr [r10 + r9 * 8 - 16], rax
        sub r9, 2
        jnz 32b
        33:
        mov r9d, dword ptr [rcx + 20]
        cmp dword ptr [rcx + 16], 0
        je 37f
        cmp r9d, 8
        jb 34f
        mov rax, qword ptr [rdx + r9 - 8]
        mov qword ptr [r10 + r9 - 8], rax
        jmp 37f
        34:
        cmp r9d, 4
        jb 35f
        mov eax, dword ptr [rdx]
        mov dword ptr [r10], eax
        mov eax, dword ptr [rdx + r9 - 4]
        mov dword ptr [r10 + r9 - 4], eax
        jmp 37f
        35:
        mov al, byte ptr [rdx]
        mov byte ptr [r10], al
        mov al, byte ptr [rdx + r9 - 1]
        mov byte ptr [r10 + r9 - 1], al
        shr r9d, 1
        mov al, byte ptr [rdx + r9]
        mov byte ptr [r10 + r9], al
        mov r9d, dword ptr [rcx + 20]
        37:
        ", $crate::section_text!(point 5 $injected), "
        add r10, r9
        add rcx, 24
        jmp 30b
        39:
    ") };
}

/// Returns the timestamp counter, in ticks, read after all earlier loads. Otherwise it could be read ahead of them, and
/// a thread that has just claimed a stream could get an earlier time than the previous claimant (Intel SDM, volume 2,
/// RDTSC and LFENCE).
#[inline(always)]
pub fn timestamp() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction, which changes nothing.
    unsafe { core::arch::x86_64::_mm_lfence() };
    // SAFETY: every x86-64 CPU has the instruction, and Linux lets user mode use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
