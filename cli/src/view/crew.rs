//! Lines in the format of babeltrace2, made by several threads. One thread reads the events in order and gathers them
//! in blocks, worker threads ([`Hands`]) format the blocks, and the first thread writes the text in the order of the
//! blocks.

use std::thread::Scope;

use dormouse_ctf::stream::Block;
use dormouse_print::{Buffer, ClockFormat, Formatter};
use dormouse_reader::Reading;

use super::printer::utc_offset;
use super::sink::Sink;
use crate::hands::Hands;

/// Number of events at which a block is full; `BYTES_MAX`: number of their bytes. Handing over a block of this size
/// costs little, and all blocks fit into the caches.
const EVENTS_MAX: usize = 4096;
const BYTES_MAX: usize = 256 << 10;
/// Blocks queued for each thread, so that neither it nor the reading thread waits for the other: a sleeping thread is
/// woken late, above all in a virtual machine. `dormouse view` takes 1.29 s for 28 million events with 2 blocks, and
/// 1.19 s with 8 (two CPUs, medians of eight runs, 27 November 2026).
const BLOCKS_EACH: usize = 8;

/// The worker threads, and the block that is being filled.
pub(super) struct Crew<'f> {
    hands: Hands<Job<'f>>,
    job: Job<'f>,
    /// Time of the last event that was handed over, in nanoseconds.
    last_ns: Option<i64>,
}

/// A block and its text.
#[derive(Default)]
struct Job<'f> {
    block: Block<'f>,
    /// Time of the event before the block, in nanoseconds.
    last_ns: Option<i64>,
    text: Buffer,
}

fn write(job: &mut Job<'_>, sink: &mut Sink<'_>) {
    sink.write(job.text.as_bytes());
    job.block.clear();
}

impl<'f> Crew<'f> {
    /// Starts the threads, which end when the crew is dropped; `None` if only one thread can run at a time.
    pub(super) fn start<'s>(scope: &'s Scope<'s, '_>, clock: ClockFormat) -> Option<Crew<'f>>
    where
        'f: 's,
    {
        let prepare = move || {
            move || {
                let mut formatter = Formatter::new(clock, utc_offset());
                move |job: &mut Job<'f>| {
                    job.text.clear();
                    formatter.block(&job.block, job.last_ns, &mut job.text);
                }
            }
        };
        let hands = Hands::start(scope, BLOCKS_EACH, prepare)?;
        Some(Crew { hands, job: Job::default(), last_ns: None })
    }

    /// Adds the event that was read last.
    pub(super) fn take(&mut self, reading: &Reading<'f>, sink: &mut Sink<'_>) {
        reading.keep(&mut self.job.block);
        if self.is_full() {
            self.hand_over(sink);
        }
    }

    /// Adds events up to the next notice or event of the session owner, which is then read next. Adds none unless all
    /// events are wanted. `done` is called for each block.
    pub(super) fn take_all(
        &mut self,
        reading: &mut Reading<'f>,
        sink: &mut Sink<'_>,
        mut done: impl FnMut(&Reading<'f>),
    ) {
        while reading.keep_next(&mut self.job.block) {
            if self.is_full() {
                done(reading);
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
        let mut job = std::mem::take(&mut self.job);
        job.last_ns = self.last_ns;
        self.last_ns = job.block.last_ns().or(self.last_ns);
        self.job = self.hands.give(job, &mut |job| write(job, sink));
    }

    /// Writes all events that were added.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        self.hand_over(sink);
        self.hands.finish(&mut |job| write(job, sink));
    }
}
