//! x86-64: calls of direct sections and of the slow path.

macro_rules! save_registers {
    ($($name:ident => $function:path),*) => {$(
        /// Calls a slow path in ordinary code with the sites' calling convention.
        ///
        /// ```text
        ///   save_registers_…:
        ///       push rcx, rsi, rdi, r8, r9          the general registers that a C function may change, except
        ///       align the stack                     rax, rdx, r10, r11
        ///       call …
        ///       pop them
        /// ```
        /// The compiler does not always align the stack for the site's call: if only another path of the site's
        /// function has a frame, it sets up the frame on that path alone.
        ///
        /// # Safety
        /// The conditions of the called function.
        #[unsafe(naked)]
        unsafe extern "C" fn $name(
            id: *const u32,
            size_bytes: usize,
            which: MaybeUninit<u64>,
            field0: u64,
            field1: u64,
            field2: u64,
        ) {
            ::core::arch::naked_asm!(
                ".cfi_startproc",
                "push rbp",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset rbp, -16",
                "mov rbp, rsp",
                ".cfi_def_cfa_register rbp",
                "push rcx",
                "push rsi",
                "push rdi",
                "push r8",
                "push r9",
                "and rsp, -16",
                "call {function}",
                "lea rsp, [rbp - 40]",
                "pop r9",
                "pop r8",
                "pop rdi",
                "pop rsi",
                "pop rcx",
                "pop rbp",
                ".cfi_def_cfa rsp, 8",
                "ret",
                ".cfi_endproc",
                function = sym $function,
            )
        }
    )*};
}

/// Calls a record function. It preserves the general registers, so that a dormant site does not make its function save
/// any.
#[cfg(not(target_feature = "avx512f"))]
macro_rules! call {
    ($fields:tt $record:path, $id:expr, $size:expr, $which:expr $(, $word:expr)*) => {
        call_clobbering!($fields $record, $id, $size, $which $(, $word)*;)
    };
}

/// Like the macro above; with AVX-512 there are more registers.
#[cfg(target_feature = "avx512f")]
macro_rules! call {
    ($fields:tt $record:path, $id:expr, $size:expr, $which:expr $(, $word:expr)*) => {
        call_clobbering!(
            $fields $record, $id, $size, $which $(, $word)*;
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _, out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _, out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            out("k1") _, out("k2") _, out("k3") _, out("k4") _, out("k5") _, out("k6") _, out("k7") _
        )
    };
}

macro_rules! call_clobbering {
    (0 $record:path, $id:expr, $size:expr, $which:expr; $($more:tt)*) => {
        call_clobbering!([out("r9") _,] $record, $id, $size, $which; $($more)*)
    };
    (1 $record:path, $id:expr, $size:expr, $which:expr, $w0:expr; $($more:tt)*) => {
        call_clobbering!([out("r9") _,] $record, $id, $size, $which, "rcx" = $w0; $($more)*)
    };
    (2 $record:path, $id:expr, $size:expr, $which:expr, $w0:expr, $w1:expr; $($more:tt)*) => {
        call_clobbering!([out("r9") _,] $record, $id, $size, $which, "rcx" = $w0, "r8" = $w1; $($more)*)
    };
    (3 $record:path, $id:expr, $size:expr, $which:expr, $w0:expr, $w1:expr, $w2:expr; $($more:tt)*) => {
        call_clobbering!([] $record, $id, $size, $which, "rcx" = $w0, "r8" = $w1, "r9" = $w2; $($more)*)
    };
    (runs $record:path, $id:expr, $size:expr, $which:expr, $first:expr, $end:expr; $($more:tt)*) => {
        call_clobbering!(2 $record, $id, $size, $which, $first, $end; $($more)*)
    };
    // The first group lists further registers that this function changes.
    ([$($first:tt)*] $record:path, $id:expr, $size:expr, $which:expr $(, $register:tt = $word:expr)*; $($more:tt)*) => {
        ::core::arch::asm!(
            "call {record}",
            record = sym $record,
            in("rdi") $id,
            in("rsi") $size,
            $(in($register) $word,)*
            inout("rdx") $which => _,
            $($first)*
            out("rax") _, out("r10") _, out("r11") _,
            // The slow path is ordinary code, which may change all of these.
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
            out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
            out("xmm14") _, out("xmm15") _, out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            $($more)*
        )
    };
}

#[cfg(test)]
mod tests {
    use core::arch::{asm, naked_asm};
    use core::mem::MaybeUninit;

    /// Returns the stack pointer, modulo 16, at the beginning of a function.
    #[unsafe(naked)]
    unsafe extern "C" fn misalignment() -> u64 {
        naked_asm!("mov rax, rsp", "and rax, 15", "ret")
    }

    save_registers!(save_registers_misalignment => misalignment);

    #[test]
    fn the_slow_path_aligns_the_stack_at_every_site() {
        for shift in [0u64, 8] {
            let found: u64;
            // SAFETY: calls a function that changes rax and preserves other registers; the stack pointer is restored at
            // the end.
            unsafe {
                asm!(
                    "sub rsp, {shift}",
                    "call {function}",
                    "add rsp, {shift}",
                    shift = in(reg) shift,
                    function = sym save_registers_misalignment,
                    out("rax") found,
                    clobber_abi("C"),
                );
            }
            // The return address was pushed last.
            assert_eq!(found, 8, "shifted by {shift}");
        }
    }
}
