//! Lists of nodes, one on each CPU: last in, first out.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

use crate::alloc::{Object, View};
use crate::area::{Area, PerCpu};
use crate::node::Node;
use crate::rseq::{Popped, Rseq, near};

/// One CPU's part of a [`List`]: a list for those with rseq and one for those without. They are two, because a section
/// loads and stores, and an atomic change from elsewhere that fell between the two would be lost. Zeroes are two
/// empty lists.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ListSlot {
    /// Written by sections on this CPU only.
    by_rseq: AtomicPtr<Node>,
    /// Anybody pushes by compare-and-swap; nodes are unlinked by whoever holds `popping`.
    by_atomics: AtomicPtr<Node>,
    /// Not zero: somebody is popping from `by_atomics`.
    popping: AtomicU32,
}

/// Attempts under rseq before the fallback. As for counters.
const ATTEMPTS_MAX: u32 = 8;

/// An intrusive stack of nodes that has a part on each CPU: what is pushed is most likely popped on the same CPU, while it is
/// still in that CPU's cache. Free lists are made of this.
///
/// ```text
///            slot of CPU 0                    slot of CPU 1
///   by_rseq     ─▶ node ─▶ node ─▶ null         ─▶ null             sections on that CPU
///   by_atomics  ─▶ null                         ─▶ node ─▶ null     anybody; one pops at a time
/// ```
///
/// The ladder: a section on the CPU's first list, at most 8 attempts, then compare-and-swap on the CPU's second list. The second
/// list cannot be popped by compare-and-swap alone: the node that was read may have been popped, freed, and pushed again
/// meanwhile. So one thread at a time pops, and a thread that finds another popping goes on to the next CPU's slot instead of waiting.
///
/// Threads without rseq see only the second lists, threads with rseq see both. Nodes on the first list of a CPU that has gone
/// offline, or that no thread runs on any more, come back by [`List::drain`].
///
/// A process that is killed leaves every list consistent. If it is killed inside a pop of the second list, that list stays
/// closed to pops (not to pushes) until [`List::drain`]; the node that it had popped is lost with it.
#[derive(Debug, Clone, Copy)]
pub struct List {
    /// CPU 0's.
    first: *const ListSlot,
    stride_shift: u32,
    count: u32,
}

// SAFETY: an address and two numbers; what lies there is `Sync`, and stays as long as the list is used.
unsafe impl Send for List {}
// SAFETY: slots are changed by atomics and by sections on their CPUs alone.
unsafe impl Sync for List {}

impl List {
    /// The list whose slots are `slot` in `area`; `None` if the slots do not lie inside the strides or not aligned.
    pub fn new(area: Area, slot: PerCpu<ListSlot>) -> Option<List> {
        for cpu in 0..area.count() {
            area.get(slot, cpu)?;
        }
        Some(List { first: area.ptr(slot, 0)?, stride_shift: area.stride_shift(), count: area.count() })
    }

    /// The list whose slots are `offset` bytes from the start of each copy of `object`.
    ///
    /// # Safety
    /// As long as the list is used, the object lives in the pool (or attachment) that `view` is of; `offset` is a multiple of
    /// 8, and a [`ListSlot`] from there ends inside the object; those bytes are zeroes at first, and nothing but such lists
    /// writes them.
    #[inline]
    pub unsafe fn of_object(view: View, object: Object, offset: usize) -> List {
        // SAFETY: the object lives, and a pool has CPU 0.
        let copy = unsafe { view.address(object, 0) };
        List { first: copy.wrapping_add(offset).cast(), stride_shift: view.stride_shift(), count: view.cpu_count() }
    }

    /// `cpu`'s slot; `None` if there is none.
    #[inline]
    fn slot(&self, cpu: u32) -> Option<&ListSlot> {
        let slot = self.first.wrapping_byte_add((cpu as usize) << (self.stride_shift & 63));
        // SAFETY: a slot lies there, aligned, by the contract of the area or of `of_object`.
        (cpu < self.count).then(|| unsafe { &*slot })
    }

