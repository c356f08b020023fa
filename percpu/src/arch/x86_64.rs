//! The critical sections for x86-64 Linux.
//!
//! A section's name is its pseudo-code: words read from left to right, `load` a word, `cbne` compare and branch out if
//! not equal, `stores` any number of plain stores, `store` the final one. Every section begins with the comparison of
//! `cpu_id`, which the names leave out.
//!
//! The kernel's part of the contract (`kernel/rseq.c`, `include/uapi/linux/rseq.h`): when it preempts or migrates a
//! thread or delivers a signal to it, and the thread's `rseq_cs` points to a descriptor, and the instruction pointer is
//! at or after `start_ip` and before `start_ip + post_commit_offset`, it sets the instruction pointer to `abort_ip`. It
//! checks that the four bytes before `abort_ip` are the signature that libc registered, so that nobody can abuse a
//! descriptor to jump anywhere. All other registers keep what they held.

use core::arch::asm;
use core::ffi::CStr;

use dormouse_abi::rseq::{OFFSET_CPU_ID, OFFSET_CPU_ID_START, OFFSET_RSEQ_CS, SIGNATURE_X86};
use dormouse_abi::txn::{Store, Txn};

use super::Outcome;

const _: () = assert!(size_of::<Outcome>() == 4);
const _: () = assert!(core::mem::offset_of!(Txn, guard) == 0 && core::mem::offset_of!(Txn, expected) == 8);
const _: () = assert!(core::mem::offset_of!(Store, value) == 8 && core::mem::offset_of!(Store, width) == 16);

#[cfg(any(test, feature = "inject"))]
macro_rules! inject {
    ($point:literal) => {
        concat!(
            "mov {delay}, qword ptr [rip + {delays} + 8 * ",
            $point,
            "]\n",
            "test {delay}, {delay}\n",
            "jz 23f\n",
            "22:\n",
            "dec {delay}\n",
            "jnz 22b\n",
            "23:\n",
        )
    };
}
#[cfg(not(any(test, feature = "inject")))]
macro_rules! inject {
    ($point:literal) => {
        ""
    };
}

/// Wraps the body of a section, whose last instruction is the final store, in all that the kernel wants to see.
///
/// ```text
///     outcome = Done
///     rseq_cs = &descriptor
///  4: ─┐ if cpu_id != cpu: goto 7
///      │ body; its branches out go to 8
///     ─┘ (its last instruction is the final store)
///  5: rseq_cs = null
///     return outcome
///  6: outcome = AbortedByKernel; goto 5
///  7: outcome = OtherCpu;        goto 5
///  8: outcome = GuardChanged;    goto 5
/// ```
macro_rules! critical_section {
    ({ $($body:expr,)+ } $offset:expr, $cpu:expr, $($operands:tt)+) => {{
        let outcome: u32;
        asm!(
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".balign 32",
            "3:",
            ".long 0, 0",
            ".quad 4f, 5f - 4f, 6f",
            ".popsection",
            "xor {outcome:e}, {outcome:e}",
            "lea {a}, [rip + 3b]",
            "mov qword ptr fs:[{offset} + {rseq_cs}], {a}",
            "4:",
            inject!(1),
            "cmp dword ptr fs:[{offset} + {cpu_id}], {cpu:e}",
            "jne 7f",
            inject!(2),
            $($body,)+
            "5:",
            "mov qword ptr fs:[{offset} + {rseq_cs}], 0",
            ".pushsection __rseq_failure, \"ax\", @progbits",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long {signature}",
            "6:",
            "mov {outcome:e}, 3",
            "jmp 5b",
            "7:",
            "mov {outcome:e}, 2",
            "jmp 5b",
            "8:",
            "mov {outcome:e}, 1",
            "jmp 5b",
            ".popsection",
            offset = in(reg) $offset,
            cpu = in(reg) $cpu,
            outcome = out(reg) outcome,
            a = out(reg) _,
            rseq_cs = const OFFSET_RSEQ_CS,
            cpu_id = const OFFSET_CPU_ID,
            signature = const SIGNATURE_X86,
            $($operands)+
        );
        match outcome {
            0 => Outcome::Done,
            1 => Outcome::GuardChanged,
            2 => Outcome::OtherCpu,
            _ => Outcome::AbortedByKernel,
        }
    }};
}

