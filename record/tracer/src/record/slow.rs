//! The slow path, which writes every record that a direct section does not: it chooses the CPU's stream, writes and
//! commits, switches pages, offers them, and counts lost events.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use dormouse_abi::class::{CLASS_ID_MAX, FIELD_COUNT_MAX};
use dormouse_abi::page;
use dormouse_abi::record::{HEADER_SIZE_BYTES, PACKET_SPAN_BITS};
use dormouse_abi::session::{Geometry, Reason, State, StreamControl, claim, lost_class_index, spare};
use dormouse_abi::tag::TAG_SIZE_BYTES;
use dormouse_abi::txn::Txn;
use dormouse_percpu::{Commit, Rseq, apply_exclusive};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use dormouse_relay::begin_epoch;
use dormouse_relay::{Drawer, Form, Record, Segment, WriteOutcome, write_exclusive};
use dormouse_vring::split::PlannedDriver;

use crate::plan::{self, Again, Wanted};
use crate::readers::Using;
use crate::rule::{Answer, Event};
use crate::session::{Attached, FIND_ATTEMPTS_MAX, Guard, count_apart, count_unrecorded, in_slot_before_id, rseq};
use crate::thread::{self, Writer};

/// Maximum number of runs of an event: at most three for each field.
const SEGMENT_COUNT_MAX: usize = 3 * FIELD_COUNT_MAX;

/// Function to call after a record of a class with marks was written, with the marks and the writer. Async-signal-safe.
static ON_MARKED: OnceLock<fn(u32, Writer)> = OnceLock::new();

/// Makes the slow path call `function`, which is async-signal-safe, after each record of a class with marks. The
/// function of the first call is kept.
pub(crate) fn on_marked(function: fn(u32, Writer)) {
    let _ = ON_MARKED.set(function);
}

/// Writes a record of up to three words of fields.
///
/// # Safety
/// `id` is readable, and the words hold `size_bytes` less the header.
#[cold]
pub(crate) unsafe extern "C" fn record_words_slowly(
    id: *const u32,
    size_bytes: usize,
    _: MaybeUninit<u64>,
    w0: u64,
    w1: u64,
    w2: u64,
) {
    let words = [w0, w1, w2].map(u64::to_le);
    let len = size_bytes - HEADER_SIZE_BYTES;
    let segments = [Segment::padded(words.as_ptr().cast(), len)];
    // SAFETY: the caller guarantees that `id` is readable; the segment is an array of words with at least the given
    // bytes.
    unsafe { record_slowly(id, &segments) };
}

/// Writes a record of up to three words of fields, of a class with a plan, into the sessions from that of an entry on.
///
/// # Safety
/// `id` is readable, the words hold `size_bytes` less the header, and `entry` is the address of an entry.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cold]
pub(crate) unsafe extern "C" fn record_words_by_plan(
    id: *const u32,
    size_bytes: usize,
    entry: MaybeUninit<u64>,
    w0: u64,
    w1: u64,
    w2: u64,
) {
    let words = [w0, w1, w2].map(u64::to_le);
    let len = size_bytes - HEADER_SIZE_BYTES;
    let segments = [Segment::padded(words.as_ptr().cast(), len)];
    // SAFETY: the caller guarantees an address, so it is initialised.
    let from = plan::slot_of(unsafe { entry.assume_init() });
    let again = |id: &AtomicU32, again: Again| (again.words)(id, len, [w0, w1, w2]);
    // SAFETY: the caller guarantees that `id` is readable; the segment is an array of words with at least the given
    // bytes.
    unsafe { record_planned(id, from, &segments, again) };
}

/// Writes a record of the segments from `first` to before `end`, of a class with a plan, into the sessions from that of an
/// entry on.
///
/// # Safety
/// `id` is readable, `first..end` are elements of one array, all segments and their sources are readable, and `entry` is
/// the address of an entry.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cold]
pub(crate) unsafe extern "C" fn record_runs_by_plan(
    id: *const u32,
    _size_bytes: usize,
    entry: MaybeUninit<u64>,
    first: *const Segment,
    end: *const Segment,
) {
    // SAFETY: the caller guarantees the array, and that its segments are readable.
    let segments = unsafe { between(first, end) };
    // SAFETY: the caller guarantees an address, so it is initialised.
    let from = plan::slot_of(unsafe { entry.assume_init() });
    // SAFETY: the caller guarantees that the segments' sources are readable.
    let again = |id: &AtomicU32, again: Again| unsafe { (again.segments)(id, segments) };
    // SAFETY: the caller guarantees that `id` and the segments' sources are readable.
    unsafe { record_planned(id, from, segments, again) };
}

