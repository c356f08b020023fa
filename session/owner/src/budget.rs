//! The budget: which parts of a session's memory are there, and how many pages may be drawn.
//!
//! The memory file has room for all streams that there may ever be and for all pages that the budget may grow to, and holes where nobody
//! has written. What is filled from the beginning are the pages of the budget and what the processors that are online write to.
//! A budget that shrinks gives its last pages back, as soon as nobody needs them.
//!
//! While snapshots are taken, a flight recorder has up to twice as many pages: those that are being read are held, and writers go on with the
//! others. The second half goes when nobody has taken one for a while.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dormouse_abi::session::{Geometry, HUGE_PAGE_SIZE_BYTES, STREAM_STRIDE_BYTES};
use dormouse_abi::wire::Message;
use dormouse_backing::{BackingError, Pool};
use dormouse_relay::Memory;
use dormouse_vring::split::PlannedDriver;

use crate::program::ask;
use crate::session::{BUDGET_BYTES_MIN, Cpus, Shared};

/// Streams' memory that is filled from the beginning, at least.
const STREAMS_BYTES_MIN: usize = 1 << 20;

/// How long pages for snapshots stay after the last one.
const ROOM_STAYS: Duration = Duration::from_secs(10);

/// What changes of a session's budget. Whoever changes it also has [`Shared::snapshots`], which comes first.
#[derive(Debug)]
pub(crate) struct Budget {
    state: Mutex<State>,
    /// Whether there are pages that are to be given back, now or later.
    is_shrinking: AtomicBool,
    /// What was in huge pages when the session began: bytes from the start of the memory, whole huge pages.
    huge: Range<usize>,
}

#[derive(Debug)]
struct State {
    /// Pages of the budget.
    page_count: u32,
    /// Until when there are more, for snapshots.
    room_until: Option<Instant>,
}

/// Why a budget stays as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BudgetError {
    #[error("a budget of {0} bytes is too small; this session needs at least {1}")]
    TooSmall(u64, u64),
    #[error(
        "a budget of {0} bytes is more than the {1} that this session was made for; record with a larger --budget-max"
    )]
    TooLarge(u64, u64),
    #[error(transparent)]
    Backing(#[from] BackingError),
}

fn page_range(geometry: &Geometry, pages: Range<u32>) -> Range<usize> {
    let offset = |index: u32| geometry.pages_offset() + index as usize * geometry.page_size_bytes as usize;
    offset(pages.start)..offset(pages.end)
}

/// Where the memory of pages ends that are to be there up to `end`: with the huge page that the last of them begins, if little of it is
/// missing. Those beyond the budget are not drawn.
fn filled_up(geometry: &Geometry, end: usize) -> usize {
    let whole = end.next_multiple_of(HUGE_PAGE_SIZE_BYTES);
    let is_aligned = geometry.pages_offset().is_multiple_of(HUGE_PAGE_SIZE_BYTES);
    if is_aligned && whole <= geometry.size_bytes() && whole - end <= STREAMS_BYTES_MIN { whole } else { end }
}

/// Pages of a stream that nobody needs any more.
fn used(memory: &Memory, stream: u32) -> u64 {
    let control = memory.stream(stream);
    if memory.is_overwrite() {
        // (E') pairs with (E).
        return control.reclaimed.load(Ordering::Acquire);
    }
    let published = control.published.0.as_ptr();
    // SAFETY: the geometry places a ring of this size there; what it holds is only read, by atomics.
    let driver = unsafe { PlannedDriver::new(memory.ring(stream), memory.geometry().ring_size(), published) };
    driver.map_or(0, |driver| driver.used_count())
}

/// A session's memory, in bytes of whole pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetState {
    /// Bytes of a page.
    pub page_size_bytes: u32,
    /// The budget.
    pub bytes: u64,
    /// What it may grow to.
    pub bytes_max: u64,
    /// What there is beside the budget while snapshots are taken.
    pub room: u64,
    /// Pages that nobody holds.
    pub free: u64,
    /// Pages that are written to, or are about to be.
    pub drawn: u64,
    /// Pages that are closed: on their way to the trace, or retained.
    pub queued: u64,
    /// Pages that are no longer in the budget, and still in use.
    pub beyond: u64,
    /// Streams that were ever written to.
    pub streams: u32,
    /// Whether closed pages are retained.
    pub is_overwrite: bool,
}

