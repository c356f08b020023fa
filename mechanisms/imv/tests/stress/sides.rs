//! Which side of a branch threads execute after an update has returned.
//!
//! ```text
//!   updater   PREPARED := r; change the key; EPOCH := r     waits until every thread has reported on epoch r
//!   thread    epoch := EPOCH; if branch { report (epoch, taken, PREPARED) } else { report (epoch, not taken, 0) }
//! ```
//! A thread reads the epoch before it reaches the branch, and the key does not change again before each thread has
//! reported. So every report on epoch r is of an execution that began after the r-th update had returned, and none may be
//! of the former side. SeqCst except for `PREPARED`, which only the gate orders.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use dormouse_imv::{CodeWriter, StaticKey, disable, enable, static_branch, static_branch_likely, status};

use crate::alone;

const THREADS: usize = 4;
/// Number of updates for each kind of branch and writer.
const UPDATES: u64 = 600;

/// Epoch of a thread's last report.
#[repr(align(128))]
struct Report(AtomicU64);

/// Number of reports of the wrong side, and of code behind the gate that did not see what was prepared.
struct Wrong {
    side: AtomicU64,
    unprepared: AtomicU64,
}

fn each_thread_executes_the_new_side(
    name: &str,
    key: &'static StaticKey,
    branch: impl Fn(&AtomicU64) -> Option<u64> + Sync,
) {
    let reports: [Report; THREADS] = std::array::from_fn(|_| Report(AtomicU64::new(0)));
    let wrong = Wrong { side: AtomicU64::new(0), unprepared: AtomicU64::new(0) };
    let (epoch, prepared, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for report in &reports {
            let (wrong, epoch, prepared, stop, branch) = (&wrong, &epoch, &prepared, &stop, &branch);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let before = epoch.load(Ordering::SeqCst);
                    let seen = branch(prepared);
                    // The next update waits for the first report on this epoch.
                    let is_first = before > report.0.load(Ordering::SeqCst);
                    if is_first && seen.is_some() != (before % 2 == 1) {
                        wrong.side.fetch_add(1, Ordering::SeqCst);
                    }
                    // Also while the key is being enabled: the next odd epoch has been prepared.
                    if seen.is_some_and(|prepared| prepared < before | 1) {
                        wrong.unprepared.fetch_add(1, Ordering::SeqCst);
                    }
                    report.0.store(before, Ordering::SeqCst);
                    if !is_first {
                        thread::yield_now();
                    }
                }
            });
        }
        for number in 1..=UPDATES {
            if number % 2 == 1 {
                prepared.store(number, Ordering::Relaxed);
                enable(key).expect("an update");
            } else {
                disable(key).expect("an update");
            }
            epoch.store(number, Ordering::SeqCst);
            while reports.iter().any(|report| report.0.load(Ordering::SeqCst) < number) {
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
    let Wrong { side, unprepared } = wrong;
    assert_eq!((side.into_inner(), unprepared.into_inner()), (0, 0), "{name}");
}

#[test]
fn no_thread_executes_the_former_side_after_an_update_has_returned() {
    if alone::is_child() {
        return each_kind();
    }
    for writer in [CodeWriter::Mprotect, CodeWriter::ProcMem, CodeWriter::None] {
        let name = "sides::no_thread_executes_the_former_side_after_an_update_has_returned";
        let output = alone::run(name, |command| {
            command.env("DORMOUSE_IMV_WRITER", writer.name());
        });
        alone::assert_passed(&output);
    }
}

fn each_kind() {
    static UNLIKELY: StaticKey = StaticKey::new();
    static LIKELY: StaticKey = StaticKey::new();
    fn load(prepared: &AtomicU64) -> Option<u64> {
        Some(prepared.load(Ordering::Relaxed))
    }
    each_thread_executes_the_new_side("unlikely", &UNLIKELY, |prepared| {
        if static_branch!(UNLIKELY) { load(prepared) } else { None }
    });
    each_thread_executes_the_new_side("likely", &LIKELY, |prepared| {
        if static_branch_likely!(LIKELY) { load(prepared) } else { None }
    });
    assert_eq!(status().unwrap().writer.name(), std::env::var("DORMOUSE_IMV_WRITER").unwrap());
}