/// Writes a record of a class that had a plan a moment ago, into the sessions from slot `from` on.
///
/// # Safety
/// `id` and the segments' sources are readable.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
unsafe fn record_planned(id: *const u32, from: usize, segments: &[Segment], again: impl Fn(&AtomicU32, Again)) {
    // SAFETY: the caller guarantees that `id` is readable; all access to ids is atomic.
    let (_, number) = plan::split(unsafe { AtomicU32::from_ptr(id.cast_mut()) }.load(Ordering::Relaxed));
    if plan::is_number(number) {
        // SAFETY: the caller guarantees that the segments' sources are readable.
        unsafe { record_by_plan(number, from, segments, again) };
    } else if from == 0 {
        // SAFETY: the caller guarantees that `id` and the segments' sources are readable.
        unsafe { record_slowly(id, segments) };
    }
}

/// Writes a record of the segments from `first` to before `end`.
///
/// # Safety
/// `id` is readable, `first..end` are elements of one array, and all segments and their sources are readable.
#[cold]
pub(crate) unsafe extern "C" fn record_runs_slowly(
    id: *const u32,
    _size_bytes: usize,
    _: MaybeUninit<u64>,
    first: *const Segment,
    end: *const Segment,
) {
    // SAFETY: the caller guarantees the array, and that its segments are readable.
    let segments = unsafe { between(first, end) };
    // SAFETY: the caller guarantees that `id` and the segments' sources are readable.
    unsafe { record_slowly(id, segments) };
}

/// Returns the segments from `first` to before `end`.
///
/// # Safety
/// `first..end` are elements of one array, which are readable as long as the result is used.
unsafe fn between<'a>(first: *const Segment, end: *const Segment) -> &'a [Segment] {
    // SAFETY: the caller guarantees that both point into one array, `end` not before `first`; segments are not
    // zero-sized.
    let count = unsafe { end.offset_from_unsigned(first) };
    // SAFETY: the caller guarantees that the segments are readable.
    unsafe { core::slice::from_raw_parts(first, count) }
}

/// Writes a record of a class with a plan into those sessions from slot `from` on whose rules accept it: into the one in
/// slot 0 by `again`, unless triggers wait for the class.
///
/// # Safety
/// The segments' sources are readable.
#[inline(always)]
unsafe fn record_by_plan(number: u32, from: usize, segments: &[Segment], again: impl Fn(&AtomicU32, Again)) {
    #[cfg(feature = "listen")]
    if crate::wake::is_wanted() {
        crate::listen::start_woken();
    }
    if thread::is_inside() {
        return;
    }
    // A thread that is not known yet becomes so, even if its events are never accepted.
    let is_new = !thread::has_sections();
    let may_restart = !is_new || thread::identify().owns_tls;
    let rseq = rseq().filter(|_| may_restart);
    let Some(using) = Using::begin(rseq) else { return };
    let Some(plan) = plan::find(number, &using) else { return };
    if is_new {
        // Direct sections write the thread's next records.
        let guards = plan.wanted.iter().filter_map(|wanted| in_slot_before_id(wanted.slot).and_then(Guard::enter));
        guards.for_each(|guard| guard.make_ready());
    }
    let mut writer = None;
    for Wanted { slot, id, tests } in plan.wanted.iter().filter(|wanted| wanted.slot >= from) {
        if let Some(tests) = tests {
            // SAFETY: the caller guarantees that the sources are readable.
            let event = unsafe { Event::new(segments) };
            let answer = tests.ask(&event, &using);
            if answer != Answer::Accepted {
                let reason = if answer == Answer::SampledOut { Reason::SampledOut } else { Reason::Rejected };
                count_unrecorded(*slot, reason, id, rseq, &using);
                continue;
            }
        }
        match (*slot, plan.marks, plan.again) {
            (0, 0, Some(functions)) => again(id, functions),
            // SAFETY: the caller guarantees that the sources are readable.
            _ => writer = unsafe { record_in_slot(*slot, id, segments) }.or(writer),
        }
    }
    if let (Some(writer), Some(function)) = (writer.filter(|_| plan.marks != 0), ON_MARKED.get()) {
        function(plan.marks, writer);
    }
}