/// Adds the operands that only injection needs.
#[cfg(any(test, feature = "inject"))]
macro_rules! section {
    ($body:tt $($operands:tt)+) => {
        critical_section!($body $($operands)+
            delay = out(reg) _,
            delays = sym crate::inject::DELAYS,
            options(nostack))
    };
}
#[cfg(not(any(test, feature = "inject")))]
macro_rules! section {
    ($body:tt $($operands:tt)+) => { critical_section!($body $($operands)+ options(nostack)) };
}

/// One section per width of the final store, so that each has exactly one.
///
/// ```text
/// rseq_load_cbne_stores_store(txn):
///     if *txn.guard != txn.expected: goto guard changed
///     for store in txn.stores[..txn.store_count]:
///         *store.target = store.value            (2, 4 or 8 bytes)
///     *txn.last.target = txn.last.value          (final store)
/// ```
macro_rules! rseq_load_cbne_stores_store {
    ($name:ident, $final_store:literal) => {
        /// # Safety
        /// As [`Handle::commit`], and the final store has this section's width.
        #[inline]
        unsafe fn $name(self, cpu: u32, txn: &Txn) -> Outcome {
            // SAFETY: the kernel's contract above: the descriptor is the ABI's, in memory that lives as long as this
            // code; the abort handler is preceded by the signature; no stack is touched. `fs:[offset]` is the calling
            // thread's registered area. What the section reads and writes, the caller vouches for.
            unsafe {
                section!({
                    "mov {a}, qword ptr [{txn}]",
                    "mov {b}, qword ptr [{txn} + 8]",
                    "cmp qword ptr [{a}], {b}",
                    "jne 8f",
                    inject!(3),
                    "mov {count}, qword ptr [{txn} + 40]",
                    "lea {store}, [{txn} + 48]",
                    "jmp 29f",
                    "24:",
                    "mov {a}, qword ptr [{store}]",
                    "mov {b}, qword ptr [{store} + 8]",
                    "mov {width}, qword ptr [{store} + 16]",
                    "cmp {width}, 4",
                    "je 26f",
                    "jb 25f",
                    "mov qword ptr [{a}], {b}",
                    "jmp 28f",
                    "25:",
                    "mov word ptr [{a}], {b:x}",
                    "jmp 28f",
                    "26:",
                    "mov dword ptr [{a}], {b:e}",
                    "28:",
                    inject!(4),
                    "add {store}, 24",
                    "dec {count}",
                    "29:",
                    "test {count}, {count}",
                    "jnz 24b",
                    "mov {a}, qword ptr [{txn} + 16]",
                    "mov {b}, qword ptr [{txn} + 24]",
                    inject!(5),
                    $final_store,
                }
                self.offset, cpu,
                txn = in(reg) txn,
                b = out(reg) _,
                count = out(reg) _,
                store = out(reg) _,
                width = out(reg) _,)
            }
        }
    };
}

/// libc's registration: the distance from the thread pointer to the thread's area.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle {
    offset: isize,
}

/// The value of a constant that libc exports, if it does.
fn libc_constant<T: Copy>(name: &CStr) -> Option<T> {
    // SAFETY: `name` ends in NUL, RTLD_DEFAULT is a valid handle (dlsym(3)).
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() {
        return None;
    }
    // SAFETY: callers name objects that <sys/rseq.h> declares with type `T`; libc writes them before `main`.
    Some(unsafe { address.cast::<T>().read() })
}

impl Handle {
    pub(crate) fn detect() -> Option<Handle> {
        // `extern const unsigned int __rseq_size`: zero when registration failed or was switched off. glibc 2.35 to
        // 2.39 report the size of the area, later ones that of the features in it; either covers `rseq_cs`.
        let size: u32 = libc_constant(c"__rseq_size")?;
        // `extern const ptrdiff_t __rseq_offset`.
        let offset: isize = libc_constant(c"__rseq_offset")?;
        // `extern const unsigned int __rseq_flags`: none is defined that would change the sections' meaning.
        let flags: u32 = libc_constant(c"__rseq_flags")?;
        let handle = Handle { offset };
        let usable = size as usize >= OFFSET_RSEQ_CS + 8 && flags == 0 && handle.cpu_id() <= i32::MAX as u32;
        usable.then_some(handle)
    }

