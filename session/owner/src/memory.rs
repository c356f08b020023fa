//! A session's memory: which parts of it are filled, and how many pages may be drawn.
//!
//! The memory file has room for the maximum number of streams and for all pages that the budget may grow to, with holes
//! where nothing was written. The pages of the budget and the memory of the streams of online CPUs are filled from the
//! beginning. A budget that shrinks returns its last pages as soon as they are free.
//!
//! The tables of events that rules leave out have memory once programs write them; in a file they are filled from the
//! beginning, because a full disk would end a program that writes into a hole.
//!
//! While snapshots are taken, a flight recorder has up to twice as many pages: those being read are held, and writers
//! continue with the others. The second half is returned some time after the last snapshot.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dormouse_abi::message::BudgetState;
use dormouse_abi::session::{Geometry, HUGE_UNIT_BYTES, Owner, STREAM_STRIDE_BYTES, SessionLayout};
use dormouse_backing::{BackingError, MemoryOptions, Pool, huge_page_size};
use dormouse_relay::{Memory, Setup};
use dormouse_vring::split::PlannedDriver;

use crate::error::Error;
use crate::fault::Guard;
use crate::ledger::Ledger;
use crate::options::{BUDGET_BYTES_MIN, Plan};

/// Minimum size of streams' memory that is filled from the beginning, in bytes.
const STREAMS_BYTES_MIN: usize = 1 << 20;

/// How long pages for snapshots are kept after the last one.
const ROOM_STAYS: Duration = Duration::from_secs(10);

/// A session's memory.
#[derive(Debug)]
pub(crate) struct SessionMemory {
    /// Guard of memory that is a file, which another process may truncate. Declared before the pool, so that it is
    /// dropped first.
    guard: Option<Guard>,
    /// Number of units that earlier owners have found to be gone.
    gone_before: u64,
    pool: Pool,
    view: Memory,
    /// Layout as the owner has created it.
    layout: SessionLayout,
    /// Held while a snapshot is taken, or pages are moved. Locked before `budget`.
    turn: Mutex<()>,
    /// Number of threads that wait for the turn.
    waiting: AtomicUsize,
    budget: Mutex<Budget>,
    /// Whether there are pages that must be returned, now or later.
    is_shrinking: AtomicBool,
    ledger: Arc<Ledger>,
}

#[derive(Debug)]
struct Budget {
    page_count: u32,
    /// Time until which there are more pages, for snapshots.
    room_until: Option<Instant>,
}

/// Returns zeroed memory of the plan's size: in the plan's file, or in one without a name, which ends with the last
/// process that maps it.
pub(crate) fn create_pool(plan: &Plan) -> Result<Pool, BackingError> {
    let size_bytes = plan.geometry.size_bytes();
    match &plan.options.buffers {
        Some(path) => Pool::on_file_system(path, size_bytes, page_range(&plan.geometry, 0..plan.page_count_limit).end),
        None => Pool::new("dormouse-session", size_bytes, MemoryOptions::new().prefault(false)),
    }
}

fn page_range(geometry: &Geometry, pages: Range<u32>) -> Range<usize> {
    let offset = |index: u32| geometry.pages_offset() + index as usize * geometry.page_size_bytes as usize;
    offset(pages.start)..offset(pages.end)
}

/// Returns the end of the memory for pages up to `end`: includes the huge page that the last of them begins, if little
/// of it is missing. Pages beyond the budget are not drawn.
fn filled_up(geometry: &Geometry, end: usize, huge_page: usize) -> usize {
    let whole = end.next_multiple_of(huge_page);
    let is_aligned = geometry.pages_offset().is_multiple_of(huge_page);
    if is_aligned && whole <= geometry.pages_end() && whole - end <= STREAMS_BYTES_MIN { whole } else { end }
}

/// Returns how many pages of a stream are no longer needed.
fn used(memory: &Memory, stream: u32) -> u64 {
    let control = memory.stream(stream);
    if memory.is_overwrite() {
        // (E') pairs with (E).
        return control.reclaimed.load(Ordering::Acquire);
    }
    let published = control.published.0.as_ptr();
    // SAFETY: the geometry places a ring of this size there, and it is mapped as long as the view; its contents are
    // only read, by atomics.
    let driver = unsafe { PlannedDriver::new(memory.ring(stream), memory.geometry().ring_size(), published) };
    driver.map_or(0, |driver| driver.used_count())
}

