//! The slow path, which writes every record that a direct section does not: it chooses the CPU's stream, writes and commits,
//! switches pages, offers them, and counts what is lost.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use dormouse_abi::class::CLASS_ID_MAX;
use dormouse_abi::page;
use dormouse_abi::record::{HEADER_SIZE_BYTES, PACKET_SPAN_BITS};
use dormouse_abi::session::{Geometry, State, StreamControl, claim, lost_class_index, spare};
use dormouse_abi::txn::Txn;
use dormouse_percpu::{Commit, Rseq, apply_exclusive};
#[cfg(target_arch = "x86_64")]
use dormouse_relay::begin_epoch;
use dormouse_relay::{Drawer, Form, Record, Segment, Written, write_exclusive};
use dormouse_vring::split::PlannedDriver;

use crate::marks;
use crate::session::{Attached, Guard, count_apart, current_before_id};
use crate::thread::{self, Writer};

/// Called when a record of a class with marks was written, with these and its writer. Async-signal-safe.
static ON_MARKED: OnceLock<fn(u32, Writer)> = OnceLock::new();

/// Has `function`, which is async-signal-safe, called when a record of a class with marks was written. The first one stays.
pub(crate) fn on_marked(function: fn(u32, Writer)) {
    let _ = ON_MARKED.set(function);
}

/// Writes a record of up to three words of fields.
///
/// # Safety
/// `id` may be read, and the words hold `size_bytes` less the header.
#[cold]
pub(crate) unsafe extern "C" fn record_words_slowly(
    id: *const u32,
    size_bytes: usize,
    _: MaybeUninit<u64>,
    w0: u64,
    w1: u64,
    w2: u64,
) {
    let words = [w0, w1, w2];
    let segments = [Segment::padded(words.as_ptr().cast(), size_bytes - HEADER_SIZE_BYTES)];
    // SAFETY: the caller's word; the segment is an array of words.
    unsafe { record_slowly(id, &segments) }
}

/// Writes a record of the segments from `first` to before `end`.
///
/// # Safety
/// `id` may be read, `end` is not before `first`, and all segments and their sources may be read.
#[cold]
pub(crate) unsafe extern "C" fn record_runs_slowly(
    id: *const u32,
    _size_bytes: usize,
    _: MaybeUninit<u64>,
    first: *const Segment,
    end: *const Segment,
) {
    // SAFETY: both are of one array by the caller's word, and segments have a size.
    let count = unsafe { end.offset_from_unsigned(first) };
    // SAFETY: the caller's word.
    let segments = unsafe { core::slice::from_raw_parts(first, count) };
    // SAFETY: the caller's word.
    unsafe { record_slowly(id, segments) }
}

/// Asks, in this one place, for all that keeps a record from being written directly: no session, a class without an id, a class with marks, a
/// thread that is not known or is the tracer's own, no rseq, another clock than the timestamp counter, a page switch.
///
/// # Safety
/// `id` may be read, and so may the segments' sources.
unsafe fn record_slowly(id: *const u32, segments: &[Segment]) {
    #[cfg(feature = "listen")]
    if crate::wake::is_wanted() {
        crate::listen::start_woken();
    }
    // The memory may leave the address space and come back meanwhile: who finds it neither gone nor there looks again.
    for _ in 0..LOOKS {
        let attached = current_before_id();
        // SAFETY: the caller's word; all access to ids is atomic.
        let id = unsafe { AtomicU32::from_ptr(id.cast_mut()) };
        // Relaxed: the id is a number of its own, and the session has been asked for before.
        let (id, marks) = marks::split(id.load(Ordering::Relaxed));
        // No class has such an id: the owner had none left, or the class has just left a session.
        if id > CLASS_ID_MAX as u32 || thread::is_inside() {
            return;
        }
        // From here on the memory is touched outside critical sections, so its unmapping has to wait.
        match attached.and_then(Guard::enter) {
            Some(guard) => return record_in(guard, id as u16, marks, segments),
            None if count_apart(id as u16) => return,
            None => {}
        }
    }
}

/// See [`record_slowly`].
const LOOKS: u32 = 3;

/// Writes a record of a class with this id and these marks.
fn record_in(guard: Guard, id: u16, marks: u32, segments: &[Segment]) {
    guard.make_ready();
    let writer = thread::identify();
    let record = Record::new(id, writer.context, segments);
    // (P) pairs with (P').
    if guard.memory.header().stopped.0.load(Ordering::Acquire) != 0 {
        guard.leave();
        return;
    }
    let attached: &'static Attached = guard.attached();
    match attached.rseq {
        Some(rseq) if writer.owns_tls => record_under_rseq(attached, rseq, &record),
        _ => record_claimed(attached, writer, &record),
    }
    drop(guard);
    if marks != 0
        && let Some(function) = ON_MARKED.get()
    {
        function(marks, writer);
    }
}

