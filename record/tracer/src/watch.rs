//! Events that triggers wait for: meaning of their marks, durations in threads, and the thread that requests snapshots.
//!
//! ```text
//!   event ─▶ direct section: the word is above CLASS_ID_MAX ─▶ slow path: written, like any other ─▶ met(marks)
//!                                                                  trigger fires: firings += 1, rings if it was 0
//!                                                                                    │ futex
//!   thread "dormouse-watch"  ◀──────────────────────────────────────────────────────┘
//!     asks the session's owner, waits until the snapshot is complete, and then for the trigger's rate limit
//! ```
//! A firing is counted until a request that reports it is sent, by the thread, or at the end of a program that ends by
//! `exit`, so that none is forgotten. Between sending and subtracting, a firing is both reported and counted. At that
//! point the program's end waits for the thread; otherwise it would report the firing again.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use dormouse_abi::trigger::{PATTERN_COUNT_MAX, Trigger};
use dormouse_listener::{is_last, spawn};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::snapshot::{PATIENCE, PreparedRequest, Snapshot};
use crate::thread::{self, Writer};
use crate::{clock, control, record};

/// A trigger, and the snapshot that it requests.
#[derive(Debug)]
struct Watch {
    trigger: Trigger,
    snapshot: Snapshot,
    /// Its first mark. A duration has two: the first for its end, the next for its begin, so that an event that is both
    /// ends one duration before it begins another.
    mark: usize,
}

/// Number of firings since the last request, by mark. A trigger that replaces another continues its count.
static FIRINGS: [AtomicU64; PATTERN_COUNT_MAX] = [const { AtomicU64::new(0) }; PATTERN_COUNT_MAX];

/// Triggers, by mark. Never freed, because a thread may be writing an event at any time.
static WATCHES: [AtomicPtr<Watch>; PATTERN_COUNT_MAX] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; PATTERN_COUNT_MAX];

/// Futex: incremented when a trigger fires that has not fired since its last request.
static BELL: AtomicU32 = AtomicU32::new(0);
static IS_ATTENDED: AtomicBool = AtomicBool::new(false);
/// Right to send requests, held by the thread or, at the end of the program, by the exiting thread, which does not give
/// it back.
static SENDING_RIGHT: SendingRight = SendingRight::new();
static EXIT_HANDLED: AtomicBool = AtomicBool::new(false);

fn watch(mark: usize) -> Option<&'static Watch> {
    let slot = WATCHES.get(mark)?;
    // (T) pairs with (T'). SAFETY: null, or never freed.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

/// Returns each trigger once.
fn watches() -> impl Iterator<Item = &'static Watch> {
    (0..PATTERN_COUNT_MAX).filter_map(|mark| watch(mark).filter(|watch| watch.mark == mark))
}

/// Requests snapshots when a trigger by event or duration fires.
///
/// # Errors
/// There is no room for the trigger's patterns.
pub(crate) fn add(trigger: Trigger, snapshot: &Snapshot) -> std::io::Result<()> {
    let _inside = thread::enter_tracer();
    let mut control = control::lock();
    let former = watches().find(|watch| watch.trigger == trigger);
    let mark_count = trigger.patterns().count();
    let mark =
        former.map_or_else(|| (0..PATTERN_COUNT_MAX).find(|mark| watch(*mark).is_none()), |watch| Some(watch.mark));
    let Some(mark) = mark.filter(|mark| mark + mark_count <= PATTERN_COUNT_MAX) else {
        return Err(std::io::Error::other(format!(
            "{trigger}: a program's triggers may have {PATTERN_COUNT_MAX} patterns of events in all"
        )));
    };
    // Leaked, because a thread may be writing an event for it at any time.
    let watch: &Watch = Box::leak(Box::new(Watch { trigger, snapshot: snapshot.clone(), mark }));
    let marks = mark..mark + mark_count;
    for slot in &WATCHES[marks.clone()] {
        // (T') pairs with (T): initialised before it is found. The former trigger is not freed.
        slot.store(core::ptr::from_ref(watch).cast_mut(), Ordering::Release);
    }
    record::on_marked(met);
    let patterns = marks.filter_map(|mark| Some((mark, watch.pattern(mark)?)));
    control.mark(patterns, attend);
    Ok(())
}

/// Processes an event of a class with these marks, after it was written.
///
/// Wait-free except for the kernel; async-signal-safe; preserves errno.
#[cold]
fn met(marks: u32, writer: Writer) {
    for mark in (0..PATTERN_COUNT_MAX).filter(|mark| marks >> mark & 1 != 0) {
        if let Some(watch) = watch(mark) {
            watch.met(mark, writer);
        }
    }
}

/// Returns the time in nanoseconds, never 0. Async-signal-safe; preserves errno.
fn now_ns() -> u64 {
    clock::monotonic_ns().max(1)
}

impl Watch {
    /// Returns the pattern of a mark.
    fn pattern(&self, mark: usize) -> Option<&str> {
        match &self.trigger {
            Trigger::Event(pattern) => Some(pattern),
            Trigger::Duration { begin, end, .. } => Some(if mark == self.mark { end } else { begin }),
            _ => None,
        }
    }

