//! A program that runs until its input ends, and counts how often its events were evaluated.
//!
//! It stores the number of its round in the given file, so that a test can wait for rounds instead of time. If a number
//! of bytes is given too, it sets its limit of locked memory to that, and locks all later mappings.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

static EVALUATED: AtomicU64 = AtomicU64::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Locks everything that is mapped from now on, in a process that may lock this many bytes.
fn lock_from_now_on(limit_bytes: u64) {
    let limit = libc::rlimit { rlim_cur: limit_bytes, rlim_max: limit_bytes };
    // SAFETY: setrlimit(2) reads a live limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
    // SAFETY: mlockall(2) takes a number.
    assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
}

fn main() {
    let rounds = File::create(std::env::args_os().nth(1).expect("a file for the rounds")).expect("a file");
    rounds.write_all_at(&0u64.to_le_bytes(), 0).expect("room for a number");
    if let Some(limit) = std::env::args().nth(2) {
        lock_from_now_on(limit.parse().expect("a number"));
    }
    println!("ready");
    let work = std::thread::spawn(move || {
        for number in 0u64.. {
            if IS_OVER.load(Ordering::Relaxed) {
                break;
            }
            dormouse::event!(live.tick, number = { EVALUATED.fetch_add(1, Ordering::Relaxed) });
            if number % 10 == 0 {
                dormouse::event!(live.tock, number, text = "tock");
                rounds.write_all_at(&(number / 10 + 1).to_le_bytes(), 0).expect("room for a number");
                // Slow enough that no budget runs short of pages.
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    IS_OVER.store(true, Ordering::Relaxed);
    work.join().expect("the work does not panic");
    println!("evaluated {}", EVALUATED.load(Ordering::Relaxed));
}