/// Whether a record of this time goes into the current page of a stream.
fn fits(attached: &Attached, stream: u32, state: u64, size_bytes: usize, timestamp: u64) -> bool {
    let state = State::from_word(state);
    let control = attached.memory.stream(stream);
    // (C) pairs with (A): written before the state word that opens the page.
    let begin = control.begin_timestamp.load(Ordering::Acquire);
    // The sections go by the expiry alone, which comes a little before the span's end.
    let expiry = control.expiry.load(Ordering::Acquire);
    attached.memory.page(state.unit).is_some()
        && state.offset as usize + size_bytes + page::SLACK_BYTES <= attached.memory.geometry().page_size_bytes as usize
        && timestamp.wrapping_sub(begin) >> PACKET_SPAN_BITS == 0
        && timestamp >> 32 < expiry
}

/// How a record of this time is written to a stream.
fn form(attached: &Attached, control: &StreamControl, record: &Record<'_>, timestamp: u64) -> Form {
    // (Y) pairs with (Y').
    record.form(attached.record_kind, timestamp, control.epoch.load(Ordering::Acquire))
}

/// Whether no page can take it. One that would fit if it were compact cannot count on it.
fn is_too_big(attached: &Attached, record: &Record<'_>) -> bool {
    let size_bytes = attached.record_kind.header_size_bytes_max() + record.fields_size_bytes;
    size_bytes > page::record_size_max_bytes(attached.memory.geometry().page_size_bytes as usize)
}

/// One way to change a stream: under rseq on its CPU, or as its claimant.
#[derive(Debug, Clone, Copy)]
enum StreamAccess {
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86-64 has critical sections"))]
    Rseq(Rseq, u32),
    Claim(u32),
}

impl StreamAccess {
    fn stream(self) -> u32 {
        match self {
            StreamAccess::Rseq(_, cpu) => cpu,
            StreamAccess::Claim(stream) => stream,
        }
    }

    fn commit(self, txn: &Txn) -> Commit {
        match self {
            // SAFETY: `Memory` and `PlannedDriver` plan inside the mapping; streams of CPUs are only written so.
            StreamAccess::Rseq(rseq, cpu) => unsafe { rseq.commit(cpu, txn) },
            // SAFETY: `Memory` and `PlannedDriver` plan inside the mapping, and the stream is claimed.
            StreamAccess::Claim(_) => unsafe { apply_exclusive(txn) },
        }
    }

    /// Counts one lost event. False: aborted, nothing was counted.
    fn count(self, counter: &core::sync::atomic::AtomicU64) -> bool {
        match self {
            // SAFETY: a counter of this CPU's control block, only written under rseq.
            StreamAccess::Rseq(rseq, cpu) => unsafe { rseq.add(cpu, counter.as_ptr(), 1) },
            StreamAccess::Claim(_) => {
                counter.fetch_add(1, Ordering::Relaxed);
                true
            }
        }
    }
}

/// What to do after a page switch was tried.
#[derive(Debug, PartialEq, Eq)]
enum Switch {
    /// Look again: there is a new page, or somebody else was at work, or the thread has moved.
    Again,
    /// No page is free.
    NoPage,
}

#[cfg(target_arch = "x86_64")]
fn record_under_rseq(attached: &'static Attached, rseq: Rseq, record: &Record<'_>) {
    for _ in 0..ATTEMPTS_MAX {
        // A thread that is not registered, or a CPU that came after the session was sized.
        let Some(cpu) = rseq.cpu_id() else { break };
        let Some(site) = attached.site(rseq, cpu) else { break };
        let access = StreamAccess::Rseq(rseq, cpu);
        attached.memory.use_stream(cpu);
        attached.make_stream_ready(cpu);
        let control = attached.memory.stream(cpu);
        if is_too_big(attached, record) {
            if access.count(&control.records_lost_big) {
                return count_class(attached, access, record.id);
            }
            continue;
        }
        // (C) pairs with (A), the final store of whoever wrote before.
        let state = control.state.load(Ordering::Acquire);
        let timestamp = attached.now();
        let form = form(attached, control, record, timestamp);
        if fits(attached, cpu, state, record.size_bytes(form), timestamp) {
            // SAFETY: `site` describes the session, which the guard keeps mapped; the clock was read after the state word.
            let written = unsafe { dormouse_relay::arch::rseq_write_at(site, record, form, state, timestamp) };
            if (written, form) == (Written::Done, Form::Extended) {
                // The thread may be on another CPU by now: `begin_epoch` may be late.
                begin_epoch(control, timestamp);
            }
            match written {
                Written::Done => return,
                Written::Gone => {
                    count_apart(record.id);
                    return;
                }
                Written::Aborted | Written::Full => continue,
            }
        }
        if switch(attached, access, state) == Switch::NoPage && access.count(&control.records_lost_full.0) {
            return count_class(attached, access, record.id);
        }
    }
    record_claimed(attached, thread::identify(), record);
}

