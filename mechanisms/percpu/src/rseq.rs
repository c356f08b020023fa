use core::ptr::NonNull;

use dormouse_abi::rseq::OFFSET_MM_CID;
use dormouse_abi::txn::Txn;

use crate::arch::{Handle, Outcome};
use crate::node::Node;
use crate::register;
use crate::txn::Commit;

/// How an attempt to take a node from a list ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the node is on no list any more"]
pub enum PopOutcome {
    /// This node, which now belongs to the caller.
    Node(NonNull<Node>),
    /// The list was empty.
    Empty,
    /// The thread was interrupted or is on another CPU: nothing has changed.
    Aborted,
}

/// Proof that this process has restartable sequences, registered by libc for each of its threads, or by this crate for
/// threads that ask for it.
///
/// A small `Copy` value: get it once, keep it, use it from any thread. On a thread that is not registered, every
/// section ends as if the thread were on another CPU. It stays valid in a forked child, whose thread keeps its
/// registration; **not** in the child of a `vfork`, which runs on its parent's thread-local data without a
/// registration.
#[derive(Debug, Clone, Copy)]
pub struct Rseq(Handle);

impl Rseq {
    /// Uses libc's registration; if libc has none, registers the calling thread. `None` if neither is possible: on
    /// another architecture, on a kernel without rseq(2), under valgrind or qemu-user, or in a thread that other code
    /// has registered.
    ///
    /// Each other thread calls [`register_thread`](Rseq::register_thread) once, on its slow path. Without libc's
    /// registration, it takes its fallback until then.
    ///
    /// Lock-free in itself, but it looks symbols up in libc: **not** async-signal-safe. Call it once, early.
    pub fn detect() -> Option<Rseq> {
        register::detect().map(Rseq)
    }

    /// Like [`detect`](Rseq::detect), but never registers the thread: for libraries that run in another project's
    /// program, and leave each thread's only registration to that program.
    pub fn of_libc() -> Option<Rseq> {
        register::of_libc().map(Rseq)
    }

    /// Records libc's registration in a static program, where a library cannot look it up: see `rseq_symbols!`.
    ///
    /// Call it before the first [`detect`](Rseq::detect). Wait-free.
    ///
    /// # Safety
    /// The pointers are the addresses of `__rseq_size`, `__rseq_offset` and `__rseq_flags` of the libc that the program
    /// runs (<sys/rseq.h>), or null.
    #[doc(hidden)]
    pub unsafe fn tell_of_libc(symbols: [*const core::ffi::c_void; 3]) {
        // SAFETY: the caller guarantees that the pointers are libc's symbols, or null.
        unsafe { register::tell(symbols) };
    }

    /// Registers the calling thread unless libc registers threads, and returns whether the thread is registered now.
    /// It stays false in a thread that is ending, or that other code has registered. The registration ends with the
    /// thread.
    ///
    /// For slow paths: three system calls the first time, a few loads afterwards. `errno` keeps its value; no memory is
    /// allocated.
    ///
    /// Wait-free, async-signal-safe.
    #[cold]
    pub fn register_thread(self) -> bool {
        if register::is_own(self.0) { register::register_thread() } else { self.cpu_id().is_some() }
    }

