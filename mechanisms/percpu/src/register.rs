//! Registration of a thread's rseq structure with the kernel.
//!
//! A thread can have one rseq structure. glibc (2.35 or later) gives every thread one; in that case nothing else is
//! tried, for the thread's lifetime. If libc gives none (musl, older glibc, `GLIBC_TUNABLES=glibc.pthread.rseq=0`),
//! each thread gets one of this crate's, when it first uses it:
//!
//! ```text
//!   thread pointer ──offset──▶ ┌ cpu_id_start │ cpu_id │ rseq_cs │ … ┐ 32 bytes, the kernel's
//!   (equal in every thread)    └ state │ …                           ┘ 32 bytes, this crate's
//!
//!   Fresh ──register_thread──▶ Busy ──rseq(2)──▶ Registered ──the thread ends──▶ Refused
//!   (cpu_id = -1)                └──────────────▶ Refused       (rseq(2), cpu_id = -1)
//! ```
//!
//! Only the block's thread writes the state, including its signal handlers. Signals are blocked while it is `Busy`, so
//! that no handler takes a fallback needlessly.
//!
//! * **End of a thread**: the destructor of a pthread key unregisters the structure before its memory is released.
//!   Destructors that run later find `Refused` and `cpu_id` = -1. A thread that ends without destructors (by the system
//!   call alone), or that registers in the very last round of them, must keep its thread-local memory in place until it
//!   has ended, as glibc does.
//! * **fork**: the child's thread keeps the registration (the kernel copies it, and the address does not change).
//! * **vfork and other `CLONE_VM` children**: the kernel drops the registration, while `cpu_id` in the parent's memory still
//!   looks valid. The memory does not show the difference. No section may run in such a child before it has called `execve`.
//! * **exec**: the registration ends with the program.
//! * **Other code that registers threads** (some allocators do, if glibc's registration is switched off): the first to
//!   register a thread keeps it. The kernel refuses the other, which takes its fallback.
//! * **dlclose**: the destructor and the block belong to this loaded object. It must not be unloaded once a thread has
//!   registered.

