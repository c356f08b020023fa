//! Engine `queues`: other means to carry buffers from one thread to another and back, for the experiment `vring`.
//!
//! # Configuration
//! ```text
//!   rtrb          RingBuffer of the crate rtrb, element by element             one thread at each end
//!   array-queue   ArrayQueue of the crate crossbeam-queue                      any number
//!   std-mpsc      sync_channel of the standard library, never blocking         any number of senders
//!   index-pair    entries and an index of each side, as in io_uring; a side    one at each end
//!                 stores its index once for a batch, and reads the other's when its copy says that nothing is left
//! ```
//! Each has a queue for either direction, with as many elements as our rings have entries. The elements that come back
//! are those that were sent, so these queues need no tokens, no list of free descriptors, and no checks: both ends
//! trust each other.
//!
//! # Counts
//! See [`dormouse_lab_harness::ring`].

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;
use dormouse_lab_harness::ring::{self, DeviceEnd, DriverEnd, Kind, LEN, Ring, SIZE};
use dormouse_lab_harness::{Case, Engine};
use dormouse_lab_peer::version;
use rtrb::{Consumer, Producer, RingBuffer};

/// A buffer, with the content of a descriptor.
#[derive(Debug, Clone, Copy)]
struct Buffer {
    addr: u64,
    len: u32,
}

/// The sending end of a queue.
trait Put: Send {
    /// Puts a buffer into the queue. Returns false if there is no room.
    fn put(&mut self, buffer: Buffer) -> bool;
    /// Publishes the buffers that were put, if that was not done yet.
    fn publish(&mut self) {}
}

/// The receiving end of a queue.
trait Get: Send {
    fn get(&mut self) -> Option<Buffer>;
    /// Releases the entries that were taken, if that was not done yet.
    fn release(&mut self) {}
}

impl Put for Producer<Buffer> {
    #[inline(always)]
    fn put(&mut self, buffer: Buffer) -> bool {
        self.push(buffer).is_ok()
    }
}

impl Get for Consumer<Buffer> {
    #[inline(always)]
    fn get(&mut self) -> Option<Buffer> {
        self.pop().ok()
    }
}

impl Put for Arc<ArrayQueue<Buffer>> {
    #[inline(always)]
    fn put(&mut self, buffer: Buffer) -> bool {
        self.push(buffer).is_ok()
    }
}

impl Get for Arc<ArrayQueue<Buffer>> {
    #[inline(always)]
    fn get(&mut self) -> Option<Buffer> {
        self.pop()
    }
}

impl Put for SyncSender<Buffer> {
    #[inline(always)]
    fn put(&mut self, buffer: Buffer) -> bool {
        self.try_send(buffer).is_ok()
    }
}

impl Get for Receiver<Buffer> {
    #[inline(always)]
    fn get(&mut self) -> Option<Buffer> {
        self.try_recv().ok()
    }
}

/// An index on a cache line of its own.
#[repr(align(128))]
struct Index(AtomicU32);

/// Entries and two indexes, which are never reduced modulo the size.
struct Pair {
    head: Index,
    tail: Index,
    entries: Box<[[AtomicU64; 2]]>,
}

impl Pair {
    fn make() -> (Giver, Taker) {
        let entries = (0..SIZE).map(|_| Default::default()).collect();
        let pair = Arc::new(Pair { head: Index(AtomicU32::new(0)), tail: Index(AtomicU32::new(0)), entries });
        (Giver { pair: pair.clone(), tail: 0, head_seen: 0 }, Taker { pair, head: 0, tail_seen: 0 })
    }

    #[inline(always)]
    fn entry(&self, index: u32) -> &[AtomicU64; 2] {
        &self.entries[index as usize % usize::from(SIZE)]
    }
}

/// The sending end of an index pair.
struct Giver {
    pair: Arc<Pair>,
    tail: u32,
    head_seen: u32,
}

impl Put for Giver {
    #[inline(always)]
    fn put(&mut self, buffer: Buffer) -> bool {
        if self.tail.wrapping_sub(self.head_seen) == u32::from(SIZE) {
            // (B) pairs with (A): the receiver has read the entry.
            self.head_seen = self.pair.head.0.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head_seen) == u32::from(SIZE) {
                return false;
            }
        }
        let [addr, len] = self.pair.entry(self.tail);
        addr.store(buffer.addr, Ordering::Relaxed);
        len.store(buffer.len.into(), Ordering::Relaxed);
        self.tail = self.tail.wrapping_add(1);
        true
    }

    #[inline(always)]
    fn publish(&mut self) {
        // (C) pairs with (D): publishes the entries.
        self.pair.tail.0.store(self.tail, Ordering::Release);
    }
}