/// Writes a record into the session in slot 0 unless something prevents it. All reasons against a direct section are
/// checked here: no session, a class without an id, a class with a plan, a thread that is not known or inside the tracer,
/// no rseq, a clock other than the timestamp counter, a page switch.
///
/// # Safety
/// `id` and the segments' sources are readable.
unsafe fn record_slowly(id: *const u32, segments: &[Segment]) {
    #[cfg(feature = "listen")]
    if crate::wake::is_wanted() {
        crate::listen::start_woken();
    }
    // SAFETY: the caller guarantees that `id` is readable; all access to ids is atomic.
    let id = unsafe { AtomicU32::from_ptr(id.cast_mut()) };
    let (_, number) = plan::split(id.load(Ordering::Relaxed));
    if plan::is_number(number) {
        // SAFETY: the caller guarantees that the segments' sources are readable.
        let again = |id: &AtomicU32, again: Again| unsafe { (again.segments)(id, segments) };
        // SAFETY: the caller guarantees that the segments' sources are readable.
        return unsafe { record_by_plan(number, 0, segments, again) };
    }
    // SAFETY: the caller guarantees that the segments' sources are readable.
    unsafe { record_in_slot(0, id, segments) };
}

/// Writes a record into the session in a slot. Returns the writer if the process is in a session there that is not over;
/// the record may be lost.
///
/// # Safety
/// The segments' sources are readable.
unsafe fn record_in_slot(slot: usize, id: &AtomicU32, segments: &[Segment]) -> Option<Writer> {
    // The memory may leave the address space and return meanwhile: a thread that finds neither state checks again.
    for _ in 0..FIND_ATTEMPTS_MAX {
        let attached = in_slot_before_id(slot);
        // Relaxed: the id is a number by itself, and the session was read before.
        let word = id.load(Ordering::Relaxed);
        // No class has this id: the owner had no ids left, the class has just left a session, or has a plan by now.
        if word > CLASS_ID_MAX.into() || thread::is_inside() {
            return None;
        }
        // From here on the memory is accessed outside critical sections, so unmapping must wait.
        match attached.and_then(Guard::enter) {
            Some(guard) => return record_in(guard, word as u16, segments),
            None if count_apart(slot, word as u16) => return None,
            None => {}
        }
    }
    None
}

/// Writes a record of a class with this id, with the session's tags. Returns the writer, unless the session is over.
fn record_in(guard: Guard, id: u16, segments: &[Segment]) -> Option<Writer> {
    if guard.has_tags() { record_tagged(guard, id, segments) } else { record_runs(guard, id, segments) }
}

/// Writes a record whose first run has the tags. It has a function of its own, because it needs more of the stack.
#[cold]
#[inline(never)]
fn record_tagged(guard: Guard, id: u16, segments: &[Segment]) -> Option<Writer> {
    let (tags, count) = guard.tags();
    let mut all = [Segment::EMPTY; 1 + SEGMENT_COUNT_MAX];
    let len = 1 + segments.len();
    all[0] = Segment::numbers(tags.as_ptr().cast(), TAG_SIZE_BYTES * count, TAG_SIZE_BYTES);
    all.get_mut(1..len)?.copy_from_slice(segments);
    record_runs(guard, id, &all[..len])
}

fn record_runs(guard: Guard, id: u16, segments: &[Segment]) -> Option<Writer> {
    guard.make_ready();
    let writer = thread::identify();
    let record = Record::new(id, writer.context, segments);
    // (P) pairs with (P').
    if guard.memory.header().stopped.0.load(Ordering::Acquire) != 0 {
        guard.leave();
        return None;
    }
    let attached: &'static Attached = guard.attached();
    match attached.rseq {
        Some(rseq) if writer.owns_tls => record_under_rseq(attached, rseq, &record),
        _ => record_claimed(attached, writer, &record),
    }
    Some(writer)
}

/// Whether a record with this time fits the current page of a stream.
fn fits(attached: &Attached, stream: u32, state: u64, size_bytes: usize, timestamp: u64) -> bool {
    let state = State::from_word(state);
    let control = attached.memory.stream(stream);
    // (C) pairs with (A): written before the state word that opens the page.
    let begin = control.begin_timestamp.load(Ordering::Acquire);
    // Direct sections check the expiry alone, which is slightly before the end of the span.
    let expiry = control.expiry.load(Ordering::Acquire);
    attached.memory.page(state.unit).is_some()
        && state.offset as usize + size_bytes + page::SLACK_BYTES <= attached.memory.geometry().page_size_bytes as usize
        && timestamp.wrapping_sub(begin) >> PACKET_SPAN_BITS == 0
        && timestamp >> 32 < expiry
}

/// Returns the form in which a record with this time is written to a stream.
fn form(attached: &Attached, control: &StreamControl, record: &Record<'_>, timestamp: u64) -> Form {
    // (Y) pairs with (Y').
    record.form(attached.record_kind, timestamp, control.epoch.load(Ordering::Acquire))
}

