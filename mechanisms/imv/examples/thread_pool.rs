//! A thread pool that profiles how long jobs wait. Whether it does is a static branch, and how many jobs are measured is
//! an immediate value; both change while its threads run: by the program itself, or, with the argument `--listen`, by an
//! operator with `dormouse imv`. (`thread_pool.c` is the same in C.)

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_imv::{StaticKey, disable, enable, imv, imv_read, static_branch, tunable};

/// Whether waiting times are measured.
static PROFILING: StaticKey = StaticKey::new();
imv! {
    /// One of so many jobs is measured.
    static SAMPLE_EVERY: u64 = 1;
}
tunable!(PROFILING, "pool.profiling", "whether waiting times are measured");
tunable!(SAMPLE_EVERY, "pool.sample_every", "one of so many jobs is measured", 1..=1000);

struct Job {
    number: u64,
    /// When it was queued, if it is measured.
    queued: Option<Instant>,
}

#[derive(Default)]
struct Pool {
    /// Jobs that wait; `None` ends a thread.
    queue: Mutex<VecDeque<Option<Job>>>,
    is_filled: Condvar,
    done: AtomicU64,
    /// Number of jobs that were measured, and the sum of their waiting times in nanoseconds.
    samples: AtomicU64,
    waited_ns: AtomicU64,
}

impl Pool {
    fn submit(&self, number: u64) {
        let mut queued = None;
        if static_branch!(PROFILING) && number.is_multiple_of(imv_read!(SAMPLE_EVERY)) {
            queued = Some(Instant::now());
        }
        self.push(Some(Job { number, queued }));
    }

    fn push(&self, job: Option<Job>) {
        self.queue.lock().unwrap().push_back(job);
        self.is_filled.notify_one();
    }

    fn work(&self) {
        while let Some(job) = self.take() {
            if static_branch!(PROFILING) {
                self.measure(&job);
            }
            std::hint::black_box(job.number);
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    fn take(&self) -> Option<Job> {
        let mut queue = self.queue.lock().unwrap();
        loop {
            match queue.pop_front() {
                Some(job) => return job,
                None => queue = self.is_filled.wait(queue).unwrap(),
            }
        }
    }

    #[cold]
    fn measure(&self, job: &Job) {
        if let Some(queued) = job.queued {
            self.waited_ns.fetch_add(queued.elapsed().as_nanos() as u64, Ordering::Relaxed);
            self.samples.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Jobs of a phase.
const JOBS: u64 = 8_000;

fn main() {
    const THREADS: usize = 3;
    let pool = Pool::default();
    thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(|| pool.work())));
        let phase = |name: &str| {
            let (done, samples) = (pool.done.load(Ordering::Acquire), pool.samples.load(Ordering::Relaxed));
            (0..JOBS).for_each(|number| pool.submit(number));
            while pool.done.load(Ordering::Acquire) < done + JOBS {
                thread::yield_now();
            }
            println!("{name}: {JOBS} jobs, {} measured", pool.samples.load(Ordering::Relaxed) - samples);
        };
        if std::env::args().nth(1).as_deref() == Some("--listen") {
            dormouse_imv_control::listen().expect("a thread and a socket");
            // Until the program is killed. Operators change key and value meanwhile.
            loop {
                phase("served");
                thread::sleep(Duration::from_millis(100));
            }
        }
        phase("off");
        enable(&PROFILING).expect("a change of a key");
        phase("every job");
        SAMPLE_EVERY.set(16).expect("a change of a value");
        phase("one of 16");
        disable(&PROFILING).expect("a change of a key");
        phase("off again");
        (0..THREADS).for_each(|_| pool.push(None));
    });
    let (samples, waited_ns) = (pool.samples.into_inner(), pool.waited_ns.into_inner());
    println!("mean waiting time: {} ns", waited_ns / samples);
}