    /// Returns the offset of a thread's rseq structure from its thread pointer, in bytes: for sections that are written
    /// elsewhere.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn offset(self) -> isize {
        self.0.offset()
    }

    /// Returns the offset from the thread pointer, in bytes, of a structure that every thread has, and whose `cpu_id`
    /// is negative in a process where [`Rseq::detect`] returns `None`: sections that are written elsewhere end there at
    /// their comparison. 0 on architectures without sections.
    ///
    /// Wait-free, async-signal-safe.
    pub fn unregistered_offset() -> isize {
        register::unregistered_offset()
    }

    /// Returns the offset of the thread's concurrency id from the thread pointer, in bytes. Threads of one process that
    /// run at the same time have different ids, the smallest that are free. `None` before Linux 6.3, or if libc does
    /// not register threads.
    ///
    /// Wait-free, async-signal-safe.
    pub fn concurrency_id_offset(self) -> Option<isize> {
        register::has_concurrency_ids(self.0).then(|| self.offset() + OFFSET_MM_CID as isize)
    }

    /// Returns the value of which only [`Rseq::offset`] was kept; `None` on architectures without sections.
    ///
    /// # Safety
    /// The offset is that of an `Rseq`, or [`Rseq::unregistered_offset`].
    #[inline]
    pub(crate) unsafe fn at(offset: isize) -> Option<Rseq> {
        // SAFETY: the caller guarantees one of these offsets.
        unsafe { register::at(offset) }.map(Rseq)
    }

    #[inline]
    pub(crate) fn handle(self) -> Handle {
        self.0
    }

    /// Returns the CPU that the thread was on a moment ago. It is always a valid number, even on a thread that is not
    /// registered.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn cpu_id_start(self) -> u32 {
        self.0.cpu_id_start()
    }

    /// Returns the CPU that the thread was on a moment ago, or `None` on a thread that is not registered: there every
    /// section ends in [`Commit::Aborted`], so the caller must take its fallback.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn cpu_id(self) -> Option<u32> {
        let cpu = self.0.cpu_id();
        // The kernel's RSEQ_CPU_ID_UNINITIALIZED and RSEQ_CPU_ID_REGISTRATION_FAILED are -1 and -2.
        (cpu <= i32::MAX as u32).then_some(cpu)
    }

    /// Commits a transaction as one critical section on `cpu`: if `*guard == expected`, all stores are made; otherwise
    /// none that others can see.
    ///
    /// Limit the attempts: under a debugger that single-steps, or on a thread that is not registered, each is aborted.
    ///
    /// An aborted section may have made its plain stores: they must target memory that no reader reads before the final
    /// store.
    ///
    /// Wait-free (one attempt, a bounded number of steps), async-signal-safe: a handler that interrupts a section and
    /// commits itself makes the interrupted one [`Commit::Aborted`].
    ///
    /// # Safety
    /// * `guard` is readable, and every target is writable for its width and aligned to it, until the call returns.
    /// * Every width is 2, 4 or 8, and `store_count` at most [`dormouse_abi::txn::STORES_MAX`].
    /// * Only sections on `cpu` write the targets, and no reference to them exists that would forbid it.
    #[inline]
    pub unsafe fn commit(self, cpu: u32, txn: &Txn) -> Commit {
        crate::txn::check(txn);
        // SAFETY: the caller guarantees valid addresses and widths, and that only sections on `cpu` write the targets.
        commit(unsafe { self.0.commit(cpu, txn) })
    }

    /// Adds `n` to `*target`, wrapping, as one critical section on `cpu`. False: aborted, nothing has been added.
    ///
    /// Wait-free (one attempt), async-signal-safe.
    ///
    /// # Safety
    /// `target` is aligned and writable, and only sections on `cpu` write it.
    #[inline]
    #[must_use = "an aborted section has added nothing"]
    pub unsafe fn add(self, cpu: u32, target: *mut u64, n: u64) -> bool {
        debug_assert!(target.is_aligned());
        // SAFETY: the caller guarantees that `target` is aligned and writable, and that only sections on `cpu` write
        // it.
        is_done(unsafe { self.0.rseq_load_add_store(cpu, target, n) })
    }

    /// Adds `n`, wrapping, to the word of the CPU that the thread is on: the one at `first + (cpu << stride_shift)`.
    /// False if it was aborted, if the thread is not registered, or if it is on CPU `count` or a later one; nothing has
    /// been added. On x86-64 the section finds the word by itself, so this costs less than [`Rseq::cpu_id_start`], the
    /// arithmetic, and [`Rseq::add`].
    ///
    /// Wait-free (one attempt), async-signal-safe.
    ///
    /// # Safety
    /// For every `cpu` below `count`, that word is aligned and writable, and only sections on that CPU write it.
    #[inline]
    #[must_use = "an aborted section has added nothing"]
    pub unsafe fn add_by_stride(self, first: *mut u64, stride_shift: u32, count: u32, n: u64) -> bool {
        // SAFETY: the caller guarantees that each CPU's word is aligned and writable, and that only sections on that
        // CPU write it.
        unsafe { add_by_stride(self.0, first, stride_shift, count, n) }
    }

    /// Returns the value of `*target` while the thread is on `cpu`. `None`: aborted, or the thread is on another CPU.
    ///
    /// No other code runs on `cpu` between the comparison of the CPU and the load. After the call, the value may have
    /// changed.
    ///
    /// Wait-free (one attempt), async-signal-safe.
    ///
    /// # Safety
    /// `target` is aligned and readable.
    #[inline]
    pub unsafe fn load(self, cpu: u32, target: *const u64) -> Option<u64> {
        debug_assert!(target.is_aligned());
        // SAFETY: the caller guarantees that `target` is aligned and readable.
        let (outcome, word) = unsafe { self.0.rseq_load(cpu, target) };
        is_done(outcome).then_some(word)
    }

    /// Stores `value` in `*target`, as one critical section on `cpu`. False: aborted, nothing has been stored.
    ///
    /// The store is a release for readers on other CPUs, which load the word with acquire.
    ///
    /// Wait-free (one attempt), async-signal-safe.
    ///
    /// # Safety
    /// `target` is aligned and writable, and only sections on `cpu` write it.
    #[inline]
    #[must_use = "an aborted section has stored nothing"]
    pub unsafe fn store(self, cpu: u32, target: *mut u64, value: u64) -> bool {
        debug_assert!(target.is_aligned());
        // SAFETY: the caller guarantees that `target` is aligned and writable, and that only sections on `cpu` write
        // it.
        is_done(unsafe { self.0.rseq_store(cpu, target, value) })
    }

    /// Stores `value` in `*target` if it holds `expected`, as one critical section on `cpu`; [`Commit::GuardChanged`]
    /// if it held something else.
    ///
    /// The store is a release for readers on other CPUs, which load the word with acquire.
    ///
    /// Wait-free (one attempt), async-signal-safe.
    ///
    /// # Safety
    /// `target` is aligned and writable, and only sections on `cpu` write it.
    #[inline]
    pub unsafe fn compare_and_store(self, cpu: u32, target: *mut u64, expected: u64, value: u64) -> Commit {
        debug_assert!(target.is_aligned());
        // SAFETY: the caller guarantees that `target` is aligned and writable, and that only sections on `cpu` write
        // it.
        commit(unsafe { self.0.rseq_load_cbne_store(cpu, target, expected, value) })
    }

    /// Pushes `node` to the front of the list at `head`, as one critical section on `cpu`. False: aborted, the node is
    /// on no list (its `next` may have been written).
    ///
    /// Wait-free (one attempt), async-signal-safe.
    ///
    /// # Safety
    /// * `head` is aligned and writable, and only sections on `cpu` write it.
    /// * `node` is on no list, is writable, and belongs to the caller. If the call returns true, it belongs to the list
    ///   until a [`pop`](Rseq::pop) returns it: nothing else writes it, and it stays mapped, at one address in every
    ///   process.
    #[inline]
    #[must_use = "after an aborted section the node is on no list"]
    pub unsafe fn push(self, cpu: u32, head: *mut *mut Node, node: NonNull<Node>) -> bool {
        debug_assert!(head.is_aligned() && node.is_aligned());
        // SAFETY: the caller guarantees that `head` is aligned, writable and written only by sections on `cpu`, and
        // that `node` is writable and its own.
        is_done(unsafe { self.0.rseq_load_store_store(cpu, head, node.as_ptr()) })
    }

    /// Pops the first node of the list at `head`, as one critical section on `cpu`.
    ///
    /// # When a node may be freed
    /// The thread that has popped a node may reuse it, push it again or unmap it immediately. The section reads `next`
    /// of the first node after it has read `*head`. If another thread unlinks that node in between, it does so in a
    /// section on this CPU. So this thread was preempted (or interrupted by its own handler), and the kernel sends it
    /// to its abort handler before it executes another instruction of the section: it never reads a node that is gone,
    /// and never commits an old `next`. For the same reason, a node that returns to the list at its old address (ABA)
    /// does no harm here, as it would to a compare-and-swap.
    ///
    /// The price is that no thread may unlink nodes from another CPU, not even with atomic instructions. To empty a
    /// CPU's list from elsewhere, first ensure that no section can run on it: its users have ended, or they were told
    /// to stop and a `membarrier` with rseq was waited for after that.
    ///
    /// Wait-free (one attempt), async-signal-safe.
    ///
    /// # Safety
    /// `head` is aligned and writable, and only sections on `cpu` write it. It is null or the first of nodes that were
    /// pushed under the contract of [`push`](Rseq::push).
    #[inline]
    pub unsafe fn pop(self, cpu: u32, head: *mut *mut Node) -> PopOutcome {
        debug_assert!(head.is_aligned());
        // SAFETY: the caller guarantees that `head` is aligned, writable and written only by sections on `cpu`, and
        // that its nodes were pushed under the contract of `push`.
        let (outcome, node) = unsafe { self.0.rseq_load_cbeq_load_store(cpu, head) };
        match (commit(outcome), NonNull::new(node)) {
            (Commit::Done, Some(node)) => PopOutcome::Node(node),
            (Commit::Aborted, _) => PopOutcome::Aborted,
            // The section ends without a node when it finds null.
            _ => PopOutcome::Empty,
        }
    }

    /// If `*guard == expected`, copies `size_bytes` from `from` to `to` and then stores `value` in `*last`, as one
    /// critical section on `cpu`. An aborted section may have copied bytes: `to` must be memory that no reader reads
    /// before the final store.
    ///
    /// The store is a release for readers on other CPUs, which load `*last` with acquire. Keep the copy short: the
    /// longer it is, the likelier its abort, and each attempt copies from the beginning.
    ///
    /// Wait-free (one attempt, a number of steps proportional to `size_bytes`), async-signal-safe.
    ///
    /// # Safety
    /// * `guard` is aligned and readable, `last` aligned and writable; `size_bytes` bytes are readable at `from` and
    ///   writable at `to`.
    /// * Only sections on `cpu` write `*last` and the bytes at `to`, and no reference to them exists that would forbid
    ///   it. Nothing writes the bytes at `from` during the call, and they do not overlap `to`.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "a guard, a copy and a store, and where")]
    pub unsafe fn copy_and_store(
        self,
        cpu: u32,
        guard: *const u64,
        expected: u64,
        to: *mut u8,
        from: *const u8,
        size_bytes: usize,
        last: *mut u64,
        value: u64,
    ) -> Commit {
        debug_assert!(guard.is_aligned() && last.is_aligned());
        let copy = (to, from, size_bytes);
        // SAFETY: the caller guarantees that all addresses are aligned and accessible, that only sections on `cpu`
        // write `*last` and the bytes at `to`, and that `from` does not overlap `to`.
        commit(unsafe { self.0.rseq_load_cbne_memcpy_store(cpu, (guard, expected), copy, (last, value)) })
    }

    /// For tests that play the kernel's part: see [`register::pretend`].
    #[cfg(all(
        test,
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(feature = "generic")
    ))]
    pub(crate) fn pretend(cpu: Option<u32>) -> Option<Rseq> {
        register::pretend(cpu).map(Rseq)
    }

    /// Returns the thread's `rseq_cs`.
    #[cfg(test)]
    pub(crate) fn descriptor(self) -> u64 {
        self.0.descriptor()
    }
}

