//! Buffers in free lists, one for each CPU: the next thread on a CPU gets the buffer that was released there last, still
//! in its cache.
//!
//! ```text
//! cargo run --release --example buffers [THREADS]
//! ```
//!
//! It prints how many requests there were, and how few buffers they needed.

use core::alloc::Layout;
use core::mem::offset_of;
use core::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_percpu::{List, ListSlot, Node, Object, Pool, PoolOptions, Rseq, Words};

const REQUESTS: u64 = 100_000;

#[repr(C)]
struct Buffer {
    node: Node,
    bytes: [u8; 4000],
}

/// Data of each CPU.
#[repr(C)]
struct Cache {
    free_buffers: ListSlot,
    taken: u64,
    made: u64,
}

struct Buffers {
    pool: Pool,
    cache: Object,
    words: Words,
    rseq: Option<Rseq>,
}

impl Buffers {
    fn list(&self) -> List {
        // SAFETY: the object lives as long as the pool, and its slot is written only by lists.
        unsafe { List::of_object(self.pool.view(), self.cache, offset_of!(Cache, free_buffers)) }
    }

    fn count(&self, offset: usize) {
        // SAFETY: the object lives, and its counters are written only by these operations.
        let counted = unsafe { self.words.add(self.cache, offset, 1) };
        counted.expect("every thread is registered, and the pool has every CPU");
    }

    fn take(&self) -> NonNull<Buffer> {
        self.count(offset_of!(Cache, taken));
        self.list().pop(self.rseq).map(NonNull::cast).unwrap_or_else(|| {
            self.count(offset_of!(Cache, made));
            NonNull::from(Box::leak(Box::new(Buffer { node: Node::default(), bytes: [0; 4000] })))
        })
    }

    fn release(&self, buffer: NonNull<Buffer>) {
        // SAFETY: the buffer is this thread's, on no list, and stays allocated until the list is drained.
        unsafe { self.list().push(self.rseq, buffer.cast()) };
    }

    /// Returns the sum of a counter over all CPUs.
    fn sum(&self, offset: usize) -> u64 {
        let view = self.pool.view();
        let word = |cpu| {
            // SAFETY: the object lives, and the pool has the CPU.
            let copy = unsafe { view.address(self.cache, cpu) };
            // SAFETY: an aligned word of the object, to which all access is atomic.
            unsafe { AtomicU64::from_ptr(copy.wrapping_add(offset).cast()) }
        };
        (0..view.cpu_count()).map(|cpu| word(cpu).load(Ordering::Acquire)).sum()
    }
}

fn serve(buffers: &Buffers) {
    for request in 0..REQUESTS {
        let mut buffer = buffers.take();
        // SAFETY: the buffer is this thread's until it is released.
        unsafe { buffer.as_mut() }.bytes[(request % 4000) as usize] = request as u8;
        buffers.release(buffer);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(4), |text| text.parse::<u64>())?;
    let pool = Pool::new(&PoolOptions::default())?;
    let cache = pool.alloc(Layout::new::<Cache>())?;
    let words = Words::new(&pool);
    let buffers = Buffers { pool, cache, words, rseq: Rseq::detect() };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(|| serve(&buffers)))));
    let mut freed = 0;
    let free = |node: NonNull<Node>| {
        // SAFETY: a node is the first field of a buffer that `take` leaked, and it is on no list any more.
        drop(unsafe { Box::from_raw(node.cast::<Buffer>().as_ptr()) });
        freed += 1;
    };
    // SAFETY: no other thread uses the list any more.
    unsafe { buffers.list().drain(free) };
    let (taken, made) = (buffers.sum(offset_of!(Cache, taken)), buffers.sum(offset_of!(Cache, made)));
    println!("{taken} requests, {made} buffers, {freed} released");
    Ok(())
}
