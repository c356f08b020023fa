//! A program that runs until its input ends, and counts how often its events were evaluated.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

static EVALUATED: AtomicU64 = AtomicU64::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);

fn main() {
    println!("ready");
    let work = std::thread::spawn(|| {
        for number in 0u64.. {
            if IS_OVER.load(Ordering::Relaxed) {
                break;
            }
            dormouse::event!(live.tick, number = { EVALUATED.fetch_add(1, Ordering::Relaxed) });
            if number % 10 == 0 {
                dormouse::event!(live.tock, number, text = "tock");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    IS_OVER.store(true, Ordering::Relaxed);
    work.join().expect("the work does not panic");
    println!("evaluated {}", EVALUATED.load(Ordering::Relaxed));
}
