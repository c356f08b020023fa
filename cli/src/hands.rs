//! Threads that each do a part of some work, whose results come back in the order of the parts.
//!
//! ```text
//!   job 0 ─▶ thread 0 ─▶ done      Jobs go to the threads in turn, so they come back in turn.
//!   job 1 ─▶ thread 1 ─▶ done
//!   job 2 ─▶ thread 0 …
//! ```

use std::num::NonZero;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

/// More than this are never busy: reading in order takes about half as long as making text.
const THREADS_MAX: usize = 4;

/// The threads.
pub(crate) struct Hands<J> {
    hands: Vec<Hand<J>>,
    jobs_each: usize,
    spare: Vec<J>,
    /// Jobs that were handed over, and jobs that came back.
    given: usize,
    taken: usize,
}

struct Hand<J> {
    to: SyncSender<J>,
    from: Receiver<J>,
}

impl<J: Send + Default> Hands<J> {
    /// Starts the threads, which end when this is gone; `None` where one thread is all that can run. Each has so many jobs at a time, so that it need not
    /// wait for the next one.
    /// `prepare` is called here for each, and what it gives in the thread, for what does the work.
    pub(crate) fn start<'s, P, W>(
        scope: &'s Scope<'s, '_>,
        jobs_each: usize,
        prepare: impl Fn() -> P,
    ) -> Option<Hands<J>>
    where
        J: 's,
        P: FnOnce() -> W + Send + 's,
        W: FnMut(&mut J),
    {
        let count = std::thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        let hand = |_| {
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
            Hand { to, from }
        };
        let hands: Vec<_> = (0..count).filter(|_| count > 1).map(hand).collect();
        let is_there = !hands.is_empty();
        is_there.then(|| Hands { hands, jobs_each, spare: Vec::new(), given: 0, taken: 0 })
    }

    /// Hands a job over, and gives an empty one for it. `done` is shown the jobs that come back, and empties them.
    pub(crate) fn give(&mut self, job: J, done: &mut impl FnMut(&mut J)) -> J {
        if self.given - self.taken >= self.jobs_each * self.hands.len() {
            self.take_back(done);
        }
        // A thread is there as long as its sender.
        let _ = self.hands[self.given % self.hands.len()].to.send(job);
        self.given += 1;
        self.spare.pop().unwrap_or_default()
    }

    fn take_back(&mut self, done: &mut impl FnMut(&mut J)) {
        if let Ok(mut job) = self.hands[self.taken % self.hands.len()].from.recv() {
            done(&mut job);
            self.spare.push(job);
        }
        self.taken += 1;
    }

    /// Waits for all jobs.
    pub(crate) fn finish(&mut self, done: &mut impl FnMut(&mut J)) {
        while self.taken < self.given {
            self.take_back(done);
        }
    }
}