/// Asks a session's owner for its budget, after it has set it to `bytes`, if any.
///
/// # Errors
/// One line.
pub fn ask_for_budget(session: &Path, bytes: Option<u64>) -> Result<BudgetState, String> {
    match ask(session, &Message::Budget { bytes: bytes.map_or(0, |bytes| bytes.max(1)) }, PATIENCE)? {
        Message::BudgetIs {
            page_size_bytes,
            bytes,
            bytes_max,
            room,
            free,
            drawn,
            queued,
            beyond,
            streams,
            is_overwrite,
        } => Ok(BudgetState {
            page_size_bytes,
            bytes,
            bytes_max,
            room,
            free,
            drawn,
            queued,
            beyond,
            streams,
            is_overwrite,
        }),
        Message::Error { text } => Err(text),
        _ => Err("the session owner answered something else; is it of the same version?".into()),
    }
}

/// How long the asker waits: memory has to be found, and a snapshot may be on its way to a disk.
const PATIENCE: Duration = Duration::from_secs(60);

impl Budget {
    /// Fills what is to be there before anybody joins.
    pub(crate) fn new(pool: &Pool, geometry: Geometry, page_limit: u32, cpus: &Cpus) -> Result<Budget, BackingError> {
        let mut huge = page_range(&geometry, 0..page_limit);
        let pages = page_range(&geometry, 0..page_limit);
        let streams_bytes_max = (pages.len() / 8).max(STREAMS_BYTES_MIN);
        let pages = pages.start..filled_up(&geometry, pages.end);
        if geometry.pages_offset() <= streams_bytes_max {
            pool.prefault(0..pages.end)?;
            // Programs that come and go, as those of a build do, would fault at every 4 KiB that they write.
            huge = 0..pool.use_huge_pages(0..pages.end);
        } else {
            pool.prefault(0..geometry.streams_offset())?;
            let count_max = streams_bytes_max / (STREAM_STRIDE_BYTES + geometry.ring_stride_bytes());
            for &cpu in cpus.online.iter().filter(|cpu| **cpu < geometry.cpu_count).take(count_max) {
                let control = geometry.streams_offset() + cpu as usize * STREAM_STRIDE_BYTES;
                let ring = geometry.rings_offset() + cpu as usize * geometry.ring_stride_bytes();
                pool.prefault(control..control + STREAM_STRIDE_BYTES)?;
                pool.prefault(ring..ring + geometry.ring_stride_bytes())?;
            }
            pool.prefault(pages.clone())?;
            huge.start = pages.start.next_multiple_of(HUGE_PAGE_SIZE_BYTES);
            huge.end = huge.start + pool.use_huge_pages(pages);
        }
        let state = State { page_count: page_limit, room_until: None };
        Ok(Budget { state: Mutex::new(state), is_shrinking: AtomicBool::new(false), huge })
    }