/// Fills the memory that must be present before the first program joins. Returns the part that is in huge pages then:
/// bytes from the start of the memory, in whole huge pages.
fn fill(pool: &Pool, plan: &Plan) -> Result<Range<usize>, BackingError> {
    let geometry = &plan.geometry;
    let pages = page_range(geometry, 0..plan.page_count_limit);
    let streams_bytes_max = (pages.len() / 8).max(STREAMS_BYTES_MIN);
    let pages = pages.start..filled_up(geometry, pages.end, huge_page_size());
    if geometry.pages_offset() <= streams_bytes_max {
        pool.prefault(0..pages.end)?;
        // Without huge pages, short-lived programs, such as those of a build, would fault at every 4 KiB that they
        // write.
        return Ok(0..pool.use_huge_pages(0..pages.end));
    }
    pool.prefault(0..geometry.streams_offset())?;
    let count_max = streams_bytes_max / (STREAM_STRIDE_BYTES + geometry.ring_stride_bytes());
    for &cpu in plan.options.cpus.online.iter().take(count_max) {
        let control = geometry.streams_offset() + cpu as usize * STREAM_STRIDE_BYTES;
        let ring = geometry.rings_offset() + cpu as usize * geometry.ring_stride_bytes();
        pool.prefault(control..control + STREAM_STRIDE_BYTES)?;
        pool.prefault(ring..ring + geometry.ring_stride_bytes())?;
    }
    pool.prefault(pages.clone())?;
    let begin = pages.start.next_multiple_of(huge_page_size());
    Ok(begin..begin + pool.use_huge_pages(pages))
}

/// Returns the initial settings of a session's memory.
pub(crate) fn setup(plan: &Plan, clock: u32, uuid: [u8; 16]) -> Setup<'_> {
    Setup {
        mode: plan.options.mode as u32,
        clock,
        uuid,
        kind: plan.options.context,
        tags: plan.options.tags,
        page_count_limit: plan.page_count_limit,
        kept_for: &plan.options.cpus.online,
        kept_each: plan.kept_each,
    }
}

impl SessionMemory {
    /// Lays out a session in a pool that [`create_pool`] has made with the same plan.
    pub(crate) fn new(pool: Pool, plan: &Plan, ledger: Arc<Ledger>) -> Result<SessionMemory, BackingError> {
        let guard = plan.options.buffers.is_some().then(|| Guard::new(pool.base(), plan.geometry.size_bytes()));
        let huge = fill(&pool, plan)?;
        if plan.options.buffers.is_some() {
            pool.prefault(plan.geometry.unrecorded_offset()..plan.geometry.unrecorded_end())?;
        }
        let SessionLayout { clock, uuid, .. } = ledger.layout();
        let setup = setup(plan, clock, uuid);
        // SAFETY: the memory belongs to this process alone until the server hands it out. It is mapped as long as the
        // pool, which is kept together with the view. The geometry is valid, and the setup refers to its pages and
        // streams.
        let view = unsafe { Memory::initialise(pool.base(), &plan.geometry, &setup) };
        let count = |units: usize| u32::try_from(units).unwrap_or(u32::MAX);
        // Programs may map this part into their page tables at once. (Relaxed: no other process has the memory yet.)
        view.header().huge_begin.store(count(huge.start.div_ceil(HUGE_UNIT_BYTES)), Ordering::Relaxed);
        view.header().huge_end.store(count(huge.end / HUGE_UNIT_BYTES), Ordering::Relaxed);
        view.header().is_dumped.store(plan.options.dump_buffers.into(), Ordering::Relaxed);
        if let Some(register) = view.register() {
            // They fit: `RuleSet::parse` has checked it.
            let _ = register.set_rules(plan.rules.rules(), plan.rules.text());
        }
        ledger.set_budget_page_count(plan.page_count_limit.into());
        Ok(SessionMemory::of(pool, guard, view, ledger))
    }

    /// Takes up the memory in `file` of a session that has begun, with the ledger's layout. `is_named`: other processes
    /// may truncate the file.
    pub(crate) fn take_up(file: OwnedFd, ledger: Arc<Ledger>, is_named: bool) -> Result<SessionMemory, Error> {
        let geometry = ledger.geometry().map_err(str::to_string)?;
        let pool = Pool::of_file(file, geometry.size_bytes()).map_err(|error| error.to_string())?;
        let guard = is_named.then(|| Guard::new(pool.base(), geometry.size_bytes()));
        // SAFETY: the memory is mapped as long as the pool, which is kept together with the view.
        let view = unsafe { Memory::with_layout(pool.base(), geometry.size_bytes(), &ledger.layout()) };
        let view = view.map_err(str::to_string)?;
        view.end_holds();
        let memory = SessionMemory::of(pool, guard, view, ledger);
        // An earlier owner may have been killed while there were more pages than the budget has, for a snapshot, or
        // while it returned some.
        memory.lock().room_until = Some(Instant::now() + ROOM_STAYS);
        memory.is_shrinking.store(true, Ordering::Relaxed);
        Ok(memory)
    }