#[cfg(all(
    test,
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_pointer_width = "64",
    not(feature = "generic")
))]
pub(crate) use machine::pretend;
pub(crate) use machine::{
    at, detect, has_concurrency_ids, is_own, of_libc, register_thread, tell, unregistered_offset,
};

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_pointer_width = "64",
    not(feature = "generic")
))]
mod machine {
    use core::ffi::{c_int, c_long, c_uint, c_void};
    use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicU64};

    use dormouse_abi::rseq::{OFFSET_MM_CID, OFFSET_RSEQ_CS};

    use crate::arch::{Handle, SIGNATURE, own_offset, thread_pointer};
    use crate::signals::without_signals;

    /// Size and alignment of the rseq structure, in bytes, that every kernel with `rseq(2)` accepts (ORIG_RSEQ_SIZE).
    const AREA_SIZE_BYTES: c_uint = 32;
    /// RSEQ_FLAG_UNREGISTER.
    const UNREGISTER: c_int = 1;

    const FRESH: u32 = 0;
    const BUSY: u32 = 1;
    const REGISTERED: u32 = 2;
    const REFUSED: u32 = 3;

    /// libc's description of its registration.
    #[derive(Clone, Copy)]
    struct Libc {
        size_bytes: c_uint,
        offset: isize,
        flags: c_uint,
    }

    /// The result of [`look_up`]. It never changes: libc writes its constants once, before `main`.
    ///
    /// A thread that does not find the result here looks it up again, and gets an equal one. So no thread waits for
    /// another.
    struct Known {
        /// [`UNKNOWN`], [`ABSENT`] or [`PRESENT`].
        state: AtomicU32,
        size_bytes: AtomicU32,
        offset: AtomicIsize,
        flags: AtomicU32,
    }

    const UNKNOWN: u32 = 0;
    const ABSENT: u32 = 1;
    const PRESENT: u32 = 2;

    static KNOWN: Known = Known {
        state: AtomicU32::new(UNKNOWN),
        size_bytes: AtomicU32::new(0),
        offset: AtomicIsize::new(0),
        flags: AtomicU32::new(0),
    };

    /// Returns libc's description of its registration. The first call calls the loader.
    fn libc() -> Option<Libc> {
        // (K) Acquire pairs with (J): a thread that finds the state known sees all of the result.
        match KNOWN.state.load(Acquire) {
            PRESENT => {
                let (size_bytes, flags) = (KNOWN.size_bytes.load(Relaxed), KNOWN.flags.load(Relaxed));
                return Some(Libc { size_bytes, offset: KNOWN.offset.load(Relaxed), flags });
            }
            ABSENT => return None,
            _ => {}
        }
        let found = look_up();
        remember(found);
        found
    }

    fn remember(found: Option<Libc>) {
        if let Some(Libc { size_bytes, offset, flags }) = found {
            KNOWN.size_bytes.store(size_bytes, Relaxed);
            KNOWN.offset.store(offset, Relaxed);
            KNOWN.flags.store(flags, Relaxed);
        }
        // (J) Release pairs with (K).
        KNOWN.state.store(if found.is_some() { PRESENT } else { ABSENT }, Release);
    }

    /// Looks libc's registration up while this object is loaded, so that no thread must do so later, under a lock or in
    /// a signal handler.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static LOOK_UP_AT_LOAD: extern "C" fn() = {
        extern "C" fn look_up_at_load() {
            libc();
        }
        look_up_at_load
    };

    /// Uses the dynamic symbols: a program that was linked against a newer libc still starts on an older one.
    #[cfg(not(target_feature = "crt-static"))]
    fn look_up() -> Option<Libc> {
        let symbol = |name: &core::ffi::CStr| {
            // SAFETY: `name` ends in NUL, RTLD_DEFAULT is a valid handle (dlsym(3)).
            let address = dormouse_locks::call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
            address.cast_const()
        };
        // SAFETY: these are the objects that <sys/rseq.h> declares by these names; libc writes them before `main`. The
        // size is zero if registration failed or was switched off. glibc 2.35 to 2.39 report the size of the structure,
        // later versions the size of its features; either covers `rseq_cs`. No flag is defined that would change the
        // meaning of sections.
        unsafe { read([c"__rseq_size", c"__rseq_offset", c"__rseq_flags"].map(symbol)) }
    }

    /// Uses weak symbols, because a static program has no dynamic ones; it runs with the libc that it is linked with.
    #[cfg(target_feature = "crt-static")]
    fn look_up() -> Option<Libc> {
        let symbols = crate::rseq_symbols!();
        // SAFETY: the symbols are those of the libc that is linked into the program, or null.
        unsafe { read(symbols) }
    }

    /// Reads libc's objects; `None` if one is missing.
    ///
    /// # Safety
    /// The pointers are the addresses of `__rseq_size`, `__rseq_offset` and `__rseq_flags` of the libc that the program
    /// runs, or null.
    unsafe fn read([size, offset, flags]: [*const c_void; 3]) -> Option<Libc> {
        if size.is_null() || offset.is_null() || flags.is_null() {
            return None;
        }
        Some(Libc {
            // SAFETY: the caller guarantees that it is libc's `__rseq_size`, which <sys/rseq.h> declares
            // `unsigned int`.
            size_bytes: unsafe { size.cast::<c_uint>().read() },
            // SAFETY: the caller guarantees that it is libc's `__rseq_offset`, which <sys/rseq.h> declares `ptrdiff_t`,
            // as wide as `isize`.
            offset: unsafe { offset.cast::<isize>().read() },
            // SAFETY: the caller guarantees that it is libc's `__rseq_flags`, which <sys/rseq.h> declares
            // `unsigned int`.
            flags: unsafe { flags.cast::<c_uint>().read() },
        })
    }

    /// Records libc's registration, unless it is known already.
    ///
    /// # Safety
    /// The conditions of [`read`].
    pub(crate) unsafe fn tell(symbols: [*const c_void; 3]) {
        // SAFETY: the caller guarantees that the pointers are libc's symbols, or null.
        if let Some(told) = unsafe { read(symbols) }
            && libc().is_none()
        {
            remember(Some(told));
        }
    }

    /// Returns `None` if libc registers no threads; otherwise its handle, or `Some(None)` if it is not usable, for
    /// example because libc has not registered the calling thread.
    fn by_libc() -> Option<Option<Handle>> {
        let libc = libc().filter(|libc| libc.size_bytes != 0)?;
        // SAFETY: the calling thread's rseq structure is `__rseq_offset` bytes from the thread pointer, for the
        // thread's whole life (<sys/rseq.h>, "The rseq area is allocated for every thread").
        let handle = unsafe { Handle::new(libc.offset) };
        let is_usable =
            libc.size_bytes as usize >= OFFSET_RSEQ_CS + 8 && libc.flags == 0 && handle.cpu_id() <= i32::MAX as u32;
        Some(is_usable.then_some(handle))
    }

    pub(crate) fn of_libc() -> Option<Handle> {
        by_libc().flatten()
    }

    pub(crate) fn detect() -> Option<Handle> {
        if let Some(by_libc) = by_libc() {
            return by_libc;
        }
        make_key();
        // SAFETY: the offset of a thread-local object, which begins with `cpu_id` = -1 and lives as long as its thread.
        register_thread().then(|| unsafe { Handle::new(own_offset()) })
    }

    /// Returns the handle of which only the offset was kept.
    ///
    /// # Safety
    /// The offset is that of a handle, or [`unregistered_offset`].
    #[inline]
    pub(crate) unsafe fn at(offset: isize) -> Option<Handle> {
        // SAFETY: the caller guarantees that every thread has an rseq structure there, registered or with `cpu_id`
        // below zero.
        Some(unsafe { Handle::new(offset) })
    }

    pub(crate) fn is_own(handle: Handle) -> bool {
        handle.offset() == own_offset()
    }

    pub(crate) fn unregistered_offset() -> isize {
        own_offset()
    }

    /// Whether the kernel writes `mm_cid`. This crate's own registration ends before its thread does, and the kernel
    /// then leaves a 0 there, which looks like an id.
    pub(crate) fn has_concurrency_ids(handle: Handle) -> bool {
        // SAFETY: getauxval(3) has no conditions; it returns 0 for a key that the kernel does not know.
        let features = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) };
        let end = OFFSET_MM_CID + size_of::<u32>();
        !is_own(handle) && features >= end as u64 && libc().is_some_and(|libc| libc.size_bytes as usize >= end)
    }

    /// Key of the number of bytes of the rseq structure that the kernel uses (<linux/auxvec.h>).
    const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;

    /// Registers the calling thread, if it is not registered and may be, and returns whether it is registered.
    ///
    /// Only reached through [`detect`] and the handle that it returned, so libc has registered no threads.
    pub(crate) fn register_thread() -> bool {
        let state = state();
        if state.load(Relaxed) != FRESH {
            return state.load(Relaxed) == REGISTERED;
        }
        without_signals(|| {
            // A handler may have registered the thread in the meantime.
            if state.load(Relaxed) == FRESH {
                state.store(BUSY, Relaxed);
                // The destructor is set first: no registration may exist without the destructor that ends it.
                let is_registered = will_end_here() && rseq(0) == 0;
                state.store(if is_registered { REGISTERED } else { REFUSED }, Relaxed);
            }
            state.load(Relaxed) == REGISTERED
        })
    }

    /// Returns the address of the calling thread's block.
    fn block() -> *mut u8 {
        thread_pointer().wrapping_offset(own_offset())
    }

    fn state<'a>() -> &'a AtomicU32 {
        let state = block().wrapping_add(AREA_SIZE_BYTES as usize).cast();
        // SAFETY: aligned, inside the thread's block, which outlives every use on this thread; all access is atomic.
        // Callers do not pass the reference to other threads.
        unsafe { AtomicU32::from_ptr(state) }
    }

    /// Calls `rseq(2)` on the thread's block. `errno` keeps its value.
    fn rseq(flags: c_int) -> c_long {
        // SAFETY: the call has no arguments; the address is the thread's own.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the thread's own `errno`, which is valid as long as the thread lives.
        let kept = unsafe { errno.read() };
        // SAFETY: 32 bytes, aligned to 32, that only the kernel and the sections write until the destructor unregisters
        // them; the signature is the one before every abort handler here.
        let result = unsafe { libc::syscall(libc::SYS_rseq, block(), AREA_SIZE_BYTES, flags, SIGNATURE) };
        // SAFETY: the thread's own `errno`, which is valid as long as the thread lives.
        unsafe { errno.write(kept) };
        result
    }

    /// The pthread key plus one, or 0 if there is none.
    static KEY: AtomicU64 = AtomicU64::new(0);

    /// Number of keys for which glibc needs no memory from malloc at a thread's first use (PTHREAD_KEY_2NDLEVEL_SIZE).
    /// Programs that create this many keys before a tracer does are rare, and take the fallback.
    const KEY_COUNT_MAX: libc::pthread_key_t = 32;

    fn make_key() {
        if KEY.load(Relaxed) != 0 {
            return;
        }
        let mut key = 0;
        // SAFETY: `key` is a valid place for the key; the destructor belongs to this object, which stays loaded (the
        // module's documentation).
        if unsafe { libc::pthread_key_create(&mut key, Some(thread_ends)) } != 0 {
            return;
        }
        let is_ours = key < KEY_COUNT_MAX && KEY.compare_exchange(0, u64::from(key) + 1, Relaxed, Relaxed).is_ok();
        if !is_ours {
            // SAFETY: the key was created just now, and no other thread knows it.
            unsafe { libc::pthread_key_delete(key) };
        }
    }

    /// Arranges that [`thread_ends`] is called on this thread; returns whether it will be.
    fn will_end_here() -> bool {
        let Some(key) = KEY.load(Relaxed).checked_sub(1) else { return false };
        // SAFETY: the key is valid and never deleted. The value is not null, so that the destructor is called, and is
        // never dereferenced.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, block().cast()) == 0 }
    }

    /// Writes `cpu_id` into the thread's own block like a kernel, or removes it, and returns a handle of the block.
    /// `None` if the block is registered with the kernel.
    #[cfg(test)]
    pub(crate) fn pretend(cpu: Option<u32>) -> Option<Handle> {
        if state().load(Relaxed) == REGISTERED {
            return None;
        }
        let cpu_id = block().wrapping_add(dormouse_abi::rseq::OFFSET_CPU_ID).cast::<u32>();
        // SAFETY: aligned, inside the thread's block, which no other thread accesses.
        unsafe { cpu_id.write_volatile(cpu.unwrap_or(u32::MAX)) };
        // SAFETY: the offset of a thread-local object, which begins with `cpu_id` and lives as long as its thread.
        Some(unsafe { Handle::new(own_offset()) })
    }

    extern "C" fn thread_ends(_: *mut c_void) {
        // The state is stored first, so that a handler that runs between the two does not rely on the registration.
        state().store(REFUSED, Relaxed);
        rseq(UNREGISTER);
    }
}