/// The receiving end of an index pair.
struct Taker {
    pair: Arc<Pair>,
    head: u32,
    tail_seen: u32,
}

impl Get for Taker {
    #[inline(always)]
    fn get(&mut self) -> Option<Buffer> {
        if self.head == self.tail_seen {
            // (D) pairs with (C): the entries are visible.
            self.tail_seen = self.pair.tail.0.load(Ordering::Acquire);
            if self.head == self.tail_seen {
                return None;
            }
        }
        let [addr, len] = self.pair.entry(self.head);
        let buffer = Buffer { addr: addr.load(Ordering::Relaxed), len: len.load(Ordering::Relaxed) as u32 };
        self.head = self.head.wrapping_add(1);
        Some(buffer)
    }

    #[inline(always)]
    fn release(&mut self) {
        // (A) pairs with (B): the entries have been read.
        self.pair.head.0.store(self.head, Ordering::Release);
    }
}

/// One side: a queue to put into, and a queue to take from.
struct Side<I, F> {
    into: I,
    from: F,
    in_flight: u64,
}

impl<I, F> Side<I, F> {
    fn new(into: I, from: F) -> Side<I, F> {
        Side { into, from, in_flight: 0 }
    }
}

impl<I: Put, F: Get> DriverEnd for Side<I, F> {
    #[inline(always)]
    fn give(&mut self, number: u64) -> bool {
        let is_given = self.into.put(Buffer { addr: number, len: LEN });
        self.in_flight += u64::from(is_given);
        is_given
    }

    #[inline(always)]
    fn give_last(&mut self, number: u64) -> bool {
        let is_given = self.give(number);
        self.into.publish();
        is_given
    }

    #[inline(always)]
    fn take(&mut self) -> Option<u64> {
        let buffer = self.from.get();
        if buffer.is_some() {
            self.in_flight -= 1;
        } else {
            self.from.release();
        }
        buffer.map(|buffer| buffer.addr)
    }

    #[inline(always)]
    fn has_room(&self, count: u64) -> bool {
        self.in_flight + count <= SIZE.into()
    }
}

impl<I: Put, F: Get> DeviceEnd for Side<I, F> {
    #[inline(always)]
    fn turn(&mut self) -> Option<u64> {
        let buffer = self.from.get()?;
        // There is always room, because no more buffers come than were sent.
        self.into.put(buffer).then_some(buffer.addr)
    }

    #[inline(always)]
    fn end(&mut self) {
        self.from.release();
        self.into.publish();
    }
}

/// Defines a ring that is made of two queues.
macro_rules! kind {
    ($kind:ident, $into:ty, $from:ty, $make:expr) => {
        struct $kind;

        impl $kind {
            fn make() -> Ring<Side<$into, $from>, Side<$into, $from>> {
                let [(there, at_device), (back, at_driver)] = [(); 2].map(|()| $make);
                Ring::new(Side::new(there, at_driver), Side::new(back, at_device))
            }
        }

        impl Kind for $kind {
            type Driver = Side<$into, $from>;
            type Device = Side<$into, $from>;

            fn cell() -> &'static OnceLock<Ring<Side<$into, $from>, Side<$into, $from>>> {
                static CELL: OnceLock<Ring<Side<$into, $from>, Side<$into, $from>>> = OnceLock::new();
                &CELL
            }
        }
    };
}

kind!(Rtrb, Producer<Buffer>, Consumer<Buffer>, RingBuffer::new(SIZE.into()));
kind!(Array, Arc<ArrayQueue<Buffer>>, Arc<ArrayQueue<Buffer>>, {
    let queue = Arc::new(ArrayQueue::new(SIZE.into()));
    (queue.clone(), queue)
});
kind!(StdMpsc, SyncSender<Buffer>, Receiver<Buffer>, sync_channel(SIZE.into()));
kind!(IndexPair, Giver, Taker, Pair::make());

fn prepare() -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    ring::enter::<Rtrb>(Rtrb::make(), "rtrb", &mut cases)?;
    ring::enter::<Array>(Array::make(), "array-queue", &mut cases)?;
    ring::enter::<StdMpsc>(StdMpsc::make(), "std-mpsc", &mut cases)?;
    ring::enter::<IndexPair>(IndexPair::make(), "index-pair", &mut cases)?;
    Ok(cases)
}

fn main() -> ExitCode {
    match prepare() {
        Ok(cases) => dormouse_lab_harness::main(&Engine {
            name: "queues",
            version: format!("rtrb {}, crossbeam-queue {}", version("rtrb"), version("crossbeam-queue")),
            cases,
            arrived: Some(ring::verify),
        }),
        Err(error) => {
            eprintln!("queues: {error}");
            ExitCode::FAILURE
        }
    }
}
