//! Formats events by several threads. One thread reads the events in order and gathers them in blocks, the threads of an
//! [`OrderedPool`] format the blocks, and the first thread writes the texts in the order of the blocks.

use std::thread::Scope;

use dormouse_ctf::stream::Block;

use crate::{OrderedPool, Reading};

/// Number of events at which a block is full. Handing over a block of this size costs little, and all blocks fit into
/// the caches.
const EVENTS_MAX: usize = 4096;
/// Number of bytes of events at which a block is full.
const BYTES_MAX: usize = 256 << 10;
/// Blocks queued for each thread, so that neither it nor the reading thread waits for the other: a sleeping thread is
/// woken late, above all in a virtual machine. `dormouse view` takes 1.29 s for 28 million events with 2 blocks, and
/// 1.19 s with 8 (two CPUs, medians of eight runs, 27 November 2026).
const BLOCKS_EACH: usize = 8;

/// The threads that format, and the block that is being filled. `T`: a block's text.
pub struct ParallelFormatter<'f, T> {
    pool: OrderedPool<Job<'f, T>>,
    job: Job<'f, T>,
    /// Time of the last event that was handed over, in nanoseconds.
    last_ns: Option<i64>,
}

/// A block and its text.
#[derive(Default)]
struct Job<'f, T> {
    block: Block<'f>,
    /// Time of the event before the block, in nanoseconds.
    last_ns: Option<i64>,
    text: T,
}

impl<'f, T: Default + Send> ParallelFormatter<'f, T> {
    /// Starts the threads, which end when the formatter is dropped; `None` if only one thread can run at a time.
    ///
    /// `prepare` is called in each thread. It returns the function that replaces a text by that of a block, given the
    /// time of the event before the block in nanoseconds.
    pub fn start<'s, F>(
        scope: &'s Scope<'s, '_>,
        prepare: impl Fn() -> F + Clone + Send + 's,
    ) -> Option<ParallelFormatter<'f, T>>
    where
        'f: 's,
        T: 's,
        F: FnMut(&Block<'f>, Option<i64>, &mut T),
    {
        let pool = OrderedPool::start(scope, BLOCKS_EACH, || {
            let prepare = prepare.clone();
            move || {
                let mut format = prepare();
                move |job: &mut Job<'f, T>| format(&job.block, job.last_ns, &mut job.text)
            }
        });
        Some(ParallelFormatter { pool: pool?, job: Job::default(), last_ns: None })
    }

    /// Adds the event that was read last. Calls `write` with texts that are complete.
    pub fn take(&mut self, reading: &Reading<'f>, write: impl FnMut(&T)) {
        reading.keep(&mut self.job.block);
        if self.is_full() {
            self.hand_over(write);
        }
    }

    /// Adds events until the block is full, and returns true: then call [`ParallelFormatter::hand_over`]. Returns false
    /// at a notice or an event of the session owner, which is then read next. Adds no event unless all are selected.
    pub fn fill(&mut self, reading: &mut Reading<'f>) -> bool {
        while reading.keep_next(&mut self.job.block) {
            if self.is_full() {
                return true;
            }
        }
        false
    }

    fn is_full(&self) -> bool {
        self.job.block.len() >= EVENTS_MAX || self.job.block.size_bytes() >= BYTES_MAX
    }

    /// Hands the block to a thread, and calls `write` with texts that are complete.
    pub fn hand_over(&mut self, mut write: impl FnMut(&T)) {
        if self.job.block.is_empty() {
            return;
        }
        let mut job = std::mem::take(&mut self.job);
        job.last_ns = self.last_ns;
        self.last_ns = job.block.last_ns().or(self.last_ns);
        self.job = self.pool.give(job, &mut |job| complete(job, &mut write));
    }

    /// Waits for the texts of all events that were added, and calls `write` with each.
    pub fn finish(&mut self, mut write: impl FnMut(&T)) {
        self.hand_over(&mut write);
        self.pool.finish(&mut |job| complete(job, &mut write));
    }
}

fn complete<T>(job: &mut Job<'_, T>, write: &mut impl FnMut(&T)) {
    write(&job.text);
    job.block.clear();
}