/// How often a write is tried under rseq. Only a debugger that steps through the section, or memory that somebody has
/// scribbled over, needs more; a traced program must get on in any case.
const ATTEMPTS_MAX: u32 = 1_000;

#[cfg(not(target_arch = "x86_64"))]
fn record_under_rseq(attached: &'static Attached, _rseq: Rseq, record: &Record<'_>) {
    record_claimed(attached, thread::identify(), record);
}

/// Where a thread without rseq looked last: a hint that keeps threads apart.
static CLAIM_HINT: AtomicU32 = AtomicU32::new(0);

/// Writes as the claimant of a stream that belongs to no CPU.
fn record_claimed(attached: &'static Attached, writer: Writer, record: &Record<'_>) {
    let memory = &attached.memory;
    let cpu_count = memory.geometry().cpu_count;
    let count = memory.geometry().stream_count - cpu_count;
    if count == 0 {
        return;
    }
    let tid = (writer.context >> 32) as u32;
    let mine = claim::to_word(attached.process, tid);
    let first = tid.wrapping_add(CLAIM_HINT.load(Ordering::Relaxed));
    for step in 0..count {
        let stream = cpu_count + first.wrapping_add(step) % count;
        memory.use_stream(stream);
        attached.make_stream_ready(stream);
        let control = memory.stream(stream);
        // (H) Acquire pairs with (I), the claimant's before: its stores to the stream come before this one's.
        if control.claim.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue;
        }
        write_claimed(attached, stream, record);
        // (I) Release pairs with (H). The exchange fails only if the session owner believes this process dead.
        let _ = control.claim.compare_exchange(mine, 0, Ordering::Release, Ordering::Relaxed);
        return;
    }
    // Everything is claimed by writers that were interrupted; these counters take additions from anybody.
    CLAIM_HINT.fetch_add(1, Ordering::Relaxed);
    let stream = cpu_count + first % count;
    memory.use_stream(stream);
    memory.stream(stream).records_lost_full.0.fetch_add(1, Ordering::Relaxed);
    count_class(attached, StreamAccess::Claim(stream), record.id);
}

/// Counts a lost event, which its stream has counted, for its class too.
#[cold]
fn count_class(attached: &Attached, access: StreamAccess, class_id: u16) {
    let memory = &attached.memory;
    let count_in = |access: StreamAccess| {
        let counts = &memory.stream(access.stream()).records_lost_by_class;
        counts.get(lost_class_index(class_id)).is_none_or(|counter| access.count(counter))
    };
    let Geometry { cpu_count, stream_count, .. } = *memory.geometry();
    // A thread that was moved since adds where anybody may: a word of a CPU is added to in its sections alone.
    if !count_in(access) && stream_count > cpu_count {
        let other = cpu_count + access.stream() % (stream_count - cpu_count);
        memory.use_stream(other);
        count_in(StreamAccess::Claim(other));
    }
}

fn write_claimed(attached: &'static Attached, stream: u32, record: &Record<'_>) {
    let memory = &attached.memory;
    let access = StreamAccess::Claim(stream);
    let control = memory.stream(stream);
    if is_too_big(attached, record) {
        access.count(&control.records_lost_big);
        return count_class(attached, access, record.id);
    }
    for _ in 0..ATTEMPTS_MAX {
        let state = control.state.load(Ordering::Relaxed);
        let timestamp = attached.now();
        let form = form(attached, control, record, timestamp);
        if fits(attached, stream, state, record.size_bytes(form), timestamp) {
            // SAFETY: the stream is claimed; the segments' sources are those of the call that is running.
            match unsafe { write_exclusive(memory, stream, record, || timestamp) } {
                Written::Full => {}
                _ => return,
            }
        }
        if switch(attached, access, state) == Switch::NoPage {
            break;
        }
    }
    access.count(&control.records_lost_full.0);
    count_class(attached, access, record.id);
}

