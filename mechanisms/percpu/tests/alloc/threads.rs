//! Several threads at once.

use std::sync::mpsc;
use std::thread;

use dormouse_percpu::{Object, Pool, PoolOptions};

use crate::{addresses, bytes, free, layout, os_page_bytes};

const THREADS: usize = 4;
const ROUNDS: usize = 1500;

struct Parcel {
    object: Object,
    size: usize,
    fill: u8,
}

impl Parcel {
    fn fill(&self, pool: &Pool) {
        for copy in addresses(pool, self.object) {
            assert!(bytes(copy, self.size).iter().all(|byte| *byte == 0), "not zeroed");
            bytes(copy, self.size).fill(self.fill);
        }
    }

    fn open(self, pool: &Pool) {
        assert_eq!(pool.size_of(self.object), Some(self.size));
        for copy in addresses(pool, self.object) {
            assert!(bytes(copy, self.size).iter().all(|byte| *byte == self.fill), "somebody else's");
        }
        assert_eq!(free(pool, self.object), Ok(()));
    }
}

/// Each thread allocates, and passes half of its objects to the next thread, which looks them up, reads and frees them.
/// Meanwhile the pool grows.
#[test]
fn objects_travel_between_threads() {
    for is_robust in [false, true] {
        let stride_bytes = 2 * os_page_bytes();
        let options = PoolOptions { cpu_count: 2, stride_bytes, is_robust, is_lazy: true, ..PoolOptions::default() };
        let pool = Pool::new(&options).unwrap();
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<Parcel>()).unzip();
        thread::scope(|scope| {
            for (index, inbox) in receivers.into_iter().enumerate() {
                let next = senders[(index + 1) % THREADS].clone();
                let pool = &pool;
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    let mut random = index as u64 + 1;
                    for round in 0..ROUNDS {
                        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let size = (random >> 33) as usize % 300;
                        let object =
                            pool.alloc(layout(size, 1 << (random >> 61))).unwrap_or_else(|error| panic!("{error}"));
                        let parcel = Parcel { object, size, fill: (random >> 50) as u8 | 1 };
                        parcel.fill(pool);
                        if round % 2 == 0 {
                            next.send(parcel).unwrap()
                        } else {
                            mine.push(parcel)
                        }
                        if round % 5 > 2 {
                            mine.swap_remove((random >> 20) as usize % mine.len()).open(pool);
                        }
                        inbox.try_iter().for_each(|parcel| parcel.open(pool));
                    }
                    drop(next);
                    mine.into_iter().for_each(|parcel| parcel.open(pool));
                    inbox.into_iter().for_each(|parcel| parcel.open(pool));
                });
            }
            drop(senders);
        });
        let usage = pool.usage();
        assert_eq!((usage.object_count, usage.object_bytes, usage.withdrawn_bytes), (0, 0, 0));
        assert!(usage.chunk_count > 1);
        assert_eq!(pool.audit(), Ok(()));
        assert_eq!(pool.leaks().next(), None);
    }
}
