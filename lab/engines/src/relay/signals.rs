//! The length of searches while signals interrupt the writer of a list wherever it is, and their handler writes to the same list:
//! counted, not timed.
//!
//! ```text
//!   writer    reserves a record, writes its fields one by one, reads the record back
//!   handler   reserves 64 bytes behind everything that is reserved, writes them           another thread sends the signals
//! ```
//! The handler writes at most 20 times while a record is written, as the handler that is called after each field does.
//!
//! The writer cannot know which page was cached at the very moment when its search began, if a handler has run since it looked.
//! Then it counts from the page that it saw and from the handler's last page, and takes the longer way.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use dormouse_relay_chain::Chain;

use super::{Expected, FIELDS_MAX, Mix, NESTED_BYTES, PAGE_BYTES, SOURCE, Shape, Sink, WALKED_PAGES, list};

/// Number of signals that must arrive inside writes.
const INSIDE_WANTED: u64 = 300;
/// Time after which no more are waited for.
const TIME_MAX: Duration = Duration::from_secs(3);

/// A list, and what its writer and the handler on the same thread have counted.
struct Shared {
    chain: Chain<'static>,
    /// Number of bytes reserved so far, of all rounds through the list.
    reserved: AtomicUsize,
    /// Page that was last seen to be cached.
    cached: AtomicUsize,
    /// Page that was cached when the handler last returned.
    nested: AtomicUsize,
    entries_max: AtomicUsize,
    is_writing: AtomicBool,
    /// Number of times that the handler may still write before the writer's next record.
    left: AtomicUsize,
    /// Number of times that the handler has written, and that it has interrupted a write.
    runs: AtomicU64,
    inside: AtomicU64,
    refused: AtomicU64,
}

static SHARED: OnceLock<Shared> = OnceLock::new();

impl Shared {
    /// Returns the offset of `len` bytes that are in one piece.
    fn reserve(&self, len: usize) -> usize {
        loop {
            let at = self.reserved.fetch_add(len, Relaxed) % (WALKED_PAGES * PAGE_BYTES);
            if at + len <= WALKED_PAGES * PAGE_BYTES {
                return at;
            }
        }
    }

    /// Returns the number of the page that the chain has cached: the one seen last, or one near it.
    fn look(&self) -> usize {
        let last = self.cached.load(Relaxed);
        let is_cached = |page: &usize| self.chain.cached(page * PAGE_BYTES, 1).is_some();
        let page = (last..last + WALKED_PAGES).map(|page| page % WALKED_PAGES).find(is_cached).unwrap_or(last);
        self.cached.store(page, Relaxed);
        page
    }

    /// Counts the entries between the page `from` and each page of these bytes.
    fn count(&self, from: usize, offset: usize, len: usize) {
        let mut from = from;
        for page in offset / PAGE_BYTES..=(offset + len - 1) / PAGE_BYTES {
            let forward = (page + WALKED_PAGES - from) % WALKED_PAGES;
            self.entries_max.fetch_max(forward.min(WALKED_PAGES - forward), Relaxed);
            from = page;
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let (runs, before) = (self.runs.load(Relaxed), self.look());
        self.is_writing.store(true, Relaxed);
        // SAFETY: the bytes are readable, and these bytes of the list were reserved by the caller.
        let result = unsafe { self.chain.write_shared(offset, bytes.as_ptr(), bytes.len()) };
        self.is_writing.store(false, Relaxed);
        self.refused.fetch_add(u64::from(result.is_err()), Relaxed);
        self.count(before, offset, bytes.len());
        if self.runs.load(Relaxed) != runs {
            self.count(self.nested.load(Relaxed), offset, bytes.len());
        }
    }
}

/// Writes on the thread that it has interrupted.
extern "C" fn write_nested(_signal: libc::c_int) {
    let Some(shared) = SHARED.get() else { return };
    if shared.left.load(Relaxed) == 0 {
        return;
    }
    shared.left.fetch_sub(1, Relaxed);
    shared.inside.fetch_add(u64::from(shared.is_writing.load(Relaxed)), Relaxed);
    let (offset, is_writing) = (shared.reserve(NESTED_BYTES), shared.is_writing.load(Relaxed));
    shared.write(offset, &SOURCE.0[..NESTED_BYTES]);
    shared.nested.store(shared.look(), Relaxed);
    shared.is_writing.store(is_writing, Relaxed);
    shared.runs.fetch_add(1, Relaxed);
}

/// A sink that writes fields to the list.
struct Interrupted<'s> {
    shared: &'s Shared,
    offset: usize,
}

impl Sink for Interrupted<'_> {
    fn value<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes(&bytes);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.shared.write(self.offset, bytes);
        self.offset += bytes.len();
    }

    fn align(&mut self) {
        self.offset = self.offset.next_multiple_of(8);
    }
}

/// Writes records until enough signals have interrupted writes. Returns a text with the maximum number of entries that a write
/// has walked over, and with the number of those signals.
pub fn entries_walked_max() -> Result<String, String> {
    let shared = SHARED.get_or_init(|| Shared {
        chain: list(WALKED_PAGES * PAGE_BYTES, PAGE_BYTES).expect("memory for a list"),
        reserved: AtomicUsize::new(0),
        cached: AtomicUsize::new(0),
        nested: AtomicUsize::new(0),
        entries_max: AtomicUsize::new(0),
        is_writing: AtomicBool::new(false),
        left: AtomicUsize::new(0),
        runs: AtomicU64::new(0),
        inside: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    });
    // Not a real-time signal, of which many would be pending at a time.
    let signal = libc::SIGUSR2;
    // SAFETY: all zeroes is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = write_nested as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler uses atomics and writes to a list, which handlers may do.
    if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } != 0 {
        return Err(format!("no handler for signals: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: the call has no conditions.
    let writer = unsafe { libc::pthread_self() };
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Acquire) {
                // SAFETY: the thread waits for this one before it ends.
                unsafe { libc::pthread_kill(writer, signal) };
                std::thread::yield_now();
            }
        });
        let result = write_records(shared);
        has_ended.store(true, Release);
        result
    })?;
    let (entries, inside) = (shared.entries_max.load(Relaxed), shared.inside.load(Relaxed));
    Ok(format!("with signals: {entries}; signals inside writes: {inside}"))
}

fn write_records(shared: &Shared) -> Result<(), String> {
    let begin = Instant::now();
    let mut number = 0;
    while shared.inside.load(Relaxed) < INSIDE_WANTED && begin.elapsed() < TIME_MAX {
        shared.left.store(FIELDS_MAX, Relaxed);
        let offset = shared.reserve(Mix::<1>::LEN_MAX);
        let mut sink = Interrupted { shared, offset };
        Mix::<1>::write(&mut sink, number);
        let len = sink.offset - offset;
        let mut expected = Expected { bytes: vec![0; Mix::<1>::LEN_MAX], offset: 0 };
        Mix::<1>::write(&mut expected, number);
        let mut found = vec![0; len];
        // SAFETY: the target has this length, and these bytes of the list were reserved here.
        let read = unsafe { shared.chain.read_shared(offset, found.as_mut_ptr(), len) };
        if read.is_err() || shared.refused.load(Relaxed) > 0 || found != expected.bytes[..expected.offset] {
            return Err(format!("record {number} is not what was written, with signals"));
        }
        number += 1;
    }
    Ok(())
}
