//! A map from addresses to chunks that is searched without a lock while chunks are added.
//!
//! ```text
//!   address >> shift ──hash──▶ │ … │ chunk │ chunk │ null │ …       open addressing; a slot changes once, from null to a chunk
//! ```
//!
//! A chunk is aligned to the smallest power of two that is not below its size, so all its addresses have one hash key.
//! The pool's lock serialises inserts; lookups need no lock:
//!
//! ```text
//!   insert: write the chunk's description; *slot = chunk (release)
//!   find:   chunk = *slot (acquire); null → none; read the chunk's description
//! ```
//!
//! Chunks are never removed, so a chunk that was found stays valid as long as the pool.

use core::sync::atomic::{AtomicPtr, Ordering};

/// A word that is set once. The model checker has a type of its own for it.
pub(crate) trait ChunkSlot<T> {
    fn load(&self, ordering: Ordering) -> *mut T;
    fn store(&self, chunk: *mut T, ordering: Ordering);
}

impl<T> ChunkSlot<T> for AtomicPtr<T> {
    #[inline]
    fn load(&self, ordering: Ordering) -> *mut T {
        AtomicPtr::load(self, ordering)
    }

    #[inline]
    fn store(&self, chunk: *mut T, ordering: Ordering) {
        AtomicPtr::store(self, chunk, ordering);
    }
}

/// The error of an insert when all slots are taken.
#[derive(Debug)]
pub(crate) struct DirectoryFull;