    /// Puts `node` on the list of the CPU that the thread is on, or of one near it.
    ///
    /// With rseq wait-free except for 8 aborts in a row; otherwise lock-free. Async-signal-safe.
    ///
    /// # Safety
    /// `node` is on no list and belongs to the caller. From now on it belongs to the list, until a [`pop`](List::pop) or a
    /// [`drain`](List::drain) returns it: nobody else writes it, and it stays mapped, in every process that shares the slots
    /// at the same address.
    #[inline]
    pub unsafe fn push(&self, rseq: Option<Rseq>, node: NonNull<Node>) {
        if let Some(rseq) = rseq {
            for _ in 0..ATTEMPTS_MAX {
                let cpu = rseq.cpu_id_start();
                let Some(slot) = self.slot(cpu) else { break };
                // SAFETY: the slot is `cpu`'s, by the arithmetic that all lists of an area or pool share, and its type lets nothing
                // but sections write the word; the node is the caller's promise.
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
        // SAFETY: the caller of `push` gave the node away, and it is on no list yet.
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

    /// Takes a node: from the CPU that the thread is on, or if there is none, from any second list. The node belongs to the caller, who may change,
    /// free or push it again immediately ([`Rseq::pop`] says why).
    ///
    /// `None`: none was found. There may be some on other CPUs' first lists, or where somebody was popping at the same time.
    ///
    /// Wait-free except that pushes of other CPUs make the fallback try again; async-signal-safe.
    #[inline]
    pub fn pop(&self, rseq: Option<Rseq>) -> Option<NonNull<Node>> {
        if let Some(rseq) = rseq {
            for _ in 0..ATTEMPTS_MAX {
                let cpu = rseq.cpu_id_start();
                let Some(slot) = self.slot(cpu) else { break };
                // SAFETY: the slot is `cpu`'s, by the arithmetic that all lists of an area or pool share, and its type lets
                // nothing but sections write the word; what it leads to was pushed by the contract of `push`.
                match unsafe { rseq.pop(cpu, slot.by_rseq.as_ptr()) } {
                    Popped::Node(node) => return Some(node),
                    Popped::Empty => break,
                    Popped::Aborted if is_worth_another(rseq) => {}
                    Popped::Aborted => break,
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

    /// Takes every node off every CPU's lists, and opens those that a killed process has left closed.
    ///
    /// Wait-free (steps by the number of nodes).
    ///
    /// # Safety
    /// Nobody else uses the list during the call: all other users have ended, or have been waited for. `take` may do anything with the node
    /// except push it on this list.
    pub unsafe fn drain(&self, mut take: impl FnMut(NonNull<Node>)) {
        for slot in (0..self.count).filter_map(|cpu| self.slot(cpu)) {
            slot.popping.store(0, Relaxed);
            for head in [&slot.by_rseq, &slot.by_atomics] {
                // (M) pairs with (L) and with the final stores (A) of pushes and pops.
                let mut next = head.swap(null_mut(), Acquire);
                while let Some(node) = NonNull::new(next) {
                    // SAFETY: on the list, so valid, and nobody else is here; read before it is given away.
                    next = unsafe { node.as_ref() }.next.load(Relaxed);
                    take(node);
                }
            }
        }
    }
}

impl ListSlot {
    fn pop_by_atomics(&self) -> Option<NonNull<Node>> {
        // A load, which does not take the cache line from others: most slots' second list is empty most of the time.
        if self.by_atomics.load(Relaxed).is_null() {
            return None;
        }
        // (P) pairs with (Q): the next thread sees what the last one has unlinked.
        if self.popping.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            return None;
        }
        // (M) pairs with (L).
        let mut first = self.by_atomics.load(Acquire);
        let popped = loop {
            let Some(node) = NonNull::new(first) else { break None };
            // SAFETY: on the list, and only the holder of `popping` takes nodes off it, so it is valid and stays there.
            let next = unsafe { node.as_ref() }.next.load(Relaxed);
            // (M) pairs with (L). The chain that stays was pushed before: a swap continues its release.
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

/// After an abort: whether the thread is registered, or can be made so.
#[cold]
fn is_worth_another(rseq: Rseq) -> bool {
    rseq.cpu_id().is_some() || rseq.register_thread()
}
