//! Entries of plans: those of which one comparison decides about an event are left to sections.

use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::BTreeMap;

use dormouse_abi::session::Reason;
use dormouse_imv::is_filtered;
use dormouse_relay::arch::{Comparison, Entry, Source};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munlock};

use super::{PLAN_COUNT_MAX, Wanted};
use crate::rule::Tests;
use crate::session::{CURRENT_SECTIONS, SLOT_COUNT};
use crate::{membarrier, readers};

/// Entries of each slot, by the numbers of their plans; null until the slot's first plan, or if the kernel gives no memory.
/// Never freed. Sections find the first slot's.
pub(crate) static FIRST_ENTRIES: [AtomicPtr<Entry>; SLOT_COUNT] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOT_COUNT];

/// Makes the entries of a slot. Called under the tracer's lock.
fn prepare(slot: usize) {
    if FIRST_ENTRIES[slot].load(Ordering::Relaxed).is_null() {
        // Entries of zeroes are not set. (Q') Release pairs with the sections' load.
        FIRST_ENTRIES[slot].store(map().unwrap_or(core::ptr::null_mut()), Ordering::Release);
    }
}

/// Returns the slot that has an entry at this address. Wait-free; async-signal-safe.
pub(crate) fn slot_of(entry: u64) -> usize {
    let has = |entries: &AtomicPtr<Entry>| {
        let first = entries.load(Ordering::Relaxed).addr() as u64;
        first != 0 && entry.wrapping_sub(first) < (PLAN_COUNT_MAX * size_of::<Entry>()) as u64
    };
    FIRST_ENTRIES.iter().position(has).unwrap_or(0)
}

/// Maps memory of which the kernel gives each page at its first use, also after `mlockall(MCL_FUTURE)`.
fn map() -> rustix::io::Result<*mut Entry> {
    let size_bytes = PLAN_COUNT_MAX * size_of::<Entry>();
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // A filter of system calls may kill for those that allocators do not make.
    let may_unlock = !is_filtered();
    let at_first = if may_unlock { ProtFlags::empty() } else { ProtFlags::READ | ProtFlags::WRITE };
    // SAFETY: a new mapping at an address that the kernel chooses.
    let base = unsafe {
        mmap_anonymous(core::ptr::null_mut(), size_bytes, at_first, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }?;
    if may_unlock {
        // Pages that cannot be accessed are not given at once. If the mapping is not locked, nothing happens.
        // SAFETY: the range is the new mapping.
        let _ = unsafe { munlock(base, size_bytes) };
        // SAFETY: the range is the new mapping, which nobody has seen.
        unsafe { mprotect(base, size_bytes, access) }?;
    }
    Ok(base.cast())
}

fn entry(slot: usize, number: u32) -> Option<&'static Entry> {
    let entries = FIRST_ENTRIES[slot].load(Ordering::Relaxed);
    if entries.is_null() || number as usize >= PLAN_COUNT_MAX {
        return None;
    }
    // SAFETY: an entry of the array, which is never freed; entries of zeroes are valid.
    unsafe { entries.wrapping_add(number as usize).as_ref() }
}

/// Leaves the events of a plan to the slow path, for the session in a slot. Returns whether sections may still decide about
/// some until they are restarted.
pub(super) fn stop(slot: usize, number: u32) -> bool {
    entry(slot, number).is_some_and(|entry| {
        entry.is_set() && {
            entry.stop();
            true
        }
    })
}

/// Entries that were stopped, by the numbers of their plans and by slots: sections will decide about events of the class
/// with this id, or, without one, no session in the slot wants the class.
#[derive(Debug)]
pub(super) struct Stopped(BTreeMap<(u32, usize), Option<(u16, Comparison)>>);

impl Stopped {
    pub(super) const fn new() -> Stopped {
        Stopped(BTreeMap::new())
    }

    /// Stops a plan's entries, and chains those of the sessions that want the class. Events are left to sections later
    /// where one comparison decides. `is_marked`: triggers wait for the class, so no event is left to sections.
    pub(super) fn add(&mut self, number: u32, wanted: &[Wanted], is_marked: bool) {
        for slot in 0..SLOT_COUNT {
            stop(slot, number);
            self.0.remove(&(number, slot));
        }
        // The chain begins in slot 0, whose session may not want the class.
        prepare(0);
        wanted.iter().for_each(|wanted| prepare(wanted.slot));
        let chain = wanted.iter().map(|wanted| Some((wanted, entry(wanted.slot, number)?))).collect::<Option<Vec<_>>>();
        // Without memory for one of them, the slow path decides for all.
        let (Some(mut last), Some(chain), false) = (entry(0, number), chain, is_marked) else { return };
        if wanted.first().is_some_and(|wanted| wanted.slot != 0) {
            self.0.insert((number, 0), None);
        }
        for (Wanted { slot, id, tests }, entry) in chain {
            if *slot != 0 {
                last.link(Some(entry));
            }
            last = entry;
            let comparison = tests.as_ref().map_or(Some(EVERYBODY), Tests::comparison);
            if let (Ok(id), Some(comparison)) = (u16::try_from(id.load(Ordering::Relaxed)), comparison) {
                self.0.insert((number, *slot), Some((id, comparison)));
            }
        }
        last.link(None);
    }

    /// Leaves events to sections again. `cpu_count`: number of CPUs that the sessions count.
    pub(super) fn set(&mut self, cpu_count: u32) {
        let stopped = core::mem::take(&mut self.0);
        if stopped.is_empty() || !readers::has_random(cpu_count) || !membarrier::restart_sections() {
            return;
        }
        for ((number, slot), comparison) in stopped {
            match (entry(slot, number), comparison) {
                // SAFETY: stopped before the restart; the word is that of the session's slot, and there are random
                // numbers of as many CPUs as the session counts.
                (Some(entry), Some((id, comparison))) => unsafe {
                    entry.set(id, &comparison, &CURRENT_SECTIONS[slot]);
                },
                (Some(entry), None) => entry.pass(),
                (None, _) => {}
            }
        }
    }
}

/// The comparison of a session that wants all events of a class.
const EVERYBODY: Comparison = Comparison {
    source: Source::Everybody,
    first_run_size_bytes: 0,
    word: 0,
    run_size_bytes_min: 0,
    scale: 1,
    first: 0,
    span: u64::MAX,
    reason: Reason::Rejected,
};
