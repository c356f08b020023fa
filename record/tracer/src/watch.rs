//! Events that triggers wait for: what their marks stand for, durations of threads, and the thread that asks for snapshots.
//!
//! ```text
//!   event ─▶ direct section: the word is above CLASS_ID_MAX ─▶ slow path: written, like any other ─▶ met(marks)
//!                                                                  it fires: firings += 1, and rings if there were none
//!                                                                                    │ futex
//!   thread "dormouse-watch"  ◀──────────────────────────────────────────────────────┘
//!     asks the session's owner, waits until the snapshot is complete, and then as long as the trigger's pace says
//! ```
//! A firing is counted until a request that tells of it is sent: by the thread, or at the end of a program that ends by `exit`,
//! so that it forgets none. Between the sending and the counting a firing is told of and still counted: there the end waits for the
//! thread, or it would tell of it again.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use dormouse_abi::trigger::{PATTERN_COUNT_MAX, Trigger};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::snapshot::{PATIENCE, Prepared, Snapshot};
use crate::spawn::{is_last, spawn};
use crate::thread::{self, Writer};
use crate::{clock, control, record};

/// A trigger and what it has come to.
#[derive(Debug)]
struct Watch {
    trigger: Trigger,
    snapshot: Snapshot,
    /// Its first mark. A duration has two: the first for its end, the next for its begin, so that an event that is both ends
    /// one before it begins another.
    mark: usize,
}

/// By mark: how often a trigger has fired since its last request. Whoever takes its place goes on counting.
static FIRINGS: [AtomicU64; PATTERN_COUNT_MAX] = [const { AtomicU64::new(0) }; PATTERN_COUNT_MAX];

/// By mark. Never freed: an event may be on its way at any time.
static WATCHES: [AtomicPtr<Watch>; PATTERN_COUNT_MAX] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; PATTERN_COUNT_MAX];

/// Futex: moves on when a trigger fires that has not fired since its last request.
static BELL: AtomicU32 = AtomicU32::new(0);
static IS_ATTENDED: AtomicBool = AtomicBool::new(false);
/// Who sends: the thread, and at the end of the program whoever ends it, who does not give it back.
static TURN: Turn = Turn::new();
static EXIT_HANDLED: AtomicBool = AtomicBool::new(false);

fn watch(mark: usize) -> Option<&'static Watch> {
    let slot = WATCHES.get(mark)?;
    // (T) pairs with (T'). SAFETY: null, or never freed.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

/// Each once.
fn watches() -> impl Iterator<Item = &'static Watch> {
    (0..PATTERN_COUNT_MAX).filter_map(|mark| watch(mark).filter(|watch| watch.mark == mark))
}

/// Has snapshots asked for when a trigger by event or duration fires.
///
/// # Errors
/// When there is no room for its patterns.
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
    // Leaked: an event may be on its way to it at any time.
    let watch: &Watch = Box::leak(Box::new(Watch { trigger, snapshot: snapshot.clone(), mark }));
    let marks = mark..mark + mark_count;
    for slot in &WATCHES[marks.clone()] {
        // (T') pairs with (T): complete before it is found. The one before is left where it is.
        slot.store(core::ptr::from_ref(watch).cast_mut(), Ordering::Release);
    }
    record::on_marked(met);
    let patterns = marks.filter_map(|mark| Some((mark, watch.pattern(mark)?)));
    control.mark(patterns, attend);
    Ok(())
}

/// Tells of an event of a class with these marks, once it is written.
///
/// Wait-free but for the kernel; async-signal-safe; leaves errno as it is.
#[cold]
fn met(marks: u32, writer: Writer) {
    for mark in (0..PATTERN_COUNT_MAX).filter(|mark| marks >> mark & 1 != 0) {
        if let Some(watch) = watch(mark) {
            watch.met(mark, writer);
        }
    }
}

/// Nanoseconds of the clock, never 0. Async-signal-safe; leaves errno as it is.
fn now_ns() -> u64 {
    clock::monotonic_ns().max(1)
}

impl Watch {
    /// The pattern that a mark stands for.
    fn pattern(&self, mark: usize) -> Option<&str> {
        match &self.trigger {
            Trigger::Event(pattern) => Some(pattern),
            Trigger::Duration { begin, end, .. } => Some(if mark == self.mark { end } else { begin }),
            _ => None,
        }
    }