/// Whether a record is too big for any page. Whether it could be compact is not considered, because that is not
/// certain.
fn is_too_big(attached: &Attached, record: &Record<'_>) -> bool {
    let size_bytes = attached.record_kind.header_size_bytes_max() + record.fields_size_bytes;
    size_bytes > page::record_size_max_bytes(attached.memory.geometry().page_size_bytes as usize)
}

/// Means of changing a stream: under rseq on its CPU, or as its claimant.
#[derive(Debug, Clone, Copy)]
enum StreamAccess {
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        expect(dead_code, reason = "there are no critical sections")
    )]
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
            // SAFETY: `Memory` and `PlannedDriver` plan inside the mapping; streams of CPUs are written under rseq
            // only.
            StreamAccess::Rseq(rseq, cpu) => unsafe { rseq.commit(cpu, txn) },
            // SAFETY: `Memory` and `PlannedDriver` plan inside the mapping, and the stream is claimed.
            StreamAccess::Claim(_) => unsafe { apply_exclusive(txn) },
        }
    }

    /// Counts one lost event. Returns false if aborted, when nothing was counted.
    fn count(self, counter: &core::sync::atomic::AtomicU64) -> bool {
        match self {
            // SAFETY: a counter in this CPU's control block, which is written under rseq only.
            StreamAccess::Rseq(rseq, cpu) => unsafe { rseq.add(cpu, counter.as_ptr(), 1) },
            StreamAccess::Claim(_) => {
                counter.fetch_add(1, Ordering::Relaxed);
                true
            }
        }
    }
}

/// Result of an attempt to switch pages.
#[derive(Debug, PartialEq, Eq)]
enum Switch {
    /// Try again: there is a new page, another thread was switching, or the thread has moved to another CPU.
    Again,
    /// No page is free.
    NoPage,
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn record_under_rseq(attached: &'static Attached, rseq: Rseq, record: &Record<'_>) {
    for _ in 0..ATTEMPTS_MAX {
        // The thread is not registered, or the CPU was added after the session was sized.
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
        // (C) pairs with (A), the final store of the previous writer.
        let state = control.state.load(Ordering::Acquire);
        let timestamp = attached.now();
        let form = form(attached, control, record, timestamp);
        if fits(attached, cpu, state, record.size_bytes(form), timestamp) {
            // SAFETY: `site` describes the session, which the guard keeps mapped; the clock was read after the state
            // word.
            let written = unsafe { dormouse_relay::arch::rseq_write_at(site, record, form, state, timestamp) };
            if (written, form) == (WriteOutcome::Done, Form::Extended) {
                // The thread may be on another CPU by now: `begin_epoch` may be late.
                begin_epoch(control, timestamp);
            }
            match written {
                WriteOutcome::Done => return,
                WriteOutcome::Gone => {
                    count_apart(attached.slot, record.id);
                    return;
                }
                WriteOutcome::Aborted | WriteOutcome::Full => continue,
            }
        }
        if switch(attached, access, state) == Switch::NoPage && access.count(&control.records_lost_full.0) {
            return count_class(attached, access, record.id);
        }
    }
    record_claimed(attached, thread::identify(), record);
}

/// Maximum number of attempts to write under rseq. Only a debugger that steps through the critical section, or
/// corrupted memory, needs more; a traced program must continue in any case.
const ATTEMPTS_MAX: u32 = 1_000;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn record_under_rseq(attached: &'static Attached, _rseq: Rseq, record: &Record<'_>) {
    record_claimed(attached, thread::identify(), record);
}

/// Offset of the stream where threads without rseq begin to search: a hint that spreads threads over streams.
static CLAIM_HINT: AtomicU32 = AtomicU32::new(0);

/// Writes a record as the claimant of a stream that belongs to no CPU.
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
        // (H) Acquire pairs with (I) of the previous claimant: its stores to the stream happen before this thread's.
        if control.claim.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue;
        }
        write_claimed(attached, stream, record);
        // (I) Release pairs with (H). The exchange fails only if the session owner takes this process for dead.
        let _ = control.claim.compare_exchange(mine, 0, Ordering::Release, Ordering::Relaxed);
        return;
    }
    // Interrupted writers have claimed all streams. Any thread may add to these counters.
    CLAIM_HINT.fetch_add(1, Ordering::Relaxed);
    let stream = cpu_count + first % count;
    memory.use_stream(stream);
    memory.stream(stream).records_lost_full.0.fetch_add(1, Ordering::Relaxed);
    count_class(attached, StreamAccess::Claim(stream), record.id);
}