/// [`Rseq::add_by_stride`], also for words of concurrency ids.
///
/// # Safety
/// For every number below `count`, the word of that CPU or concurrency id is aligned and writable, and only sections
/// that compare this number write it.
#[inline]
pub(crate) unsafe fn add_by_stride<const INDEX: usize>(
    handle: Handle<INDEX>,
    first: *mut u64,
    stride_shift: u32,
    count: u32,
    n: u64,
) -> bool {
    #[cfg(all(target_arch = "x86_64", not(feature = "generic")))]
    // SAFETY: the caller guarantees that each word is aligned and writable, and written only by sections of its number.
    return is_done(unsafe { handle.rseq_cpu_shift_add(first, stride_shift, count, n) });
    #[cfg(not(all(target_arch = "x86_64", not(feature = "generic"))))]
    {
        let index = handle.index();
        let word = first.wrapping_byte_add((index as usize).wrapping_shl(stride_shift));
        debug_assert!(word.is_aligned());
        // SAFETY: the caller guarantees that each word is aligned and writable, and written only by sections of its
        // number.
        index < count && is_done(unsafe { handle.rseq_load_add_store(index, word, n) })
    }
}

/// [`add_by_stride`] for words of four bytes. Always false where there is no such section.
///
/// # Safety
/// The conditions of [`add_by_stride`], for words of four bytes.
#[inline]
pub(crate) unsafe fn add_u32_by_stride<const INDEX: usize>(
    handle: Handle<INDEX>,
    first: *mut u32,
    stride_shift: u32,
    count: u32,
    n: u32,
) -> bool {
    #[cfg(all(target_arch = "x86_64", not(feature = "generic")))]
    // SAFETY: the caller guarantees that each word is aligned and writable, and written only by sections of its number.
    return is_done(unsafe { handle.rseq_cpu_shift_add_u32(first, stride_shift, count, n) });
    #[cfg(not(all(target_arch = "x86_64", not(feature = "generic"))))]
    {
        let _ = (handle, first, stride_shift, count, n);
        false
    }
}