    fn met(&self, mark: usize, writer: Writer) {
        let Trigger::Duration { limit, .. } = self.trigger else { return self.fire() };
        // Two marks each, so that no other duration has this half. A child of vfork has no word of its own.
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
            // (Z) pairs with (Z'): who finds the bell moved on finds the firing.
            BELL.fetch_add(1, Ordering::Release);
            let _ = futex::wake(&BELL, futex::Flags::PRIVATE, 1);
        }
    }

    fn has_fired(&self) -> bool {
        self.firings().load(Ordering::Relaxed) != 0
    }

    fn prepare(&self, firings: u64) -> Prepared {
        let times = if firings == 1 { String::new() } else { format!(", {firings} times") };
        self.snapshot.prepare(&format!("{}{times}", self.trigger))
    }

    /// Asks for a snapshot, and waits for it.
    fn ask(&self) {
        let firings = self.firings().load(Ordering::Relaxed);
        // Before its turn: who waits for that does not wait for an allocator too.
        let prepared = self.prepare(firings);
        if !TURN.take() {
            return;
        }
        let sent = prepared.send();
        // Where too many ask at once, later. Without a session, or an owner, nobody wants them any more.
        if !matches!(sent, Err(Errno::AGAIN)) {
            self.firings().fetch_sub(firings, Ordering::Relaxed);
        }
        TURN.give_back();
        if let Ok(socket) = sent {
            let mut stream = UnixStream::from(socket);
            let answered = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
            // Whatever the answer is: there is nobody to tell.
            let _ = answered.and_then(|()| stream.read(&mut [0; 64]));
        }
    }
}

/// From one look whether the program has other threads to the next.
const LOOK: Duration = Duration::from_secs(1);

/// Whose turn it is to send requests and to take what they tell of from the counts.
struct Turn {
    /// Futex: the thread's id; 0 is nobody.
    holder: AtomicU32,
}

/// How long who waits for its turn sleeps until it looks whether the holder is still there, and how often. A debugger may hold a thread for as
/// long as it likes, and no program is to wait for that.
const NAP: futex::Timespec = futex::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
const NAPS_MAX: u32 = 50;

impl Turn {
    const fn new() -> Turn {
        Turn { holder: AtomicU32::new(0) }
    }

    /// Takes it for the calling thread if nobody has it. Wait-free.
    fn take(&self) -> bool {
        // (O) Acquire pairs with (O'): what was told of is not counted any more.
        self.holder.compare_exchange(0, tid(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn give_back(&self) {
        // (O') Release pairs with (O).
        self.holder.store(0, Ordering::Release);
        let _ = futex::wake(&self.holder, futex::Flags::PRIVATE, 1);
    }

    /// Takes it once whoever has it gives it back, or is not there any more, or does not get on for seconds: better told of twice than never.
    /// Who has it sends a frame and does not wait itself, but the system may let it lie for some time in between.
    fn wait_and_take(&self, is_there: impl Fn(u32) -> bool) {
        for _ in 0..NAPS_MAX {
            if self.take() {
                return;
            }
            // Relaxed: compared again by the kernel, and by the exchange.
            let holder = self.holder.load(Ordering::Relaxed);
            if holder != 0 && !is_there(holder) {
                break;
            }
            if holder != 0 {
                let _ = futex::wait(&self.holder, futex::Flags::PRIVATE, holder, Some(&NAP));
            }
        }
        // Nobody else waits: a program ends once. (O) Acquire pairs with (O'), if the holder was there until just now.
        self.holder.swap(tid(), Ordering::Acquire);
    }
}

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Whether a thread of this process, but for the calling one, has this id. A child that was forked past libc has the parent's memory, and
/// not its threads.
fn is_other_thread(tid_asked: u32) -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: tgkill(2) of no signal asks only.
    tid_asked != tid() && unsafe { libc::syscall(libc::SYS_tgkill, pid, tid_asked, 0) } == 0
}

/// How soon a trigger may ask again: a program that fires without end fills no disk.
#[derive(Debug, Clone, Copy)]
struct Pace {
    asked: Option<Instant>,
    distance: Duration,
}

impl Pace {
    const MIN: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(3600);
    const NEW: Pace = Pace { asked: None, distance: Pace::MIN };

    /// How long it has to wait yet.
    fn wait(&self, now: Instant) -> Duration {
        self.asked.map_or(Duration::ZERO, |asked| (asked + self.distance).saturating_duration_since(now))
    }

    /// It asks: from now on it waits for twice as long as before unless it was silent for as long.
    fn ask(&mut self, now: Instant) {
        let is_soon = self.asked.is_some_and(|asked| now < asked + 2 * self.distance);
        self.distance = if is_soon { (2 * self.distance).min(Pace::MAX) } else { Pace::MIN };
        self.asked = Some(now);
    }
}

/// Starts the thread, once. Without one, requests are sent at the program's end. Not to be called under a lock.
fn attend() {
    if IS_ATTENDED.swap(true, Ordering::Relaxed) {
        return;
    }
    if !EXIT_HANDLED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this object, which is pinned.
        unsafe { libc::atexit(at_exit) };
    }
    if !spawn(c"dormouse-watch", serve) {
        IS_ATTENDED.store(false, Ordering::Relaxed);
    }
}

fn serve() {
    let _inside = thread::enter_tracer();
    let mut paces = [Pace::NEW; PATTERN_COUNT_MAX];
    loop {
        // (Z') pairs with (Z).
        let bell = BELL.load(Ordering::Acquire);
        let mut soonest: Option<Duration> = None;
        for watch in watches() {
            let pace = &mut paces[watch.mark];
            let now = Instant::now();
            if watch.has_fired() && pace.wait(now).is_zero() {
                pace.ask(now);
                watch.ask();
            }
            // What fires from now on rings only if there is nothing left to ask for.
            if watch.has_fired() {
                let wait = pace.wait(Instant::now());
                soonest = Some(soonest.map_or(wait, |soonest| soonest.min(wait)));
            }
        }
        let wait = soonest.map_or(LOOK, |soonest| soonest.min(LOOK));
        let timeout = futex::Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) as _ };
        // Whatever ends the wait, the next round looks.
        let is_over =
            futex::wait(&BELL, futex::Flags::PRIVATE, bell, Some(&timeout)) == Err(Errno::TIMEDOUT) && is_last();
        // The process ends then, and what has fired meanwhile is told of there.
        if is_over {
            return;
        }
    }
}

