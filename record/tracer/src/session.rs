//! The sessions that this process is in, for the record path: their memory, and the threads that use it at the moment.
//!
//! Each session has a slot. Direct sections of sites write to that in slot 0; those of plans find the others.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::path::PathBuf;

use dormouse_abi::class::CLASS_ID_MAX;
use dormouse_abi::record::RecordKind;
use dormouse_abi::register::SESSION_COUNT_MAX;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use dormouse_abi::session::StreamControl;
use dormouse_abi::session::{
    CLOCK_TSC, LOST_CLASS_COUNT, Line, REASON_COUNT, Reason, STREAM_STRIDE_BYTES, Unrecorded, lost_class_index,
};
use dormouse_abi::tag::TAG_COUNT_MAX;
use dormouse_percpu::{Area, PerCpu, Rseq};
use dormouse_relay::Memory;

use crate::presence::Presence;
use crate::readers::{Using, any_attempt};
use crate::{tag_words, thread};

/// A session from this process's point of view. Never freed, because the record path may hold it at any time; its
/// mapping is removed.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Attached {
    /// First field: critical sections read it through the pointers in [`CURRENT`] and [`CURRENT_SECTIONS`].
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    session: dormouse_relay::arch::Session,
    pub(crate) memory: Memory,
    /// Restartable sequences, where the process has them.
    pub(crate) rseq: Option<Rseq>,
    /// Kind of record headers.
    pub(crate) record_kind: RecordKind,
    /// The control blocks of the CPUs' streams.
    streams: Area,
    /// Their tables of events that are not recorded.
    unrecorded: Area,
    clock: u32,
    /// Slot of the session in this process.
    pub(crate) slot: usize,
    /// Number that the session has given this process.
    pub(crate) process: u16,
    /// For each of the session's tags the index of its thread-local word plus one, or 0: the process has no such tag.
    tag_words: [AtomicU8; TAG_COUNT_MAX],
    /// Number of the session's tags.
    tag_count: usize,
    /// Path of the session's socket.
    pub(crate) socket: PathBuf,
    presence: Presence,
}

// SAFETY: plain data, written once. The pointers lead to shared memory that is accessed by atomics (`Memory` is `Sync`
// for the same reason).
unsafe impl Sync for Attached {}
// SAFETY: plain data that are not bound to a thread. Any thread may access the shared memory that they point to.
unsafe impl Send for Attached {}

/// Location of a stream's control block: at the start of its stride.
// SAFETY: offset 0 is aligned for anything, and the block fits the stride (const assert in `abi`).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const CONTROL_BLOCK: PerCpu<StreamControl> = unsafe { PerCpu::new(0) };

/// Location of a stream's table of events that are not recorded: all of its stride.
// SAFETY: offset 0 is aligned for anything, and a stride is as large as a table.
const UNRECORDED: PerCpu<Unrecorded> = unsafe { PerCpu::new(0) };

/// Number of slots.
pub(crate) const SLOT_COUNT: usize = SESSION_COUNT_MAX;

/// The session in each slot, or null.
static CURRENT: [AtomicPtr<Attached>; SLOT_COUNT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOT_COUNT];

/// Returns the session in a slot. Wait-free; async-signal-safe.
pub(crate) fn in_slot(slot: usize) -> Option<&'static Attached> {
    // (M) pairs with (M').
    // SAFETY: targets of `CURRENT` are never freed.
    unsafe { CURRENT.get(slot)?.load(Ordering::SeqCst).as_ref() }
}

/// Returns the sessions that the process is in. Wait-free; async-signal-safe.
pub(crate) fn sessions() -> impl Iterator<Item = &'static Attached> {
    (0..SLOT_COUNT).filter_map(in_slot)
}

/// Returns restartable sequences, if the process is in a session that uses them. Wait-free; async-signal-safe.
#[inline(always)]
pub(crate) fn rseq() -> Option<Rseq> {
    (0..SLOT_COUNT).find_map(in_slot_before_id).and_then(|attached| attached.rseq)
}

/// Returns the session of which a snapshot is taken: the first one in overwrite mode, or else the first one.
/// Async-signal-safe.
pub(crate) fn flight_recorder() -> Option<&'static Attached> {
    sessions().find(|attached| attached.memory.is_overwrite()).or_else(|| sessions().next())
}

