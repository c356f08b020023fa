//! Entries of plans: those of which one comparison decides about an event are left to sections.

use core::sync::atomic::{AtomicPtr, Ordering};

use dormouse_imv::is_filtered;
use dormouse_relay::arch::{Comparison, Entry};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munlock};

use super::PLAN_COUNT_MAX;
use crate::rule::Tests;
use crate::session::CURRENT_SECTION;
use crate::{membarrier, readers};

/// Entries, by the numbers of their plans; null until there is a plan, or if the kernel gives no memory. Never freed.
pub(crate) static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the entries, before the first plan is found. Called under the tracer's lock.
pub(super) fn prepare() {
    if ENTRIES.load(Ordering::Relaxed).is_null() {
        // Entries of zeroes are not set. (Q') Release pairs with the sections' load.
        ENTRIES.store(map().unwrap_or(core::ptr::null_mut()), Ordering::Release);
    }
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

fn entry(number: u32) -> Option<&'static Entry> {
    let entries = ENTRIES.load(Ordering::Relaxed);
    if entries.is_null() || number as usize >= PLAN_COUNT_MAX {
        return None;
    }
    // SAFETY: an entry of the array, which is never freed; entries of zeroes are valid.
    unsafe { entries.wrapping_add(number as usize).as_ref() }
}

/// Leaves the events of a plan to the slow path. Returns whether sections may still decide about some until they are
/// restarted.
pub(super) fn stop(number: u32) -> bool {
    entry(number).is_some_and(|entry| {
        entry.is_set() && {
            entry.stop();
            true
        }
    })
}

/// Entries that were stopped, with their new comparisons.
#[derive(Debug, Default)]
pub(super) struct Stopped(Vec<(u32, u16, Comparison)>);

impl Stopped {
    pub(super) const fn new() -> Stopped {
        Stopped(Vec::new())
    }

    /// Stops a plan's entry. Its tests on events of the class with this id are left to sections later, if one comparison
    /// decides them.
    pub(super) fn add(&mut self, number: u32, id: u32, tests: Option<&Tests>) {
        stop(number);
        if let (Ok(id), Some(comparison)) = (u16::try_from(id), tests.and_then(Tests::comparison)) {
            self.0.push((number, id, comparison));
        }
    }

    /// Leaves events to sections again. `cpu_count`: number of CPUs that the session counts.
    pub(super) fn set(&mut self, cpu_count: u32) {
        let random = readers::random_places(cpu_count);
        if self.0.is_empty() || !membarrier::restart_sections() {
            return self.0.clear();
        }
        for (number, id, comparison) in self.0.drain(..) {
            if let (Some(entry), Some(random)) = (entry(number), random) {
                // SAFETY: stopped before the restart; the word is that of all sections, and the random numbers are of as
                // many CPUs as the session counts.
                unsafe { entry.set(id, &comparison, &CURRENT_SECTION, random) };
            }
        }
    }
}