    fn met(&self, mark: usize, writer: Writer) {
        let Trigger::Duration { limit, .. } = self.trigger else { return self.fire() };
        // Durations have two marks each, so half the mark is unique. A child of vfork has no word of its own.
        let Some(begun_ns) = thread::begun_ns(self.mark / 2).filter(|_| writer.owns_tls) else { return };
        if mark != self.mark {
            return begun_ns.set(now_ns());
        }
        let begun = begun_ns.replace(0);
        if begun != 0 && u128::from(now_ns().saturating_sub(begun)) > limit.as_nanos() {
            self.fire();
        }
    }

    fn firings(&self) -> &'static AtomicU64 {
        &FIRINGS[self.mark]
    }

    fn fire(&self) {
        if self.firings().fetch_add(1, Ordering::Relaxed) == 0 {
            // (Z) pairs with (Z'): a thread that sees the bell changed sees the firing.
            BELL.fetch_add(1, Ordering::Release);
            let _ = futex::wake(&BELL, futex::Flags::PRIVATE, 1);
        }
    }

    fn has_fired(&self) -> bool {
        self.firings().load(Ordering::Relaxed) != 0
    }

    fn prepare(&self, firings: u64) -> PreparedRequest {
        let times = if firings == 1 { String::new() } else { format!(", {firings} times") };
        self.snapshot.prepare(&format!("{}{times}", self.trigger))
    }

    /// Requests a snapshot, and waits for it.
    fn ask(&self) {
        let firings = self.firings().load(Ordering::Relaxed);
        // Before taking the right: a thread that waits for it should not also wait for an allocator.
        let prepared = self.prepare(firings);
        if !SENDING_RIGHT.take() {
            return;
        }
        let sent = prepared.send();
        // If too many requests wait for the owner, try later. Without a session or an owner, no process wants the
        // firings any more.
        if !matches!(sent, Err(Errno::AGAIN)) {
            self.firings().fetch_sub(firings, Ordering::Relaxed);
        }
        SENDING_RIGHT.give_back();
        if let Ok(socket) = sent {
            let mut stream = UnixStream::from(socket);
            let answered = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
            // The answer is ignored: there is no one to report it to.
            let _ = answered.and_then(|()| stream.read(&mut [0; 64]));
        }
    }
}

/// Interval at which the thread checks whether the program has other threads.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Right to send requests and to subtract the firings that they report.
struct SendingRight {
    /// Futex: id of the thread that holds the right; 0 if no thread does.
    holder: AtomicU32,
}

/// Time that a waiting thread sleeps before it checks whether the holder still exists, and the number of times. A
/// debugger may stop a thread for any time, and no program should wait for that.
const NAP: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const NAPS_MAX: u32 = 50;

impl SendingRight {
    const fn new() -> SendingRight {
        SendingRight { holder: AtomicU32::new(0) }
    }

    /// Takes the right for the calling thread if no thread holds it. Wait-free.
    fn take(&self) -> bool {
        // (O) Acquire pairs with (O'): firings that were reported are subtracted.
        self.holder.compare_exchange(0, tid(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn give_back(&self) {
        // (O') Release pairs with (O).
        self.holder.store(0, Ordering::Release);
        let _ = futex::wake(&self.holder, futex::Flags::PRIVATE, 1);
    }

    /// Takes the right once its holder gives it back, no longer exists, or makes no progress for seconds, since a
    /// firing is better reported twice than never. The holder sends a frame and does not wait itself, but the system
    /// may not schedule it for some time.
    fn wait_and_take(&self, is_there: impl Fn(u32) -> bool) {
        for _ in 0..NAPS_MAX {
            if self.take() {
                return;
            }
            // Relaxed: the kernel and the exchange compare again.
            let holder = self.holder.load(Ordering::Relaxed);
            if holder != 0 && !is_there(holder) {
                break;
            }
            if holder != 0 {
                let _ = futex::wait(&self.holder, futex::Flags::PRIVATE, holder, Some(&NAP));
            }
        }
        // No other thread waits: a program ends once. (O) Acquire pairs with (O'), if the holder existed until just
        // now.
        self.holder.swap(tid(), Ordering::Acquire);
    }
}

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Whether another thread of this process has this id. A child that was forked without libc has the parent's memory,
/// but not its threads.
fn is_other_thread(tid_asked: u32) -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: tgkill(2) with signal 0 only checks.
    tid_asked != tid() && unsafe { libc::syscall(libc::SYS_tgkill, pid, tid_asked, 0) } == 0
}

/// Limit on the rate of a trigger's requests: a program that fires without end must not fill the disk.
#[derive(Debug, Clone, Copy)]
struct RateLimit {
    asked: Option<Instant>,
    distance: Duration,
}

impl RateLimit {
    const MIN: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(3600);
    const NEW: RateLimit = RateLimit { asked: None, distance: RateLimit::MIN };

    /// Returns the time until the next request is allowed.
    fn wait(&self, now: Instant) -> Duration {
        self.asked.map_or(Duration::ZERO, |asked| (asked + self.distance).saturating_duration_since(now))
    }

    /// Records a request. The waiting time doubles, unless the trigger was silent for as long as the last one.
    fn ask(&mut self, now: Instant) {
        let is_soon = self.asked.is_some_and(|asked| now < asked + 2 * self.distance);
        self.distance = if is_soon { (2 * self.distance).min(RateLimit::MAX) } else { RateLimit::MIN };
        self.asked = Some(now);
    }
}

/// Starts the thread, once. If it cannot be started, requests are sent at the program's end. Must not be called under a
/// lock.
fn attend() {
    if IS_ATTENDED.swap(true, Ordering::Relaxed) {
        return;
    }
    if !EXIT_HANDLED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this object, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
    }
    if !spawn(c"dormouse-watch", serve) {
        IS_ATTENDED.store(false, Ordering::Relaxed);
    }
}

fn serve() {
    let _inside = thread::enter_tracer();
    let mut rate_limits = [RateLimit::NEW; PATTERN_COUNT_MAX];
    loop {
        // (Z') pairs with (Z).
        let bell = BELL.load(Ordering::Acquire);
        let mut soonest: Option<Duration> = None;
        for watch in watches() {
            let rate_limit = &mut rate_limits[watch.mark];
            let now = Instant::now();
            if watch.has_fired() && rate_limit.wait(now).is_zero() {
                rate_limit.ask(now);
                watch.ask();
            }
            // From now on a firing rings only if no other is pending.
            if watch.has_fired() {
                let wait = rate_limit.wait(Instant::now());
                soonest = Some(soonest.map_or(wait, |soonest| soonest.min(wait)));
            }
        }
        let wait = soonest.map_or(CHECK_INTERVAL, |soonest| soonest.min(CHECK_INTERVAL));
        let timeout = futex::Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) as _ };
        // The next round checks, whatever ended the wait.
        let is_over =
            futex::wait(&BELL, futex::Flags::PRIVATE, bell, Some(&timeout)) == Err(Errno::TIMEDOUT) && is_last();
        // The process ends then, and firings meanwhile are reported there.
        if is_over {
            return;
        }
    }
}

