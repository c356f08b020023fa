//! Memory that several processes see, at one address or several, and the effects of fork.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use dormouse_percpu::{Attached, Pool, PoolOptions, Region};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{addresses, bytes, free, in_child, layout, os_page_bytes};

fn size_bytes() -> usize {
    12 * os_page_bytes()
}

fn options() -> PoolOptions {
    let stride_bytes = 4 * os_page_bytes();
    PoolOptions { cpu_count: 3, stride_bytes, limit_bytes: usize::MAX, is_robust: true, is_lazy: false }
}

/// One piece of memory, mapped twice.
struct Shared([*mut u8; 2]);

impl Shared {
    fn new() -> Shared {
        let file = memfd_create(c"pool", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, size_bytes() as u64).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Shared([(); 2].map(|()| {
            // SAFETY: a new mapping of a file of this length.
            unsafe { mmap(std::ptr::null_mut(), size_bytes(), access, MapFlags::SHARED, &file, 0) }.unwrap().cast()
        }))
    }

    fn region(&self, mapping: usize) -> Region {
        // SAFETY: mapped until the end of the test. The two mappings' bytes are accessed one after the other, by one
        // thread or through the copies of one object.
        unsafe { Region::new(self.0[mapping], size_bytes()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for base in self.0 {
            // SAFETY: the pools over it have been dropped.
            unsafe { munmap(base.cast(), size_bytes()) }.unwrap();
        }
    }
}

#[test]
fn another_process_finds_objects_by_offset() {
    let shared = Shared::new();
    let pool = Pool::in_region(shared.region(0), &options()).unwrap();
    let attached = Attached::new(shared.region(1), &options()).unwrap();
    for round in 1..100u8 {
        let size = usize::from(round) * 5;
        let object = pool.alloc(layout(size, 8)).unwrap();
        let offset = pool.offset_of(object).unwrap();
        assert_eq!(pool.object_at(offset), Some(object));
        assert_eq!(pool.object_at(offset + 8), None);
        assert_eq!(pool.object_at(offset + size_bytes()), None);
        let there = attached.object_at(offset).unwrap();
        assert_eq!(attached.object_at(size_bytes()), None);
        for (cpu, copy) in addresses(&pool, object).into_iter().enumerate() {
            // SAFETY: the object lives, in the region that both have mapped.
            let other = unsafe { attached.view().address(there, cpu as u32) };
            assert_eq!(other.addr() - shared.0[1].addr(), copy.addr() - shared.0[0].addr());
            bytes(copy, size).fill(round + cpu as u8);
            assert!(bytes(other, size).iter().all(|byte| *byte == round + cpu as u8));
            bytes(other, size).fill(!round);
            assert!(bytes(copy, size).iter().all(|byte| *byte == !round));
        }
        free(&pool, object).unwrap();
        assert_eq!(pool.object_at(offset), None);
        assert_eq!(pool.offset_of(object), None);
    }
    assert!(Attached::new(shared.region(1), &PoolOptions { cpu_count: 4, ..options() }).is_err());
}

#[test]
fn a_forked_child_shares_a_region() {
    let shared = Shared::new();
    let pool = Pool::in_region(shared.region(0), &options()).unwrap();
    let object = pool.alloc(layout(100, 8)).unwrap();
    let at = addresses(&pool, object);
    let is_well = in_child(|| {
        at.iter().enumerate().for_each(|(cpu, copy)| bytes(*copy, 100).fill(cpu as u8 + 1));
        at == addresses(&pool, object)
    });
    assert!(is_well);
    for (cpu, copy) in at.into_iter().enumerate() {
        assert!(bytes(copy, 100).iter().all(|byte| *byte == cpu as u8 + 1));
    }
    free(&pool, object).unwrap();
}

/// Other threads allocate all the time; the child's pool is consistent, and separate from the parent's.
#[test]
fn a_forked_child_has_a_private_pool_of_its_own() {
    let pool = Pool::new(&PoolOptions { stride_bytes: 64 * os_page_bytes(), ..options() }).unwrap();
    let kept = pool.alloc(layout(64, 8)).unwrap();
    let copies = addresses(&pool, kept);
    bytes(copies[1], 64).fill(7);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let object = pool.alloc(layout(200, 8)).unwrap();
                    free(&pool, object).unwrap();
                }
            });
        }
        for _ in 0..20 {
            let child = pool.hold(crate::fork).unwrap();
            let is_well = crate::child_or_wait(child, || {
                bytes(copies[1], 64).iter().all(|byte| *byte == 7) && {
                    bytes(copies[1], 64).fill(9);
                    let objects: Vec<_> = (0..3).map(|_| pool.alloc(layout(200, 8))).collect();
                    objects.into_iter().all(|object| object.is_ok_and(|object| free(&pool, object).is_ok()))
                        && free(&pool, kept).is_ok()
                        && pool.audit().is_ok()
                }
            });
            assert!(is_well);
            assert!(bytes(copies[1], 64).iter().all(|byte| *byte == 7), "a child's write");
        }
        is_over.store(true, Relaxed);
    });
    assert_eq!(free(&pool, kept), Ok(()));
    assert_eq!(pool.audit(), Ok(()));
}