/// Counts a lost event for its class, after its stream has counted it.
#[cold]
fn count_class(attached: &Attached, access: StreamAccess, class_id: u16) {
    let memory = &attached.memory;
    let count_in = |access: StreamAccess| {
        let counts = &memory.stream(access.stream()).records_lost_by_class;
        counts.get(lost_class_index(class_id)).is_none_or(|counter| access.count(counter))
    };
    let Geometry { cpu_count, stream_count, .. } = *memory.geometry();
    // A thread that has moved to another CPU adds to a stream without CPU: a word of a CPU is changed in critical
    // sections of that CPU only.
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
            // SAFETY: the stream is claimed; the segments' sources are readable until the running call returns.
            match unsafe { write_exclusive(memory, stream, record, || timestamp) } {
                WriteOutcome::Full => {}
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

/// Closes the current page and opens the next one, then offers closed pages.
fn switch(attached: &Attached, access: StreamAccess, state: u64) -> Switch {
    let memory = &attached.memory;
    let stream = access.stream();
    let control = memory.stream(stream);
    let State { seq, unit: closing, .. } = State::from_word(state);
    let seq_next = seq.wrapping_add(1);
    // Another process may have opened it.
    attached.make_unit_ready(closing);
    // (C) pairs with (A): the final store that linked the page.
    let seen = control.spare.load(Ordering::Acquire);
    // If the stream has moved on since, the spare has another number, and replacing it would add a page that is never
    // used. As long as the stream has not moved on, it cannot do so without changing the spare, which is the guard
    // below. (C) pairs with (A), the final store of the thread that switched pages.
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

/// Draws a page; in overwrite mode by evicting the oldest one if necessary. Remembers a failed search until a page is
/// freed.
fn draw(attached: &Attached, stream: u32) -> Option<u32> {
    let memory = &attached.memory;
    let control = memory.stream(stream);
    // (J) Acquire pairs with the Release of a thread that frees a page: read before the search, so no freed page is
    // missed.
    let freed = memory.header().freed.0.load(Ordering::Acquire);
    let has_failed = control.search_failed_at.load(Ordering::Relaxed) == freed.wrapping_add(1);
    let search = || memory.draw(attached.process, stream, attached);
    if !has_failed {
        if let Some(unit) = search() {
            return Some(unit);
        }
        // Only writers of this stream read it, and the value of any of them will do.
        control.search_failed_at.store(freed.wrapping_add(1), Ordering::Relaxed);
    }
    if !memory.is_overwrite() {
        return None;
    }
    // Others may draw the page that this thread evicts, and a page that a snapshot holds or the budget has lost cannot
    // be drawn; the loop is bounded.
    let evicted = (0..memory.geometry().page_count.max(SEARCHES_MAX)).find_map(|attempt| {
        let evicted = memory.evict(stream)?;
        let drawn = memory.draw_page(attached.process, stream, evicted, attached);
        if attempt < SEARCHES_MAX { drawn.or_else(search) } else { drawn }
    });
    evicted.or_else(search)
}

/// Number of evictions whose page another thread has drawn, after which a writer stops searching all pages.
const SEARCHES_MAX: u32 = 32;

fn ring(attached: &Attached, stream: u32) -> Option<PlannedDriver> {
    let memory = &attached.memory;
    let published = memory.stream(stream).published.0.as_ptr();
    // SAFETY: the geometry places a ring of this size there. The session owner has initialised it, and it is accessed
    // by atomics only.
    unsafe { PlannedDriver::new(memory.ring(stream), memory.geometry().ring_size(), published) }.ok()
}

/// Puts every closed page that is not in the virtqueue yet into it, including pages that a killed writer has left. The
/// consumer looks by itself, because waking it would be a system call. Stops when the thread is moved to another CPU:
/// the next writer continues.
fn offer(attached: &Attached, access: StreamAccess) {
    let memory = &attached.memory;
    let stream = access.stream();
    let control = memory.stream(stream);
    let Some(driver) = ring(attached, stream) else { return };
    let published = &control.published.0;
    // (C) pairs with (A), the final store of the thread that wrote the descriptors.
    let mut next = published.load(Ordering::Acquire);
    for _ in 0..memory.geometry().ring_size() {
        // (C) pairs with (A): chain and header of every page that the state counts are written.
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
            // (C) pairs with (A), the final store of the thread that published.
            Commit::GuardChanged => next = published.load(Ordering::Acquire),
            Commit::Aborted => return,
        }
    }
    // Descriptors before the index. The index is computed from the shadow `published`, so a late writer never decreases
    // it.
    let _ = access.commit(&driver.plan_publish(next));
}
