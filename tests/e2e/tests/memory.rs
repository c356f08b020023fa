//! Rooms use memory that `backing` gives them. If all of it is present, none of their accesses faults: not for the
//! first object, nor the first word, nor the first page. There is only one test here: a page fault of another test's
//! thread would not count for this one, but a fork would cause faults.
#![cfg(target_os = "linux")]

use std::sync::atomic::AtomicU64;

use dormouse_backing::{Huge, MemoryOptions, PrivatePool, check_backed_raw};
use dormouse_percpu::{Pool, PoolOptions, Region, Words};
use dormouse_relay_chain::{Chain, Link, PageBudget};

/// Returns the number of page faults of this thread so far.
fn faults() -> i64 {
    // SAFETY: all zeroes is a valid `rusage`, which is plain data.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` has room for the answer (getrusage(2)).
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
    usage.ru_minflt + usage.ru_majflt
}

const STRIDE_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 4096;
const PAGES: usize = 512;

/// Makes, increments and frees objects of each CPU in given memory. Returns the number of faults.
fn objects(memory: &PrivatePool, options: &PoolOptions) -> i64 {
    // SAFETY: the region is the pool's memory, which outlives this function and which no other code uses meanwhile.
    let region = unsafe { Region::new(memory.base(), memory.size_bytes()) };
    let pool = Pool::in_region(region, options).unwrap();
    let words = Words::new(&pool);
    // Pre-allocates the list, and the object pool's own bookkeeping, which is not in the region.
    let mut made = Vec::with_capacity(1_000);
    (0..1_000).for_each(|_| made.push(pool.alloc_for::<AtomicU64>().unwrap()));
    // SAFETY: each object is live, and no other code has it any more.
    made.drain(..).for_each(|object| unsafe { pool.free(object) }.unwrap());
    let before = faults();
    (0..1_000).for_each(|_| made.push(pool.alloc_for::<AtomicU64>().unwrap()));
    for object in &made {
        // SAFETY: the object is live and has room for a word, which no other code writes.
        unsafe { words.add(*object, 0, 1) }.unwrap();
    }
    // SAFETY: each object is live, and no other code has it any more.
    made.drain(..).for_each(|object| unsafe { pool.free(object) }.unwrap());
    faults() - before
}

/// Opens, fills and grows a chain of pages in given memory. Returns the number of faults.
fn pages(memory: &PrivatePool, links: &mut [Link]) -> i64 {
    // SAFETY: the region is the pool's memory, which no other code uses meanwhile.
    let region = unsafe { std::slice::from_raw_parts_mut(memory.base(), PAGES * PAGE_BYTES) };
    let budget = PageBudget::new(region, PAGE_BYTES, links).unwrap();
    let before = faults();
    let mut chain = Chain::new(&budget, PAGES / 2, 0).unwrap();
    chain.grow(PAGES / 2).unwrap();
    for offset in (0..chain.size_bytes()).step_by(64) {
        chain.write(offset, &offset.to_le_bytes()).unwrap();
    }
    faults() - before
}

#[test]
fn rooms_in_given_memory_never_fault() {
    let options = PoolOptions { stride_bytes: STRIDE_BYTES, ..PoolOptions::default() };
    let size_bytes = options.cpu_count as usize * STRIDE_BYTES;
    let mut links: Vec<Link> = (0..PAGES).map(|_| Link::default()).collect();
    for huge in [Huge::Never, Huge::Prefer] {
        let memory = PrivatePool::new(size_bytes, MemoryOptions::new().huge(huge).guard(true)).unwrap();
        let region = PrivatePool::new(PAGES * PAGE_BYTES, MemoryOptions::new().huge(huge)).unwrap();
        assert_eq!(check_backed_raw(memory.base(), size_bytes), Ok(()));
        // The first run makes the code present.
        objects(&memory, &options);
        pages(&region, &mut links);
        assert_eq!((objects(&memory, &options), pages(&region, &mut links)), (0, 0), "{huge:?}");
    }
    // Checks that faults would be noticed.
    let lazy = MemoryOptions::new().prefault(false).huge(Huge::Never);
    let memory = PrivatePool::new(PAGES * PAGE_BYTES, lazy).unwrap();
    assert_eq!(pages(&memory, &mut links), PAGES as i64);
}