#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_pointer_width = "64",
    not(feature = "generic")
)))]
mod machine {
    use crate::arch::Handle;

    pub(crate) unsafe fn at(_offset: isize) -> Option<Handle> {
        None
    }

    pub(crate) fn detect() -> Option<Handle> {
        None
    }

    pub(crate) fn of_libc() -> Option<Handle> {
        None
    }

    pub(crate) fn is_own(_handle: Handle) -> bool {
        false
    }

    pub(crate) fn unregistered_offset() -> isize {
        0
    }

    pub(crate) fn has_concurrency_ids(_handle: Handle) -> bool {
        false
    }

    pub(crate) unsafe fn tell(_symbols: [*const core::ffi::c_void; 3]) {}

    pub(crate) fn register_thread() -> bool {
        false
    }
}

/// Returns the addresses of `__rseq_size`, `__rseq_offset` and `__rseq_flags` that the linker has resolved; null for a
/// symbol that is not defined.
///
/// For static programs. A shared library that used it would need a libc that has them.
#[doc(hidden)]
#[macro_export]
macro_rules! rseq_symbols {
    () => {{
        let mut symbols: [*const ::core::ffi::c_void; 3] = [::core::ptr::null(); 3];
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        // SAFETY: reads the linker's table of addresses, in which an undefined weak symbol is null.
        unsafe {
            ::core::arch::asm!(
                ".weak __rseq_size",
                ".weak __rseq_offset",
                ".weak __rseq_flags",
                "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
                "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
                "mov {flags}, qword ptr [rip + __rseq_flags@GOTPCREL]",
                size = out(reg) symbols[0], offset = out(reg) symbols[1], flags = out(reg) symbols[2],
                options(nostack, pure, readonly, preserves_flags),
            );
        }
        #[cfg(all(target_arch = "aarch64", target_os = "linux"))]
        // SAFETY: reads the linker's table of addresses, in which an undefined weak symbol is null.
        unsafe {
            ::core::arch::asm!(
                ".weak __rseq_size",
                ".weak __rseq_offset",
                ".weak __rseq_flags",
                "adrp {size}, :got:__rseq_size",
                "ldr {size}, [{size}, :got_lo12:__rseq_size]",
                "adrp {offset}, :got:__rseq_offset",
                "ldr {offset}, [{offset}, :got_lo12:__rseq_offset]",
                "adrp {flags}, :got:__rseq_flags",
                "ldr {flags}, [{flags}, :got_lo12:__rseq_flags]",
                size = out(reg) symbols[0], offset = out(reg) symbols[1], flags = out(reg) symbols[2],
                options(nostack, pure, readonly, preserves_flags),
            );
        }
        symbols
    }};
}