/// Reports firings that the thread had no time for. Waits for a request that is being sent, so that each firing is
/// reported once, but not for snapshots.
extern "C" fn at_exit() {
    let _inside = thread::enter_tracer();
    SENDING_RIGHT.wait_and_take(is_other_thread);
    for watch in watches() {
        let firings = watch.firings().swap(0, Ordering::Relaxed);
        if firings != 0 {
            watch.prepare(firings).request();
        }
    }
}

/// Resets state in a forked child: the firings and the thread are the parent's.
pub(crate) fn after_fork() {
    FIRINGS.iter().for_each(|firings| firings.store(0, Ordering::Relaxed));
    IS_ATTENDED.store(false, Ordering::Relaxed);
    SENDING_RIGHT.holder.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_waits_for_a_request_that_is_on_its_way() {
        let (right, counted) = (SendingRight::new(), AtomicU64::new(5));
        let (begun, is_begun) = std::sync::mpsc::channel();
        let (looked, is_looked) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (right, counted) = (&right, &counted);
            scope.spawn(move || {
                assert!(right.take());
                begun.send(tid()).unwrap();
                // As if the thread were not scheduled, until the exiting thread has found out the holder.
                is_looked.recv().unwrap();
                counted.fetch_sub(5, Ordering::Relaxed);
                right.give_back();
            });
            let holder = is_begun.recv().unwrap();
            assert!(!right.take());
            right.wait_and_take(|tid| {
                assert_eq!(tid, holder);
                let _ = looked.send(());
                is_other_thread(tid)
            });
            assert_eq!(counted.load(Ordering::Relaxed), 0, "told of again");
        });
        assert!(!right.take(), "it is not given back");
    }

    #[test]
    fn the_end_does_not_wait_for_an_absent_thread() {
        let right = SendingRight::new();
        right.holder.store(std::thread::spawn(tid).join().unwrap(), Ordering::Relaxed);
        right.wait_and_take(|_| false);
        assert_eq!(right.holder.load(Ordering::Relaxed), tid());
        // Nor for itself.
        right.wait_and_take(is_other_thread);
        assert!(!is_other_thread(tid()) && !is_other_thread(i32::MAX as u32));
    }

    #[test]
    fn a_trigger_that_keeps_firing_requests_snapshots_ever_less_often() {
        let mut rate_limit = RateLimit::NEW;
        let mut now = Instant::now();
        assert_eq!(rate_limit.wait(now), Duration::ZERO);
        rate_limit.ask(now);
        let mut waits = Vec::new();
        for _ in 0..16 {
            let wait = rate_limit.wait(now);
            waits.push(wait.as_secs());
            now += wait;
            assert_eq!(rate_limit.wait(now), Duration::ZERO);
            rate_limit.ask(now);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600, 3600, 3600]);
        // The trigger was silent for as long again.
        now += 2 * rate_limit.wait(now);
        rate_limit.ask(now);
        assert_eq!(rate_limit.wait(now), RateLimit::MIN);
    }
}