    /// Tells programs what of the memory they may take into their page tables at once.
    pub(crate) fn tell(&self, memory: &Memory) {
        let count = |bytes: usize| u32::try_from(bytes / HUGE_PAGE_SIZE_BYTES).unwrap_or(u32::MAX);
        // Relaxed: before anybody has the memory.
        memory.header().huge_begin.store(count(self.huge.start), Ordering::Relaxed);
        memory.header().huge_end.store(count(self.huge.end), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a snapshot: as many pages again as the budget has, or as many as there may be. Gives the number of pages that may be
    /// held; `None` where writers would be left with too few, because the budget may not grow, or the memory is not to be had.
    ///
    /// The caller has [`Shared::snapshots`].
    pub(crate) fn make_room(&self, shared: &Shared) -> Option<u32> {
        let memory = &shared.memory;
        let mut state = self.lock();
        let limit = state.page_count.saturating_mul(2).min(memory.geometry().page_count);
        // The current and the next page of each stream are out of the question.
        let in_use = 2 * memory.used_streams().count() as u32;
        if limit - state.page_count < state.page_count / 4 + in_use {
            return None;
        }
        if memory.page_limit() < limit {
            self.grow(shared, limit).ok()?;
        }
        state.room_until = Some(Instant::now() + ROOM_STAYS);
        self.is_shrinking.store(true, Ordering::Relaxed);
        Some(state.page_count)
    }

    fn grow(&self, shared: &Shared, limit: u32) -> Result<(), BackingError> {
        let fresh = page_range(shared.memory.geometry(), shared.memory.page_limit()..limit);
        shared.pool.prefault(fresh.clone())?;
        shared.pool.use_huge_pages(fresh);
        shared.memory.set_page_limit(limit);
        Ok(())
    }

    /// Gives pages back that are beyond the budget by now, if nobody takes a snapshot just now.
    pub(crate) fn go_on(&self, shared: &Shared) {
        if self.is_shrinking.load(Ordering::Relaxed)
            && let Ok(_turn) = shared.snapshots.try_lock()
        {
            let mut state = self.lock();
            if state.room_until.is_some_and(|until| Instant::now() < until) {
                return;
            }
            if state.room_until.take().is_some() {
                shared.memory.set_page_limit(state.page_count);
            }
            self.give_back(shared);
        }
    }

    /// The caller has the turn.
    fn give_back(&self, shared: &Shared) {
        let memory = &shared.memory;
        let mut rest = 0;
        // Nobody who joins from here on has what goes come back. (Relaxed: who joined just before takes memory that the next growth uses.)
        let stays = page_range(memory.geometry(), 0..memory.page_limit()).end / HUGE_PAGE_SIZE_BYTES;
        memory.header().huge_end.fetch_min(u32::try_from(stays).unwrap_or(u32::MAX), Ordering::Relaxed);
        for index in memory.page_limit()..memory.geometry().page_count {
            if memory.withhold(index, |stream| used(memory, stream)) || memory.is_overwrite() && memory.relocate(index)
            {
                // A page that the system does not take is out of the budget all the same.
                let _ = shared.pool.give_back(page_range(memory.geometry(), index..index + 1));
                // (D) of the relay's: the page is not drawn before it is free again, and that comes after this.
                memory.header().emptied.fetch_add(1, Ordering::Relaxed);
            }
        }
        for index in memory.page_limit()..memory.geometry().page_count {
            rest += u32::from(memory.owner_of(index) != Some(dormouse_abi::session::Owner::Withheld));
        }
        self.is_shrinking.store(rest > 0, Ordering::Relaxed);
    }

    /// Sets the budget. What it loses is given back as it becomes free.
    pub(crate) fn resize(&self, shared: &Shared, bytes: u64) -> Result<(), BudgetError> {
        let _turn = shared.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let memory = &shared.memory;
        let geometry = memory.geometry();
        let page_size_bytes = u64::from(geometry.page_size_bytes);
        // Half of it is anybody's.
        let least = BUDGET_BYTES_MIN.max(u64::from(memory.reserve_page_count()) * 2 * page_size_bytes);
        let most = u64::from(geometry.page_count) * page_size_bytes;
        if bytes < least {
            return Err(BudgetError::TooSmall(bytes, least));
        }
        if bytes > most {
            return Err(BudgetError::TooLarge(bytes, most));
        }
        let limit = (bytes / page_size_bytes) as u32;
        if limit >= memory.page_limit() {
            self.grow(shared, limit)?;
        } else {
            memory.set_page_limit(limit);
            self.give_back(shared);
        }
        *state = State { page_count: limit, room_until: None };
        Ok(())
    }

    /// What is where, for whoever asks.
    pub(crate) fn describe(&self, shared: &Shared) -> Message {
        let memory = &shared.memory;
        let page_count = self.lock().page_count;
        let census = memory.census(|stream| used(memory, stream));
        let bytes = |count: u32| u64::from(count) * u64::from(memory.geometry().page_size_bytes);
        Message::BudgetIs {
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