    #[inline]
    pub(crate) fn offset(self) -> isize {
        self.offset
    }

    #[inline]
    pub(crate) fn cpu_id_start(self) -> u32 {
        let cpu: u32;
        // SAFETY: `__rseq_offset` from the thread pointer lies the calling thread's area, for its whole life
        // (<sys/rseq.h>, "The rseq area is allocated for every thread"); `cpu_id_start` is four bytes in it.
        unsafe {
            asm!("mov {cpu:e}, dword ptr fs:[{offset} + {field}]", cpu = out(reg) cpu, offset = in(reg) self.offset,
                field = const OFFSET_CPU_ID_START, options(nostack, readonly, preserves_flags));
        }
        cpu
    }

    #[inline]
    pub(crate) fn cpu_id(self) -> u32 {
        let cpu: u32;
        // SAFETY: as in `cpu_id_start`; `cpu_id` is the next four bytes.
        unsafe {
            asm!("mov {cpu:e}, dword ptr fs:[{offset} + {field}]", cpu = out(reg) cpu, offset = in(reg) self.offset,
                field = const OFFSET_CPU_ID, options(nostack, readonly, preserves_flags));
        }
        cpu
    }

    #[cfg(test)]
    pub(crate) fn descriptor(self) -> u64 {
        let descriptor: u64;
        // SAFETY: as in `cpu_id_start`; `rseq_cs` is eight bytes in the area.
        unsafe {
            asm!("mov {descriptor}, qword ptr fs:[{offset} + {field}]", descriptor = out(reg) descriptor,
                offset = in(reg) self.offset, field = const OFFSET_RSEQ_CS, options(nostack, readonly, preserves_flags));
        }
        descriptor
    }

    rseq_load_cbne_stores_store!(rseq_load_cbne_stores_store_2, "mov word ptr [{a}], {b:x}");
    rseq_load_cbne_stores_store!(rseq_load_cbne_stores_store_4, "mov dword ptr [{a}], {b:e}");
    rseq_load_cbne_stores_store!(rseq_load_cbne_stores_store_8, "mov qword ptr [{a}], {b}");

    /// # Safety
    /// As [`crate::Rseq::commit`].
    #[inline]
    pub(crate) unsafe fn commit(self, cpu: u32, txn: &Txn) -> Outcome {
        match txn.last.width {
            // SAFETY: the caller's promise; the width is the section's.
            8 => unsafe { self.rseq_load_cbne_stores_store_8(cpu, txn) },
            // SAFETY: the caller's promise; the width is the section's.
            4 => unsafe { self.rseq_load_cbne_stores_store_4(cpu, txn) },
            // SAFETY: the caller's promise: 2, 4 or 8.
            _ => unsafe { self.rseq_load_cbne_stores_store_2(cpu, txn) },
        }
    }

    /// ```text
    /// rseq_load_add_store(target, n):
    ///     word = *target
    ///     word += n
    ///     *target = word                             (final store)
    /// ```
    ///
    /// # Safety
    /// As [`crate::Rseq::add`].
    #[inline]
    pub(crate) unsafe fn rseq_load_add_store(self, cpu: u32, target: *mut u64, n: u64) -> Outcome {
        // SAFETY: the kernel's contract above, as for the other sections; `target` is the caller's promise.
        unsafe {
            section!({
                "mov {a}, qword ptr [{target}]",
                inject!(3),
                "add {a}, {n}",
                inject!(5),
                "mov qword ptr [{target}], {a}",
            }
            self.offset, cpu,
            target = in(reg) target,
            n = in(reg) n,)
        }
    }

    /// # Safety
    /// As [`crate::Rseq::add`].
    #[inline]
    pub(crate) unsafe fn add(self, cpu: u32, target: *mut u64, n: u64) -> Outcome {
        // SAFETY: the same promise.
        unsafe { self.rseq_load_add_store(cpu, target, n) }
    }
}