/// Returns the session that was in a slot a moment ago; every write checks that it still is. Must be called before
/// a class's id is read: leaving a session resets the ids only when no thread can find the session any more, so an id
/// that is read after the session belongs to that session or is no id.
#[inline(always)]
pub(crate) fn in_slot_before_id(slot: usize) -> Option<&'static Attached> {
    // (M) Acquire pairs with the SeqCst stores of joining and leaving (M').
    // SAFETY: targets of `CURRENT` are never freed.
    unsafe { CURRENT.get(slot)?.load(Ordering::Acquire).as_ref() }
}

/// Parts of the sessions that direct sections read; [`NO_SESSION`] in an empty slot. They are updated with [`CURRENT`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) static CURRENT_SECTIONS: [AtomicPtr<dormouse_relay::arch::Session>; SLOT_COUNT] =
    [const { AtomicPtr::new((&raw const NO_SESSION).cast_mut()) }; SLOT_COUNT];

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
static NO_SESSION: dormouse_relay::arch::Session = dormouse_relay::arch::Session::none();

/// Sets the session, or none, that writers find in a slot.
pub(crate) fn set_current(slot: usize, attached: Option<&'static Attached>) {
    let pointer = attached.map_or(core::ptr::null_mut(), |attached| core::ptr::from_ref(attached).cast_mut());
    // (M') pairs with (M): ids of the former session were reset before. (L) pairs with (K).
    CURRENT[slot].store(pointer, Ordering::SeqCst);
    set_section(slot, attached);
}

/// Sets the session, or none, that direct sections find in a slot.
fn set_section(slot: usize, attached: Option<&'static Attached>) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let section = attached.map_or(&raw const NO_SESSION, |attached| &raw const attached.session);
        // (X) Release pairs with the sections' load in `define_record!`, on which their other loads depend: the target is
        // written before. Leaving restarts critical sections before it continues.
        CURRENT_SECTIONS[slot].store(section.cast_mut(), Ordering::Release);
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (slot, attached);
}

/// Makes all records take the slow path, in any session, or ends that. Async-signal-safe.
#[cfg(feature = "listen")]
pub(crate) fn divert(on: bool) {
    // A thread that joins or leaves a session meanwhile sets the slot's pointer again.
    (0..SLOT_COUNT).for_each(|slot| set_section(slot, if on { None } else { in_slot(slot) }));
}

/// Slots whose session's memory is out of the address space for the moment, a bit each: [`in_slot`] is `None`, and events
/// are lost.
static APART: AtomicU32 = AtomicU32::new(0);
const _: () = assert!(SLOT_COUNT <= u32::BITS as usize);

/// Numbers of events, by [`lost_class_index`].
type Counts = [AtomicU64; LOST_CLASS_COUNT];

/// Events of a slot's session that happened while its memory was out of the address space, and are not yet counted there.
#[derive(Debug)]
struct CountsApart {
    lost: Counts,
    /// Events that rules left out, by [`Reason`].
    unrecorded: [Counts; REASON_COUNT],
}

/// Counts of each slot that has been used, or null. Never freed.
static COUNTS_APART: [AtomicPtr<CountsApart>; SLOT_COUNT] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOT_COUNT];

fn counts_apart(slot: usize) -> Option<&'static CountsApart> {
    // (U) Acquire pairs with (U').
    // SAFETY: null, or never freed.
    unsafe { COUNTS_APART.get(slot)?.load(Ordering::Acquire).as_ref() }
}

/// Marks the memory of a slot's session as leaving the address space. It is unused once [`has_users`] is false and
/// critical sections have been restarted. Called under the tracer's lock.
pub(crate) fn set_apart(slot: usize) {
    if counts_apart(slot).is_none() {
        let counts = || [const { AtomicU64::new(0) }; LOST_CLASS_COUNT];
        let all = CountsApart { lost: counts(), unrecorded: [counts(), counts()] };
        // (U') Release pairs with (U).
        COUNTS_APART[slot].store(Box::into_raw(Box::new(all)), Ordering::Release);
    }
    // (U') pairs with (U): a thread that was in the session and finds none sees this bit.
    APART.fetch_or(1 << slot, Ordering::SeqCst);
    set_current(slot, None);
}