/// What the thread had no time for. Waits for a request that is on its way, so that each firing is told of once, and not for snapshots.
extern "C" fn at_exit() {
    let _inside = thread::enter_tracer();
    TURN.wait_and_take(is_other_thread);
    for watch in watches() {
        let firings = watch.firings().swap(0, Ordering::Relaxed);
        if firings != 0 {
            watch.prepare(firings).request();
        }
    }
}

/// In a forked child: the parent's firings are the parent's, and so was its thread.
pub(crate) fn after_fork() {
    FIRINGS.iter().for_each(|firings| firings.store(0, Ordering::Relaxed));
    IS_ATTENDED.store(false, Ordering::Relaxed);
    TURN.holder.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_waits_for_a_request_that_is_on_its_way() {
        let (turn, counted) = (Turn::new(), AtomicU64::new(5));
        let (begun, is_begun) = std::sync::mpsc::channel();
        let (looked, is_looked) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (turn, counted) = (&turn, &counted);
            scope.spawn(move || {
                assert!(turn.take());
                begun.send(tid()).unwrap();
                // As if the system had something better to do, until the end has found out who sends.
                is_looked.recv().unwrap();
                counted.fetch_sub(5, Ordering::Relaxed);
                turn.give_back();
            });
            let holder = is_begun.recv().unwrap();
            assert!(!turn.take());
            turn.wait_and_take(|tid| {
                assert_eq!(tid, holder);
                let _ = looked.send(());
                is_other_thread(tid)
            });
            assert_eq!(counted.load(Ordering::Relaxed), 0, "told of again");
        });
        assert!(!turn.take(), "it is not given back");
    }

    #[test]
    fn nobody_waits_for_a_thread_that_is_not_there() {
        let turn = Turn::new();
        turn.holder.store(std::thread::spawn(tid).join().unwrap(), Ordering::Relaxed);
        turn.wait_and_take(|_| false);
        assert_eq!(turn.holder.load(Ordering::Relaxed), tid());
        // Nor for itself.
        turn.wait_and_take(is_other_thread);
        assert!(!is_other_thread(tid()) && !is_other_thread(i32::MAX as u32));
    }

    #[test]
    fn a_trigger_that_goes_on_firing_asks_ever_more_seldom() {
        let mut pace = Pace::NEW;
        let mut now = Instant::now();
        assert_eq!(pace.wait(now), Duration::ZERO);
        pace.ask(now);
        let mut waits = Vec::new();
        for _ in 0..16 {
            let wait = pace.wait(now);
            waits.push(wait.as_secs());
            now += wait;
            assert_eq!(pace.wait(now), Duration::ZERO);
            pace.ask(now);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600, 3600, 3600]);
        // It was silent for as long again.
        now += 2 * pace.wait(now);
        pace.ask(now);
        assert_eq!(pace.wait(now), Pace::MIN);
    }
}