/// Closes the current page and opens the next, then offers what is closed.
fn switch(attached: &Attached, access: StreamAccess, state: u64) -> Switch {
    let memory = &attached.memory;
    let stream = access.stream();
    let control = memory.stream(stream);
    let State { seq, unit: closing, .. } = State::from_word(state);
    let seq_next = seq.wrapping_add(1);
    // Others may have opened it.
    attached.make_unit_ready(closing);
    // (C) pairs with (A): the final store that linked the page.
    let seen = control.spare.load(Ordering::Acquire);
    // A spare of a stream that has moved on since is another number's: it would be replaced by one that nobody ever uses. As long as the
    // stream is where it was, it does not move on without a change of the spare, which is the guard below.
    // (C) pairs with (A), the final store of whoever switched pages.
    if control.state.load(Ordering::Acquire) != state {
        return Switch::Again;
    }
    let unit = match spare::unit_for(seen, seq_next) {
        Some(unit) => {
            attached.make_unit_ready(unit);
            unit
        }
        None => {
            let Some(unit) = draw(attached, stream) else { return Switch::NoPage };
            if access.commit(&memory.plan_spare(stream, seen, seq_next, unit)) != Commit::Done {
                memory.give_back(attached.process, stream, unit);
                return Switch::Again;
            }
            unit
        }
    };
    // The clock is read after the state word, which guards the transaction.
    let timestamp = attached.now();
    if access.commit(&memory.plan_switch(stream, state, unit, timestamp)) == Commit::Done {
        memory.open(stream, timestamp);
        if !memory.is_overwrite() {
            offer(attached, access);
        }
    }
    Switch::Again
}

impl Drawer for &Attached {
    fn used(&self, stream: u32) -> u64 {
        if self.memory.is_overwrite() {
            // (E') pairs with (E).
            self.memory.stream(stream).reclaimed.load(Ordering::Acquire)
        } else {
            ring(self, stream).map_or(0, |driver| driver.used_count())
        }
    }

    fn make_ready(&self, index: u32) {
        self.make_page_ready(index);
    }
}

/// Draws a page; in overwrite mode at the price of the oldest one. Remembers a failed search until a page becomes free.
fn draw(attached: &Attached, stream: u32) -> Option<u32> {
    let memory = &attached.memory;
    let control = memory.stream(stream);
    // (J) Acquire pairs with the Release of whoever freed a page: read before the search, so no freed page is missed.
    let freed = memory.header().freed.0.load(Ordering::Acquire);
    let has_failed = control.search_failed_at.load(Ordering::Relaxed) == freed.wrapping_add(1);
    let search = || memory.draw(attached.process, stream, attached);
    if !has_failed {
        if let Some(unit) = search() {
            return Some(unit);
        }
        // Only this stream reads it; a value that another writer of the stream leaves is as good.
        control.search_failed_at.store(freed.wrapping_add(1), Ordering::Relaxed);
    }
    if !memory.is_overwrite() {
        return None;
    }
    // Others may draw what this one evicts, and what a snapshot holds or the budget no longer has is none; but not for ever.
    let evicted = (0..memory.geometry().page_count.max(SEARCHES_MAX)).find_map(|attempt| {
        let evicted = memory.evict(stream)?;
        let drawn = memory.draw_page(attached.process, stream, evicted, attached);
        if attempt < SEARCHES_MAX { drawn.or_else(search) } else { drawn }
    });
    evicted.or_else(search)
}

/// After how many evictions whose page somebody else has drawn, a writer looks at all pages again.
const SEARCHES_MAX: u32 = 32;

fn ring(attached: &Attached, stream: u32) -> Option<PlannedDriver> {
    let memory = &attached.memory;
    let published = memory.stream(stream).published.0.as_ptr();
    // SAFETY: the geometry places a ring of this size there, initialised by the session owner and used by atomics only.
    unsafe { PlannedDriver::new(memory.ring(stream), memory.geometry().ring_size(), published) }.ok()
}

/// Puts every closed page that is not there yet into the virtqueue, also those that a killed writer has left. The consumer comes by itself:
/// to wake it would be a system call. Leaves off when the thread is moved: whoever comes next goes on.
fn offer(attached: &Attached, access: StreamAccess) {
    let memory = &attached.memory;
    let stream = access.stream();
    let control = memory.stream(stream);
    let Some(driver) = ring(attached, stream) else { return };
    let published = &control.published.0;
    // (C) pairs with (A), the final store of whoever wrote the descriptors.
    let mut next = published.load(Ordering::Acquire);
    for _ in 0..memory.geometry().ring_size() {
        // (C) pairs with (A): chain and header of every page that it counts are written.
        let state = State::from_word(control.state.load(Ordering::Acquire));
        if next as u16 == state.seq {
            break;
        }
        let unit = memory.chain(stream, next);
        attached.make_unit_ready(unit);
        let len = memory.page_field(unit, page::OFFSET_CONTENT_SIZE) / 8;
        let address = unit as u64 * dormouse_abi::session::UNIT_BYTES as u64;
        match access.commit(&driver.plan_descriptor(next, address, len as u32)) {
            Commit::Done => next = next.wrapping_add(1),
            // (C) pairs with (A), the final store of whoever published.
            Commit::GuardChanged => next = published.load(Ordering::Acquire),
            Commit::Aborted => return,
        }
    }
    // The descriptors come first: the index is read from the shadow, so a late writer never takes it back.
    let _ = access.commit(&driver.plan_publish(next));
}