#[inline]
pub(crate) fn commit(outcome: Outcome) -> Commit {
    #[cfg(test)]
    crate::inject::count(outcome);
    match outcome {
        Outcome::Done => Commit::Done,
        Outcome::GuardChanged => Commit::GuardChanged,
        Outcome::OtherCpu | Outcome::AbortedByKernel => Commit::Aborted,
    }
}

#[inline]
pub(crate) fn is_done(outcome: Outcome) -> bool {
    commit(outcome) == Commit::Done
}

/// Returns the CPU that the thread was on a moment ago, also without rseq; 0 if it is not known. Registers a thread
/// that has no registration, if it may have one.
pub fn current_cpu(rseq: Option<Rseq>) -> u32 {
    near(rseq)
}

/// Returns the CPU that the thread was on a moment ago, for a fallback; 0 if it is not known. Registers a thread that
/// has no registration, if it may have one, so that it needs no fallback the next time.
#[cold]
pub(crate) fn near(rseq: Option<Rseq>) -> u32 {
    let is_registered = |rseq: &Rseq| rseq.cpu_id().is_some() || rseq.register_thread();
    if let Some(cpu) = rseq.filter(is_registered).and_then(Rseq::cpu_id) {
        return cpu;
    }
    // SAFETY: the call has no arguments, and getcpu(2) writes no memory of this crate. glibc and musl call the vDSO,
    // which takes no lock.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}
