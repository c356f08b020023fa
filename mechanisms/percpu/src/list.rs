//! Lists of nodes, one on each CPU: last in, first out.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

use crate::alloc::{Object, View};
use crate::area::{Area, PerCpu};
use crate::node::Node;
use crate::rseq::{PopOutcome, Rseq, near};

/// One CPU's part of a [`List`]: a list for threads with rseq and one for threads without. They are separate because a
/// section loads and stores, and an atomic change from another thread between the two would be lost. Zeroes are two
/// empty lists.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ListSlot {
    /// First node of the list that only sections on this CPU write.
    by_rseq: AtomicPtr<Node>,
    /// First node of the list that any thread pushes to by compare-and-swap; only the holder of `popping` unlinks its
    /// nodes.
    by_atomics: AtomicPtr<Node>,
    /// Nonzero while a thread is popping from `by_atomics`.
    popping: AtomicU32,
}

/// Maximum number of attempts under rseq before the fallback, as for counters.
const ATTEMPTS_MAX: u32 = 8;

/// An intrusive stack of nodes that has a part on each CPU: a node that was pushed is most likely popped on the same
/// CPU, while it is still in that CPU's cache. Free lists use it.
///
/// ```text
///            slot of CPU 0                    slot of CPU 1
///   by_rseq     ─▶ node ─▶ node ─▶ null         ─▶ null             sections on that CPU
///   by_atomics  ─▶ null                         ─▶ node ─▶ null     any thread; one pops at a time
/// ```
///
/// A push or pop first tries a section on the CPU's first list, at most 8 times, and then compare-and-swap on the CPU's
/// second list. The second list cannot be popped by compare-and-swap alone: the node that was read may have been
/// popped, freed, and pushed again in the meantime. So one thread at a time pops, and a thread that finds another
/// popping goes on to the next CPU's slot instead of waiting.
///
/// Threads without rseq see only the second lists, threads with rseq see both. [`List::drain`] recovers nodes on the
/// first list of a CPU that has gone offline, or that no thread runs on any more.
///
/// A process that is killed leaves every list consistent. If it is killed inside a pop of the second list, that list
/// stays closed to pops (not to pushes) until [`List::drain`]; the node that it had popped is lost.
#[derive(Debug, Clone, Copy)]
pub struct List {
    /// Slot of CPU 0.
    first: *const ListSlot,
    stride_shift: u32,
    count: u32,
}

// SAFETY: an address and two numbers; the slots there are `Sync`, and stay as long as the list is used.
unsafe impl Send for List {}
// SAFETY: slots are changed only by atomics and by sections on their CPUs.
unsafe impl Sync for List {}

impl List {
    /// Returns the list whose slots are `slot` in `area`; `None` if the slots are not inside the strides or not
    /// aligned.
    pub fn new(area: Area, slot: PerCpu<ListSlot>) -> Option<List> {
        for cpu in 0..area.count() {
            area.get(slot, cpu)?;
        }
        Some(List { first: area.ptr(slot, 0)?, stride_shift: area.stride_shift(), count: area.count() })
    }

    /// Returns the list whose slots are `offset` bytes from the start of each copy of `object`.
    ///
    /// # Safety
    /// As long as the list is used, the object lives in the pool (or attachment) of `view`; `offset` is a multiple of
    /// 8, and a [`ListSlot`] at that offset ends inside the object; those bytes are zeroes at first, and only lists at
    /// this offset write them.
    #[inline]
    pub unsafe fn of_object(view: View, object: Object, offset: usize) -> List {
        // SAFETY: the caller guarantees that the object lives, and every pool has CPU 0.
        let copy = unsafe { view.address(object, 0) };
        List { first: copy.wrapping_add(offset).cast(), stride_shift: view.stride_shift(), count: view.cpu_count() }
    }

    /// Returns `cpu`'s slot; `None` if there is none.
    #[inline]
    fn slot(&self, cpu: u32) -> Option<&ListSlot> {
        let slot = self.first.wrapping_byte_add((cpu as usize) << (self.stride_shift & 63));
        // SAFETY: an aligned slot is at this address, by the contract of the area or of `of_object`.
        (cpu < self.count).then(|| unsafe { &*slot })
    }

    /// Pushes `node` on the list of the CPU that the thread is on, or was on a moment ago.
    ///
    /// Wait-free with rseq, except after 8 aborts in a row; otherwise lock-free. Async-signal-safe.
    ///
    /// # Safety
    /// `node` is on no list and belongs to the caller. From then on it belongs to the list, until a [`pop`](List::pop)
    /// or a [`drain`](List::drain) returns it: nothing else writes it, and it stays mapped, at one address in every
    /// process that shares the slots.
    #[inline]
    pub unsafe fn push(&self, rseq: Option<Rseq>, node: NonNull<Node>) {
        if let Some(rseq) = rseq {
            for _ in 0..ATTEMPTS_MAX {
                let cpu = rseq.cpu_id_start();
                let Some(slot) = self.slot(cpu) else { break };
                // SAFETY: the slot is `cpu`'s, by the arithmetic that all lists of an area or pool share, and the type
                // of the word lets only sections write it. The caller guarantees that the node is its own and on no
                // list.
                if unsafe { rseq.push(cpu, slot.by_rseq.as_ptr(), node) } {
                    return;
                }
                if !is_worth_another(rseq) {
                    break;
                }
            }
        }
        self.push_by_atomics(rseq, node);
    }