/// Marks the memory as mapped again, given its new view; `None` if the session was left.
pub(crate) fn set_together(slot: usize, attached: Option<&'static Attached>) {
    set_current(slot, attached);
    // (U'') pairs with (U).
    APART.fetch_and(!(1 << slot), Ordering::SeqCst);
    tell_apart(slot);
}

/// Counts an event of a class that finds no session in a slot while the memory is out of the address space. Returns false
/// if there is no session, or the memory has returned meanwhile. Wait-free; async-signal-safe.
pub(crate) fn count_apart(slot: usize, class_id: u16) -> bool {
    count_meanwhile(slot, class_id, |counts| &counts.lost)
}

fn count_meanwhile(slot: usize, class_id: u16, of: impl FnOnce(&CountsApart) -> &Counts) -> bool {
    // (U) pairs with (U').
    let is_apart = || APART.load(Ordering::SeqCst) & 1 << slot != 0;
    let Some(counts) = counts_apart(slot).filter(|_| is_apart()) else { return false };
    of(counts)[lost_class_index(class_id)].fetch_add(1, Ordering::SeqCst);
    // (U) pairs with (U''): either this thread sees that the memory is mapped again, or the thread that has mapped
    // it sees the count.
    if !is_apart() {
        tell_apart(slot);
    }
    true
}

/// Adds events counted meanwhile to the session's counters. Each count is reported by the thread that takes it.
#[cold]
fn tell_apart(slot: usize) {
    let Some(guard) = in_slot(slot).and_then(Guard::enter) else { return };
    let Some(counts) = counts_apart(slot) else { return };
    let memory = &guard.memory;
    let (cpu_count, stream_count) = (memory.geometry().cpu_count, memory.geometry().stream_count);
    // Any thread may add to a stream of writers without rseq.
    let stream = cpu_count.min(stream_count - 1);
    for (index, lost) in counts.lost.iter().enumerate() {
        let count = lost.swap(0, Ordering::SeqCst);
        if count != 0 {
            memory.use_stream(stream);
            let control = memory.stream(stream);
            control.records_lost_full.0.fetch_add(count, Ordering::Relaxed);
            control.records_lost_by_class[index].fetch_add(count, Ordering::Relaxed);
        }
    }
    for (reason, counts) in counts.unrecorded.iter().enumerate() {
        for (index, counter) in counts.iter().enumerate() {
            let count = counter.swap(0, Ordering::SeqCst);
            if count != 0 {
                memory.use_stream(stream);
                memory.unrecorded(stream).by_class[reason][index].fetch_add(count, Ordering::Relaxed);
            }
        }
    }
}