/// Returns the slots for `hash_key` in the order in which they are tried. `len` is a power of two.
fn probes(hash_key: usize, len: usize) -> impl Iterator<Item = usize> {
    // Fibonacci hashing: neighbouring chunks get slots that are far apart.
    let hash = (hash_key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = (hash >> 32) as usize;
    (0..len).map(move |step| (first + step) & (len - 1))
}

/// Publishes `chunk` under `hash_key`. The caller ensures that no other insert runs.
pub(crate) fn insert<T, S: ChunkSlot<T>>(slots: &[S], hash_key: usize, chunk: *mut T) -> Result<(), DirectoryFull> {
    // Relaxed: the thread that filled a slot held the lock before the caller, and the pointer is not followed here.
    let slot = probes(hash_key, slots.len())
        .find(|slot| slots[*slot].load(Ordering::Relaxed).is_null())
        .ok_or(DirectoryFull)?;
    // (C2) pairs with (C1).
    slots[slot].store(chunk, Ordering::Release);
    Ok(())
}

/// Returns the chunk under `hash_key` for which `is_it` is true. Wait-free: it takes at most as many steps as there are
/// slots.
pub(crate) fn find<T, S: ChunkSlot<T>>(slots: &[S], hash_key: usize, is_it: impl Fn(*mut T) -> bool) -> Option<*mut T> {
    for slot in probes(hash_key, slots.len()) {
        // (C1) pairs with (C2): the chunk's description is visible.
        let chunk = slots[slot].load(Ordering::Acquire);
        if chunk.is_null() {
            return None;
        }
        if is_it(chunk) {
            return Some(chunk);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_chunks_are_found_until_all_slots_are_taken() {
        let slots: Vec<AtomicPtr<usize>> = (0..8).map(|_| AtomicPtr::default()).collect();
        let mut chunks: Vec<usize> = (0..8).map(|chunk| chunk * 3).collect();
        let addresses: Vec<*mut usize> = chunks.iter_mut().map(|chunk| &raw mut *chunk).collect();
        for (count, chunk) in addresses.iter().enumerate() {
            insert(&slots, count * 3, *chunk).unwrap();
            for hash_key in 0..30 {
                // SAFETY: addresses of elements of `chunks`, which lives longer.
                let found = find(&slots, hash_key, |chunk| unsafe { *chunk } == hash_key);
                assert_eq!(found, (hash_key % 3 == 0 && hash_key / 3 <= count).then(|| addresses[hash_key / 3]));
            }
        }
        assert!(insert(&slots, 1, addresses[0]).is_err());
    }
}

/// The publication of a chunk, in a model checker.
#[cfg(test)]
#[cfg(target_pointer_width = "64")]
mod model {
    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
    use loom::thread;

    use super::*;

    /// A chunk whose description loom watches: a read that is not ordered after the write fails.
    struct Chunk(UnsafeCell<usize>);

    impl Chunk {
        fn hash_key(&self) -> usize {
            // SAFETY: the read is ordered after the write if the directory is correct; loom checks that.
            self.0.with(|hash_key| unsafe { *hash_key })
        }
    }

    impl ChunkSlot<Chunk> for AtomicPtr<Chunk> {
        fn load(&self, ordering: Ordering) -> *mut Chunk {
            AtomicPtr::load(self, ordering)
        }

        fn store(&self, chunk: *mut Chunk, ordering: Ordering) {
            AtomicPtr::store(self, chunk, ordering);
        }
    }

    /// Two slots, so that the probes of both chunks collide.
    struct Growing {
        slots: [AtomicPtr<Chunk>; 2],
        /// Key of a chunk from which a program passes an object to another thread, with or without ordering.
        handed: AtomicUsize,
    }

    impl Growing {
        fn new() -> Arc<Growing> {
            let slot = || AtomicPtr::new(core::ptr::null_mut());
            Arc::new(Growing { slots: [slot(), slot()], handed: AtomicUsize::new(0) })
        }

        fn grow(&self, hash_key: usize) {
            let chunk = Box::into_raw(Box::new(Chunk(UnsafeCell::new(0))));
            // SAFETY: no other thread knows the chunk.
            let description = unsafe { &(*chunk).0 };
            // SAFETY: the chunk was just made and no other thread knows it, so this is the only access.
            description.with_mut(|word| unsafe { *word = hash_key });
            insert(&self.slots, hash_key, chunk).unwrap();
        }

        fn find(&self, hash_key: usize) -> Option<usize> {
            // SAFETY: chunks live until `free`.
            let is_it = |chunk: *mut Chunk| unsafe { &*chunk }.hash_key() == hash_key;
            // SAFETY: chunks are freed only by `free`, when no thread uses the directory any more.
            find(&self.slots, hash_key, is_it).map(|chunk| unsafe { &*chunk }.hash_key())
        }

        fn free(&self) {
            for slot in &self.slots {
                let chunk = slot.load(Ordering::Acquire);
                if !chunk.is_null() {
                    // SAFETY: the pointer is from `Box::into_raw`, and the other threads have ended.
                    drop(unsafe { Box::from_raw(chunk) });
                }
            }
        }
    }

    #[test]
    fn a_chunk_is_found_completely_or_not_at_all() {
        loom::model(|| {
            let growing = Growing::new();
            let reader = {
                let growing = Arc::clone(&growing);
                thread::spawn(move || {
                    for hash_key in [2, 1] {
                        assert!(matches!(growing.find(hash_key), None | Some(_)));
                    }
                    // The load has no ordering: the chunk may not be found yet, but if it is, it is complete.
                    let hash_key = growing.handed.load(Ordering::Relaxed);
                    if hash_key != 0 {
                        assert!(growing.find(hash_key).is_none_or(|found| found == hash_key));
                    }
                })
            };
            growing.grow(1);
            growing.handed.store(1, Ordering::Relaxed);
            growing.grow(2);
            reader.join().unwrap();
            assert_eq!((growing.find(1), growing.find(2), growing.find(3)), (Some(1), Some(2), None));
            growing.free();
        });
    }

    #[test]
    fn an_object_that_was_handed_over_in_order_has_a_chunk() {
        loom::model(|| {
            let growing = Growing::new();
            let readers = [(); 2].map(|()| {
                let growing = Arc::clone(&growing);
                thread::spawn(move || {
                    let hash_key = growing.handed.load(Ordering::Acquire);
                    if hash_key != 0 {
                        assert_eq!(growing.find(hash_key), Some(hash_key));
                    }
                })
            });
            for hash_key in [1, 2] {
                growing.grow(hash_key);
                growing.handed.store(hash_key, Ordering::Release);
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            growing.free();
        });
    }

    #[test]
    fn growth_from_two_threads_under_the_lock_loses_nothing() {
        loom::model(|| {
            let growing = Growing::new();
            let lock = Arc::new(loom::sync::Mutex::new(()));
            let other = {
                let (growing, lock) = (Arc::clone(&growing), Arc::clone(&lock));
                thread::spawn(move || {
                    let guard = lock.lock().unwrap();
                    growing.grow(1);
                    drop(guard);
                    assert_eq!(growing.find(1), Some(1));
                })
            };
            let guard = lock.lock().unwrap();
            growing.grow(2);
            drop(guard);
            assert_eq!(growing.find(2), Some(2));
            other.join().unwrap();
            assert_eq!((growing.find(1), growing.find(2)), (Some(1), Some(2)));
            growing.free();
        });
    }
}