    #[cold]
    fn push_by_atomics(&self, rseq: Option<Rseq>, node: NonNull<Node>) {
        let Some(slot) = self.slot(near(rseq) % self.count) else { return };
        // SAFETY: the caller of `push` gave the node to the list, and it is on no list yet.
        let next = unsafe { &node.as_ref().next };
        let mut first = slot.by_atomics.load(Relaxed);
        loop {
            next.store(first, Relaxed);
            // (L) pairs with (M): a thread that finds the node also sees its contents.
            match slot.by_atomics.compare_exchange_weak(first, node.as_ptr(), Release, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Pops a node from the CPU that the thread is on or, if there is none, from any CPU's second list. The node
    /// belongs to the caller, which may change, free or push it again immediately ([`Rseq::pop`] says why).
    ///
    /// `None`: no node was found. Nodes may remain on other CPUs' first lists, or on a second list from which another
    /// thread was popping.
    ///
    /// Wait-free, except that pushes on other CPUs make the fallback retry. Async-signal-safe.
    #[inline]
    pub fn pop(&self, rseq: Option<Rseq>) -> Option<NonNull<Node>> {
        if let Some(rseq) = rseq {
            for _ in 0..ATTEMPTS_MAX {
                let cpu = rseq.cpu_id_start();
                let Some(slot) = self.slot(cpu) else { break };
                // SAFETY: the slot is `cpu`'s, by the arithmetic that all lists of an area or pool share, and the type
                // of the word lets only sections write it; its nodes were pushed under the contract of `push`.
                match unsafe { rseq.pop(cpu, slot.by_rseq.as_ptr()) } {
                    PopOutcome::Node(node) => return Some(node),
                    PopOutcome::Empty => break,
                    PopOutcome::Aborted if is_worth_another(rseq) => {}
                    PopOutcome::Aborted => break,
                }
            }
        }
        self.pop_by_atomics(rseq)
    }

    #[cold]
    fn pop_by_atomics(&self, rseq: Option<Rseq>) -> Option<NonNull<Node>> {
        let first = near(rseq);
        (0..self.count).find_map(|turn| self.slot(first.wrapping_add(turn) % self.count)?.pop_by_atomics())
    }

    /// Takes every node off every CPU's lists, and reopens those that a killed process has left closed.
    ///
    /// Wait-free (a number of steps proportional to the number of nodes).
    ///
    /// # Safety
    /// No other thread uses the list during the call: all other users have ended, or have been waited for. `take` may
    /// do anything with the node except push it on this list.
    pub unsafe fn drain(&self, mut take: impl FnMut(NonNull<Node>)) {
        for slot in (0..self.count).filter_map(|cpu| self.slot(cpu)) {
            slot.popping.store(0, Relaxed);
            for head in [&slot.by_rseq, &slot.by_atomics] {
                // (M) pairs with (L) and with the final stores (A) of pushes and pops.
                let mut next = head.swap(null_mut(), Acquire);
                while let Some(node) = NonNull::new(next) {
                    // SAFETY: the node was on the list, so it is valid, and no other thread uses the list; `next` is
                    // read before the node is given away.
                    next = unsafe { node.as_ref() }.next.load(Relaxed);
                    take(node);
                }
            }
        }
    }
}

impl ListSlot {
    fn pop_by_atomics(&self) -> Option<NonNull<Node>> {
        // A plain load does not take the cache line from other CPUs: the second lists of most slots are usually empty.
        if self.by_atomics.load(Relaxed).is_null() {
            return None;
        }
        // (P) pairs with (Q): the next thread sees what the previous holder has unlinked.
        if self.popping.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return None;
        }
        // (M) pairs with (L).
        let mut first = self.by_atomics.load(Acquire);
        let popped = loop {
            let Some(node) = NonNull::new(first) else { break None };
            // SAFETY: the node is on the list, and only the holder of `popping` takes nodes off it, so it is valid and
            // stays there.
            let next = unsafe { node.as_ref() }.next.load(Relaxed);
            // (M) pairs with (L). The remaining nodes were pushed before: a swap continues their release sequence.
            match self.by_atomics.compare_exchange_weak(first, next, Acquire, Acquire) {
                Ok(_) => break Some(node),
                Err(now) => first = now,
            }
        };
        // (Q) pairs with (P).
        self.popping.store(0, Release);
        popped
    }
}

/// Whether another attempt after an abort may succeed: the thread is registered, or can be registered.
#[cold]
fn is_worth_another(rseq: Rseq) -> bool {
    rseq.cpu_id().is_some() || rseq.register_thread()
}
