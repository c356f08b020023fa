//! Lines as babeltrace2 prints them, made by several threads: one reads the events in their order and keeps them in blocks, others make
//! text of the blocks, and the first writes it in the order of the blocks.
//!
//! ```text
//!   events ─▶ block 0 ─▶ thread 0 ─▶ text 0 ─▶ sink       Blocks go to the threads in turn, so their texts come back in turn.
//!             block 1 ─▶ thread 1 ─▶ text 1
//!             block 2 ─▶ thread 0 …
//! ```

use std::num::NonZero;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use dormouse_ctf::stream::Block;
use dormouse_ctf::text::{Buffer, ClockFormat, Formatter};
use dormouse_reader::Events;

use super::printer::utc_offset;
use super::sink::Sink;

/// A block is full with so many events, or so many bytes of them: then handing it over costs little, and all blocks are in the caches.
const EVENTS_MAX: usize = 4096;
const BYTES_MAX: usize = 256 << 10;
/// Blocks that a thread has at a time, so that it need not wait for the next one.
const BLOCKS_EACH: usize = 2;
/// More than this are never busy: reading in order takes about half as long as making text.
const THREADS_MAX: usize = 4;

/// The threads, and the block that is being filled.
pub(super) struct Crew<'f> {
    hands: Vec<Hand<'f>>,
    job: Job<'f>,
    spare: Vec<Job<'f>>,
    /// Blocks that were handed over, and blocks of which the text came back.
    given: usize,
    taken: usize,
    /// Of the last event that was handed over.
    last_ns: Option<i64>,
}

struct Hand<'f> {
    to: SyncSender<Job<'f>>,
    from: Receiver<Job<'f>>,
}

/// A block and its text.
#[derive(Default)]
struct Job<'f> {
    block: Block<'f>,
    /// Of the event before.
    last_ns: Option<i64>,
    text: Buffer,
}

impl<'f> Crew<'f> {
    /// Starts the threads, which end when the crew is gone; `None` where one thread is all that can run.
    pub(super) fn start<'s>(scope: &'s Scope<'s, '_>, clock: ClockFormat) -> Option<Crew<'f>>
    where
        'f: 's,
    {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        let hand = |_| {
            let (to, jobs) = sync_channel::<Job<'f>>(BLOCKS_EACH);
            let (done, from) = sync_channel(BLOCKS_EACH);
            scope.spawn(move || {
                let mut formatter = Formatter::new(clock, utc_offset());
                for mut job in jobs {
                    job.text.clear();
                    formatter.block(&job.block, job.last_ns, &mut job.text);
                    if done.send(job).is_err() {
                        break;
                    }
                }
            });
            Hand { to, from }
        };
        let hands: Vec<_> = (0..count).filter(|_| count > 1).map(hand).collect();
        let is_there = !hands.is_empty();
        is_there.then(|| Crew { hands, job: Job::default(), spare: Vec::new(), given: 0, taken: 0, last_ns: None })
    }

    /// Takes the event that was read last.
    pub(super) fn take(&mut self, events: &Events<'f>, sink: &mut Sink<'_>) {
        events.keep(&mut self.job.block);
        if self.is_full() {
            self.hand_over(sink);
        }
    }

    /// Takes events up to the next notice, or to an event of the session owner. Those are next then. `done` is told the bytes of each block.
    pub(super) fn take_all(&mut self, events: &mut Events<'f>, sink: &mut Sink<'_>, mut done: impl FnMut(usize)) {
        while events.keep_next(&mut self.job.block) {
            if self.is_full() {
                done(self.job.block.size_bytes());
                self.hand_over(sink);
                if sink.is_over() {
                    break;
                }
            }
        }
    }

    fn is_full(&self) -> bool {
        self.job.block.len() >= EVENTS_MAX || self.job.block.size_bytes() >= BYTES_MAX
    }

    fn hand_over(&mut self, sink: &mut Sink<'_>) {
        if self.job.block.is_empty() {
            return;
        }
        if self.given - self.taken >= BLOCKS_EACH * self.hands.len() {
            self.write_next(sink);
        }
        let mut job = std::mem::replace(&mut self.job, self.spare.pop().unwrap_or_default());
        job.last_ns = self.last_ns;
        self.last_ns = job.block.last_ns().or(self.last_ns);
        // A thread is there as long as its sender.
        let _ = self.hands[self.given % self.hands.len()].to.send(job);
        self.given += 1;
    }

    fn write_next(&mut self, sink: &mut Sink<'_>) {
        if let Ok(mut job) = self.hands[self.taken % self.hands.len()].from.recv() {
            sink.write(job.text.as_bytes());
            job.block.clear();
            self.spare.push(job);
        }
        self.taken += 1;
    }

    /// Writes all that has been taken.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        self.hand_over(sink);
        while self.taken < self.given {
            self.write_next(sink);
        }
    }
}
