//! AArch64: calls of direct sections and of the slow path.

macro_rules! save_registers {
    ($($name:ident => $function:path),*) => {$(
        /// Calls a slow path in ordinary code with the sites' calling convention.
        ///
        /// ```text
        ///   save_registers_…:
        ///       store x0, x1, x3 to x8, x14, x15    the general registers that a C function may change, except
        ///                                           those that a section changes, and x18, which is the platform's
        ///       store q8 to q15                     a C function preserves their lower halves only
        ///       call …
        ///       load them
        /// ```
        /// The return address is in memory meanwhile, so it is signed (`paciasp`, which is a landing pad for indirect
        /// branches as well; no operation on older machines).
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
                // paciasp
                "hint 25",
                ".cfi_negate_ra_state",
                "stp x29, x30, [sp, -224]!",
                ".cfi_def_cfa_offset 224",
                ".cfi_offset x29, -224",
                ".cfi_offset x30, -216",
                "mov x29, sp",
                ".cfi_def_cfa x29, 224",
                "stp x0, x1, [sp, 16]",
                "stp x3, x4, [sp, 32]",
                "stp x5, x6, [sp, 48]",
                "stp x7, x8, [sp, 64]",
                "stp x14, x15, [sp, 80]",
                "stp q8, q9, [sp, 96]",
                "stp q10, q11, [sp, 128]",
                "stp q12, q13, [sp, 160]",
                "stp q14, q15, [sp, 192]",
                "bl {function}",
                "ldp q14, q15, [sp, 192]",
                "ldp q12, q13, [sp, 160]",
                "ldp q10, q11, [sp, 128]",
                "ldp q8, q9, [sp, 96]",
                "ldp x14, x15, [sp, 80]",
                "ldp x7, x8, [sp, 64]",
                "ldp x5, x6, [sp, 48]",
                "ldp x3, x4, [sp, 32]",
                "ldp x0, x1, [sp, 16]",
                "ldp x29, x30, [sp], 224",
                ".cfi_def_cfa sp, 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                // autiasp
                "hint 29",
                ".cfi_negate_ra_state",
                "ret",
                ".cfi_endproc",
                function = sym $function,
            )
        }
    )*};
}

/// Calls a record function. It preserves most general registers, so that a dormant site does not make its function save
/// any but the return address. x18 is changed where it is an ordinary register.
macro_rules! call {
    (0 $record:path, $id:expr, $size:expr, $which:expr) => {
        call_platform!([] $record, $id, $size, $which)
    };
    (1 $record:path, $id:expr, $size:expr, $which:expr, $w0:expr) => {
        call_platform!([in("x3") $w0,] $record, $id, $size, $which)
    };
    (2 $record:path, $id:expr, $size:expr, $which:expr, $w0:expr, $w1:expr) => {
        call_platform!([in("x3") $w0, in("x4") $w1,] $record, $id, $size, $which)
    };
    (3 $record:path, $id:expr, $size:expr, $which:expr, $w0:expr, $w1:expr, $w2:expr) => {
        call_platform!([in("x3") $w0, in("x4") $w1, in("x5") $w2,] $record, $id, $size, $which)
    };
    (runs $record:path, $id:expr, $size:expr, $which:expr, $first:expr, $end:expr) => {
        call_platform!([in("x3") $first, in("x4") $end, out("x5") _,] $record, $id, $size, $which)
    };
}

/// Adds x18 to the changed registers: the slow path is ordinary code, which may use it.
#[cfg(not(any(target_os = "android", target_env = "ohos")))]
macro_rules! call_platform {
    ([$($fields:tt)*] $($rest:tt)*) => { call_vector!([$($fields)* out("x18") _,] $($rest)*) };
}
#[cfg(any(target_os = "android", target_env = "ohos"))]
macro_rules! call_platform {
    ($($rest:tt)*) => { call_vector!($($rest)*) };
}

/// Adds the vector registers that the slow path may change.
#[cfg(not(target_feature = "sve"))]
macro_rules! call_vector {
    ($($rest:tt)*) => { call_clobbering!($($rest)*) };
}
/// Like the macro above; with SVE there are more registers, and q8 to q15 are only a part of theirs.
#[cfg(target_feature = "sve")]
macro_rules! call_vector {
    ([$($fields:tt)*] $($rest:tt)*) => {
        call_clobbering!(
            [
                $($fields)*
                out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _, out("v14") _,
                out("v15") _, out("p0") _, out("p1") _, out("p2") _, out("p3") _, out("p4") _, out("p5") _,
                out("p6") _, out("p7") _, out("p8") _, out("p9") _, out("p10") _, out("p11") _, out("p12") _,
                out("p13") _, out("p14") _, out("p15") _, out("ffr") _,
            ]
            $($rest)*
        )
    };
}

macro_rules! call_clobbering {
    // The first group lists the registers with fields, and further registers that this function changes.
    ([$($fields:tt)*] $record:path, $id:expr, $size:expr, $which:expr) => {
        ::core::arch::asm!(
            "bl {record}",
            record = sym $record,
            in("x0") $id,
            in("x1") $size,
            inout("x2") $which => _,
            $($fields)*
            out("x9") _, out("x10") _, out("x11") _, out("x12") _, out("x13") _, out("x16") _, out("x17") _,
            out("x30") _,
            // The slow path is ordinary code, which may change all of these.
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _, out("v7") _,
            out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _, out("v21") _, out("v22") _,
            out("v23") _, out("v24") _, out("v25") _, out("v26") _, out("v27") _, out("v28") _, out("v29") _,
            out("v30") _, out("v31") _,
        )
    };
}

#[cfg(test)]
mod tests {
    use core::arch::{asm, naked_asm};
    use core::mem::MaybeUninit;

    /// Changes every register that a C function may change, except those that a section changes.
    #[unsafe(naked)]
    unsafe extern "C" fn spoil() {
        naked_asm!(
            "mov x0, -1",
            "mov x1, -1",
            "mov x3, -1",
            "mov x4, -1",
            "mov x5, -1",
            "mov x6, -1",
            "mov x7, -1",
            "mov x8, -1",
            "mov x14, -1",
            "mov x15, -1",
            "movi v8.2d, 0",
            "movi v15.2d, 0",
            "ret",
        )
    }

    save_registers!(save_registers_spoil => spoil);

    #[test]
    fn the_slow_path_preserves_what_sites_keep_in_registers() {
        let mut general = [0_u64; 10];
        let mut vectors = [0_u64; 4];
        // SAFETY: calls a function that changes only the registers that are declared; stores into the two arrays.
        unsafe {
            asm!(
                "mov x0, 10",
                "mov x1, 11",
                "mov x3, 13",
                "mov x4, 14",
                "mov x5, 15",
                "mov x6, 16",
                "mov x7, 17",
                "mov x8, 18",
                "mov x14, 24",
                "mov x15, 25",
                "dup v8.2d, x14",
                "dup v15.2d, x15",
                "bl {function}",
                "stp x0, x1, [x20]",
                "stp x3, x4, [x20, 16]",
                "stp x5, x6, [x20, 32]",
                "stp x7, x8, [x20, 48]",
                "stp x14, x15, [x20, 64]",
                "stp q8, q15, [x21]",
                function = sym save_registers_spoil,
                // Registers that no function changes.
                in("x20") general.as_mut_ptr(),
                in("x21") vectors.as_mut_ptr(),
                clobber_abi("C"),
            );
        }
        assert_eq!(general, [10, 11, 13, 14, 15, 16, 17, 18, 24, 25]);
        assert_eq!(vectors, [24, 24, 25, 25]);
    }
}