/// Resets the counts in a forked child: these events were the parent's.
pub(crate) fn forget_apart() {
    APART.store(0, Ordering::Relaxed);
    for counts in (0..SLOT_COUNT).filter_map(counts_apart) {
        let all = counts.lost.iter().chain(counts.unrecorded.iter().flatten());
        all.for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

/// Counts an event that is not recorded for this reason. `id`: that of its class, which belongs to the session or to
/// none. `rseq`: restartable sequences, if the calling thread may use them. The use of a plan, which has begun, keeps
/// the session's memory mapped until it ends. Wait-free; async-signal-safe.
#[inline(always)]
pub(crate) fn count_unrecorded(slot: usize, reason: Reason, id: &AtomicU32, rseq: Option<Rseq>, _: &Using) {
    // Several attempts, as for records: the memory may leave the address space and return meanwhile.
    for _ in 0..FIND_ATTEMPTS_MAX {
        // (M) pairs with (M'). The use began before this load, (G), so either this thread finds no session, or the
        // thread that leaves it waits, after (M') and by (G'), for the end of this use before it unmaps the memory.
        let attached = in_slot(slot);
        // Relaxed: the id is a number by itself. Read after the session, so it belongs to that session or to none.
        let class_id = id.load(Ordering::Relaxed);
        if class_id > CLASS_ID_MAX.into() {
            return;
        }
        match attached {
            Some(attached) => return attached.count_unrecorded(reason, class_id as u16, rseq),
            None if count_meanwhile(slot, class_id as u16, |counts| &counts.unrecorded[reason as usize]) => return,
            None => {}
        }
    }
}

/// Maximum number of attempts to find the session, which may leave the address space and return meanwhile.
pub(crate) const FIND_ATTEMPTS_MAX: u32 = 3;

impl Attached {
    #[inline(always)]
    fn count_unrecorded(&self, reason: Reason, class_id: u16, rseq: Option<Rseq>) {
        let index = lost_class_index(class_id);
        // The first attempt may take the page fault of the table's first use.
        let is_counted = any_attempt(|| {
            let Some((rseq, cpu)) = rseq.and_then(|rseq| Some((rseq, rseq.cpu_id()?))) else { return false };
            let Some(table) = self.unrecorded.get(UNRECORDED, cpu) else { return false };
            self.memory.use_stream(cpu);
            // SAFETY: a counter of this CPU's table, which is written under rseq only. The caller keeps it mapped.
            unsafe { rseq.add(cpu, table.by_class[reason as usize][index].as_ptr(), 1) }
        });
        if !is_counted {
            self.count_unrecorded_apart_from_cpus(reason, index);
        }
    }

    /// Counts in a table that belongs to no CPU, to which any thread may add.
    #[cold]
    fn count_unrecorded_apart_from_cpus(&self, reason: Reason, index: usize) {
        let (cpu_count, stream_count) = (self.memory.geometry().cpu_count, self.memory.geometry().stream_count);
        if stream_count > cpu_count {
            // Threads are spread over the tables.
            let stream = cpu_count + thread::number_below((stream_count - cpu_count) as usize) as u32;
            self.memory.use_stream(stream);
            self.memory.unrecorded(stream).by_class[reason as usize][index].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Number of threads that access the memory outside critical sections at the moment. It is split over several cache
/// lines, so that threads that switch pages at the same time do not wait for each other.
static USERS: [Line<AtomicU64>; 16] = [const { Line(AtomicU64::new(0)) }; 16];

pub(crate) fn has_users() -> bool {
    // (L) pairs with (K), and with (L'): a thread counts in one part, which is either seen here or was incremented
    // after `CURRENT` changed.
    USERS.iter().any(|part| part.0.load(Ordering::SeqCst) != 0)
}

impl Attached {
    /// Returns the session with this memory, for the process with this number. If `can_restart` says that leaving can
    /// restart critical sections, direct sections read session and id themselves.
    ///
    /// # Errors
    /// A message of one line.
    pub(crate) fn new(
        memory: Memory,
        slot: usize,
        rseq: Option<Rseq>,
        #[cfg_attr(
            not(any(target_arch = "x86_64", target_arch = "aarch64")),
            expect(unused_variables, reason = "there are no critical sections")
        )]
        can_restart: bool,
        process: u16,
        socket: PathBuf,
    ) -> Result<Attached, String> {
        let clock = memory.clock();
        if clock == CLOCK_TSC && !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            return Err("the session's clock is not to be had on this machine".into());
        }
        // SAFETY: the geometry places the control blocks there, one in each stride; they are accessed by atomics only.
        let streams = unsafe {
            Area::new(memory.streams_base(), STREAM_STRIDE_BYTES.trailing_zeros(), memory.geometry().cpu_count)
        };
        // SAFETY: the geometry places the tables there, one in each stride of a table's size; all access to them is
        // atomic.
        let unrecorded = unsafe {
            let stride_shift = size_of::<Unrecorded>().trailing_zeros();
            Area::new(memory.unrecorded_base(), stride_shift, memory.geometry().cpu_count)
        };
        Ok(Attached {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            session: dormouse_relay::arch::Session::new(&memory, rseq.is_some() && clock == CLOCK_TSC && can_restart),
            rseq,
            record_kind: memory.record_kind(),
            streams,
            unrecorded,
            clock,
            slot,
            process,
            socket,
            presence: Presence::new(&memory),
            tag_words: [const { AtomicU8::new(0) }; TAG_COUNT_MAX],
            tag_count: memory.tags().len(),
            memory,
        })
        .inspect(Attached::find_tags)
    }

    /// Finds the words of the session's tags. Those that the process does not have remain 0 in records.
    pub(crate) fn find_tags(&self) {
        for (tag, name) in self.memory.tags().iter().enumerate() {
            if let Some(word) = tag_words::word_of(name) {
                // Relaxed: the index is a number by itself.
                self.tag_words[tag].store(word as u8 + 1, Ordering::Relaxed);
                self.memory.register().into_iter().for_each(|register| register.note_tag(tag));
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                // SAFETY: each thread has its words at that distance.
                unsafe {
                    self.session.set_tag_offset(tag, thread::tag_offset(word));
                }
            }
        }
    }

    /// Whether records of the session have tags.
    pub(crate) fn has_tags(&self) -> bool {
        self.tag_count != 0
    }

    /// Returns the values of the session's tags in the calling thread, and their number. Async-signal-safe.
    pub(crate) fn tags(&self) -> ([u64; TAG_COUNT_MAX], usize) {
        let words = thread::tags();
        let value = |word: &AtomicU8| match word.load(Ordering::Relaxed) {
            0 => 0,
            word => words[usize::from(word) - 1].get(),
        };
        (self.tag_words.each_ref().map(value), self.tag_count)
    }

    /// Returns the critical section's parameters for a CPU, or `None` if the CPU has no stream.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    pub(crate) fn site(&self, rseq: Rseq, cpu: u32) -> Option<dormouse_relay::arch::Site> {
        let control = self.streams.ptr(CONTROL_BLOCK, cpu)?;
        Some(dormouse_relay::arch::Site {
            rseq_offset: rseq.offset(),
            cpu,
            control,
            session_word: (&raw const CURRENT[self.slot]).cast(),
            session: &self.session,
        })
    }

    /// Returns the time by the session's clock.
    pub(crate) fn now(&self) -> u64 {
        crate::clock::of_session(self.clock)
    }
}

/// Resets the counts in a forked child: no other thread accesses the memory.
pub(crate) fn forget_users() {
    USERS.iter().for_each(|part| part.0.store(0, Ordering::Relaxed));
}

/// Keeps the session's memory mapped while it is accessed outside critical sections. Async-signal-safe.
pub(crate) struct Guard {
    attached: &'static Attached,
    users: &'static AtomicU64,
}

impl Attached {
    /// Prepares the memory for records. The caller holds a [`Guard`], or the mapping.
    pub(crate) fn make_ready(&self) {
        self.presence.begin(&self.memory);
    }

    /// Prepares page `index` for access outside critical sections, or for being drawn. The caller holds a [`Guard`].
    pub(crate) fn make_page_ready(&self, index: u32) {
        self.presence.make_page_ready(&self.memory, index);
    }

    /// Prepares the page at `unit`, if there is one. See [`Attached::make_page_ready`].
    pub(crate) fn make_unit_ready(&self, unit: u32) {
        self.memory.geometry().page_of_unit(unit).into_iter().for_each(|index| self.make_page_ready(index));
    }

    /// Prepares a stream's control block and ring. See [`Attached::make_page_ready`].
    pub(crate) fn make_stream_ready(&self, stream: u32) {
        self.presence.make_stream_ready(&self.memory, stream);
    }
}

impl core::ops::Deref for Guard {
    type Target = Attached;
    fn deref(&self) -> &Attached {
        self.attached
    }
}

impl Guard {
    /// Returns a guard, or `None` if the process has left the session meanwhile.
    pub(crate) fn enter(attached: &'static Attached) -> Option<Guard> {
        // (K) SeqCst pairs with (L): either this thread sees that the session was left, or the leaving thread sees this
        // user.
        let users = &USERS[thread::number_below(USERS.len())].0;
        users.fetch_add(1, Ordering::SeqCst);
        let guard = Guard { attached, users };
        core::ptr::eq(CURRENT[attached.slot].load(Ordering::SeqCst), attached).then_some(guard)
    }

    /// Returns the session.
    pub(crate) fn attached(&self) -> &'static Attached {
        self.attached
    }

    /// Leaves a session that its owner has ended. The memory stays mapped until the next session is joined: unmapping
    /// waits for threads, which a record path must not do.
    pub(crate) fn leave(&self) {
        let mine = core::ptr::from_ref(self.attached).cast_mut();
        // (M') pairs with (M).
        let _ = CURRENT[self.slot].compare_exchange(mine, core::ptr::null_mut(), Ordering::SeqCst, Ordering::Relaxed);
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        {
            let mine = (&raw const self.attached.session).cast_mut();
            let none = (&raw const NO_SESSION).cast_mut();
            // Relaxed: `NO_SESSION` is a constant. Another session that was joined meanwhile stays.
            let _ = CURRENT_SECTIONS[self.slot].compare_exchange(mine, none, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // (L') pairs with the loads in `leave`: this user's accesses happen before the unmapping.
        self.users.fetch_sub(1, Ordering::SeqCst);
    }
}