    fn of(pool: Pool, guard: Option<Guard>, view: Memory, ledger: Arc<Ledger>) -> SessionMemory {
        let page_count = u32::try_from(ledger.budget_page_count()).unwrap_or(u32::MAX);
        SessionMemory {
            guard,
            gone_before: ledger.memory_gone(),
            pool,
            view,
            layout: ledger.layout(),
            turn: Mutex::new(()),
            waiting: AtomicUsize::new(0),
            budget: Mutex::new(Budget { page_count, room_until: None }),
            is_shrinking: AtomicBool::new(false),
            ledger,
        }
    }

    /// Returns only the memory's file.
    pub(crate) fn into_file(self) -> OwnedFd {
        self.pool.into_file()
    }

    /// Lays the memory out anew, empty, in a mode of [`dormouse_abi::session`]. No program may have it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn reset(&mut self, mode: u32) {
        let (geometry, view) = (*self.view.geometry(), self.view);
        let setup = Setup {
            mode,
            clock: view.clock(),
            uuid: view.uuid(),
            kind: view.record_kind(),
            tags: *view.tags(),
            page_count_limit: geometry.page_count,
            kept_for: &[],
            kept_each: 0,
        };
        // SAFETY: the pool has this length, and no other code reads it meanwhile.
        unsafe { self.pool.base().write_bytes(0, geometry.size_bytes()) };
        // SAFETY: the geometry is the same, and the memory was zeroed by the line before; the view is kept together
        // with the pool.
        self.view = unsafe { Memory::initialise(self.pool.base(), &geometry, &setup) };
        self.layout = self.view.header().layout();
    }

    /// Returns the view. It is mapped as long as `self` lives.
    pub(crate) fn view(&self) -> Memory {
        self.view
    }

    /// Whether the beginning of the memory, which must not change, is unchanged: joining programs rely on it.
    pub(crate) fn is_layout_intact(&self) -> bool {
        self.view.header().layout() == self.layout
    }

    /// Returns the number of units of 4 KiB that were found to be gone.
    pub(crate) fn gone(&self) -> u64 {
        self.gone_before.saturating_add(self.guard.as_ref().map_or(0, Guard::replaced))
    }

    /// Does periodic work.
    pub(crate) fn keep_up(&self) {
        self.ledger.set_memory_gone(self.gone());
        self.give_back_excess();
    }

    /// Returns the file that programs map.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.pool.file()
    }

    /// Waits for the turn to take a snapshot or to move pages.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        // Relaxed: a caller that waits for earlier requests has learned of them by other, synchronising ways.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        turn
    }

    /// Waits until all snapshots requested before are taken.
    pub(crate) fn wait_for_turns(&self) {
        while {
            drop(self.turn());
            self.waiting.load(Ordering::Relaxed) > 0
        } {}
    }

    fn lock(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a snapshot: doubles the budget's pages, or adds as many as possible. Returns the number of pages
    /// that may be held; `None` if writers would be left with too few, because the budget may not grow or the memory
    /// cannot be obtained.
    ///
    /// The caller must have the turn.
    pub(crate) fn make_room(&self) -> Option<u32> {
        let memory = &self.view;
        let mut budget = self.lock();
        let limit = budget.page_count.saturating_mul(2).min(memory.geometry().page_count);
        // The current and the next page of each stream cannot be used.
        let in_use = 2 * memory.used_streams().count() as u32;
        if limit - budget.page_count < budget.page_count / 4 + in_use {
            return None;
        }
        if memory.page_count_limit() < limit {
            self.grow(limit).ok()?;
        }
        budget.room_until = Some(Instant::now() + ROOM_STAYS);
        self.is_shrinking.store(true, Ordering::Relaxed);
        Some(budget.page_count)
    }

    fn grow(&self, limit: u32) -> Result<(), BackingError> {
        let fresh = page_range(self.view.geometry(), self.view.page_count_limit()..limit);
        self.pool.prefault(fresh.clone())?;
        self.pool.use_huge_pages(fresh);
        self.view.set_page_count_limit(limit);
        Ok(())
    }

    /// Returns pages that are beyond the budget by now, unless a snapshot is being taken.
    fn give_back_excess(&self) {
        if self.is_shrinking.load(Ordering::Relaxed)
            && let Ok(_turn) = self.turn.try_lock()
        {
            let mut budget = self.lock();
            if budget.room_until.is_some_and(|until| Instant::now() < until) {
                return;
            }
            if budget.room_until.take().is_some() {
                self.view.set_page_count_limit(budget.page_count);
            }
            self.give_back();
        }
    }

    /// Returns pages beyond the limit to the system. The caller must have the turn.
    fn give_back(&self) {
        let memory = &self.view;
        // A program that joins from now on does not map the returned memory again. (Relaxed: a program that joined just
        // before maps memory that the next growth uses.)
        let stays = page_range(memory.geometry(), 0..memory.page_count_limit()).end / HUGE_UNIT_BYTES;
        memory.header().huge_end.fetch_min(u32::try_from(stays).unwrap_or(u32::MAX), Ordering::Relaxed);
        for index in memory.page_count_limit()..memory.geometry().page_count {
            if memory.withhold(index, |stream| used(memory, stream)) || memory.is_overwrite() && memory.relocate(index)
            {
                // A page that the system does not take back is out of the budget nevertheless.
                let _ = self.pool.give_back(page_range(memory.geometry(), index..index + 1));
                // (D) of the relay: the page is not drawn before it is free again, which happens after this.
                memory.header().emptied.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut beyond = memory.page_count_limit()..memory.geometry().page_count;
        let is_shrinking = beyond.any(|index| memory.owner_of(index) != Some(Owner::Withheld));
        self.is_shrinking.store(is_shrinking, Ordering::Relaxed);
    }

    /// Sets the budget. Pages beyond it are returned as they become free.
    pub(crate) fn resize(&self, bytes: u64) -> Result<(), Error> {
        let _turn = self.turn();
        let mut budget = self.lock();
        let memory = &self.view;
        let geometry = memory.geometry();
        let page_size_bytes = u64::from(geometry.page_size_bytes);
        // Half of the budget must be available to all streams.
        let least = BUDGET_BYTES_MIN.max(u64::from(memory.kept_page_count()) * 2 * page_size_bytes);
        let most = u64::from(geometry.page_count) * page_size_bytes;
        if bytes < least {
            let text = format!("a budget of {bytes} bytes is too small; this session needs at least {least}");
            return Err(text.into());
        }
        if bytes > most {
            let text = format!(
                "a budget of {bytes} bytes is more than the {most} that this session was made for; record with a larger --budget-max"
            );
            return Err(text.into());
        }
        let limit = (bytes / page_size_bytes) as u32;
        if limit >= memory.page_count_limit() {
            self.grow(limit).map_err(|error| error.to_string())?;
        } else {
            memory.set_page_count_limit(limit);
            self.give_back();
        }
        self.ledger.set_budget_page_count(limit.into());
        *budget = Budget { page_count: limit, room_until: None };
        Ok(())
    }

    /// Returns the state of the budget at about this moment.
    pub(crate) fn describe(&self) -> BudgetState {
        let memory = &self.view;
        let page_count = self.lock().page_count;
        let census = memory.census(|stream| used(memory, stream));
        let bytes = |count: u32| u64::from(count) * u64::from(memory.geometry().page_size_bytes);
        BudgetState {
            page_size_bytes: memory.geometry().page_size_bytes,
            bytes: bytes(page_count),
            room: bytes(census.limit.saturating_sub(page_count)),
            bytes_max: bytes(memory.geometry().page_count),
            free: bytes(census.free),
            drawn: bytes(census.drawn),
            queued: bytes(census.queued),
            beyond: bytes(census.beyond),
            streams: memory.used_streams().count() as u32,
            is_overwrite: memory.is_overwrite(),
        }
    }
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use std::sync::atomic::Ordering;

    use dormouse_abi::record::RecordKind;
    use dormouse_abi::session::{MODE_OVERWRITE, Owner};

    use crate::first_touch::is_first_touched_by_this_program;
    use crate::fuzzing;
    use crate::testing::{EVERYTHING, GEOMETRY, Writer};

    #[test]
    fn a_page_that_is_moved_is_not_copied_by_libc() {
        let place = tempfile::tempdir().unwrap();
        let owner = fuzzing::Owner::new(&place.path().join("trace"), GEOMETRY, RecordKind::Ids);
        owner.reset(MODE_OVERWRITE);
        let memory = owner.memory();
        Writer::new(memory, 0).write(0, EVERYTHING);
        memory.set_page_count_limit(GEOMETRY.page_count / 2);
        let is_retained = |index: &u32| {
            let reclaimed = memory.stream(0).reclaimed.load(Ordering::Relaxed);
            matches!(memory.owner_of(*index), Some(Owner::Queued { seq, .. }) if seq >= reclaimed)
        };
        let index = (GEOMETRY.page_count / 2..GEOMETRY.page_count).find(is_retained).unwrap();
        let page = memory.page(GEOMETRY.unit_of_page(index)).unwrap();
        assert!(is_first_touched_by_this_program(page, || assert!(memory.relocate(index))));
    }
}
