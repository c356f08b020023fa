//! Worker threads that share a sequence of jobs. Results come back in the order of the jobs.
//!
//! ```text
//!   job 0 ─▶ thread 0 ─▶ done      Jobs go to the threads in turn, so they come back in turn.
//!   job 1 ─▶ thread 1 ─▶ done
//!   job 2 ─▶ thread 0 …
//! ```

use std::num::NonZero;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

/// Maximum number of threads. Further threads would be idle: reading in order takes about half as long as formatting text.
const THREADS_MAX: usize = 4;

/// Worker threads and their queues of jobs.
pub struct OrderedPool<J> {
    workers: Vec<Worker<J>>,
    jobs_each: usize,
    spare: Vec<J>,
    /// Number of jobs that were handed to threads.
    given: usize,
    /// Number of jobs that were taken back.
    taken: usize,
}

/// Queues of one thread.
struct Worker<J> {
    to: SyncSender<J>,
    from: Receiver<J>,
}

impl<J: Send + Default> OrderedPool<J> {
    /// Starts the threads, which end when the result is dropped; `None` if only one thread can run at a time. Each
    /// thread has up to `jobs_each` jobs queued, so that it need not wait for the next one.
    ///
    /// `prepare` is called for each thread by the caller. Its result is called in the thread, and returns the function
    /// that does the work.
    pub fn start<'s, P, W>(
        scope: &'s Scope<'s, '_>,
        jobs_each: usize,
        prepare: impl Fn() -> P,
    ) -> Option<OrderedPool<J>>
    where
        J: 's,
        P: FnOnce() -> W + Send + 's,
        W: FnMut(&mut J),
    {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        let worker = |_| {
            let (to, jobs) = sync_channel::<J>(jobs_each);
            let (done, from) = sync_channel(jobs_each);
            let prepared = prepare();
            scope.spawn(move || {
                let mut work = prepared();
                for mut job in jobs {
                    work(&mut job);
                    if done.send(job).is_err() {
                        break;
                    }
                }
            });
            Worker { to, from }
        };
        let workers: Vec<_> = (0..count).filter(|_| count > 1).map(worker).collect();
        let has_workers = !workers.is_empty();
        has_workers.then(|| OrderedPool { workers, jobs_each, spare: Vec::new(), given: 0, taken: 0 })
    }

    /// Hands a job to a thread, and returns an empty one. `done` is called with jobs that come back, and empties them.
    pub fn give(&mut self, job: J, done: &mut impl FnMut(&mut J)) -> J {
        if self.given - self.taken >= self.jobs_each * self.workers.len() {
            self.take_back(done);
        }
        // Sending cannot fail: a thread runs as long as its sender exists.
        let _ = self.workers[self.given % self.workers.len()].to.send(job);
        self.given += 1;
        self.spare.pop().unwrap_or_default()
    }

    fn take_back(&mut self, done: &mut impl FnMut(&mut J)) {
        if let Ok(mut job) = self.workers[self.taken % self.workers.len()].from.recv() {
            done(&mut job);
            self.spare.push(job);
        }
        self.taken += 1;
    }

    /// Waits for all jobs, and calls `done` with each.
    pub fn finish(&mut self, done: &mut impl FnMut(&mut J)) {
        while self.taken < self.given {
            self.take_back(done);
        }
    }
}
