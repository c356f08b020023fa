//! A bakery: two bakers fill a shelf with loaves while customers buy them, and sometimes find the shelf empty.
//!
//! ```text
//!   bakery [SECONDS]
//! ```
//! It prints its process id. While it runs:
//!
//! ```text
//!   dormouse list PID
//!   dormouse arm PID 'bakery:*'
//!   dormouse disarm PID 'bakery:*'
//! ```

use std::process::ExitCode;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const BREADS: [(&str, f64); 4] = [("rye", 3.2), ("spelt", 3.9), ("wheat", 2.7), ("sourdough", 4.5)];
const SHELF_SIZE: usize = 24;
const BAKERS: u32 = 2;
const TILLS: u32 = 2;

#[derive(Debug, Clone, Copy)]
struct Loaf {
    id: u64,
    bread: usize,
}

/// Loaves that bakers have put on the shelf and customers have not bought yet.
#[derive(Debug, Default)]
struct Shelf {
    loaves: Mutex<Vec<Loaf>>,
    taken: Condvar,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Vec<Loaf>> {
        self.loaves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A small generator of pseudo-random numbers, with the same numbers in every run.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn pause(&mut self, us_max: u64) {
        std::thread::sleep(Duration::from_micros(self.below(us_max)));
    }
}

fn bake(shelf: &Shelf, baker: u32, end: Instant) {
    let mut random = Random(baker.into());
    let mut count = 0;
    while Instant::now() < end {
        let bread = random.below(BREADS.len() as u64) as usize;
        let temperature_c = 210.0 + random.below(40) as f32 / 2.0;
        let loaf = Loaf { id: u64::from(baker) << 32 | count, bread };
        dormouse::event!(bakery.oven_opened, baker, temperature_c);
        random.pause(400);
        dormouse::event!(bakery.loaf_baked, id = loaf.id, bread = BREADS[bread].0, baker);
        count += 1;
        let mut loaves = shelf.lock();
        while loaves.len() == SHELF_SIZE {
            dormouse::event!(bakery.shelf_full, baker, size = SHELF_SIZE as u32);
            let (guard, waited) =
                shelf.taken.wait_timeout(loaves, Duration::from_millis(5)).unwrap_or_else(PoisonError::into_inner);
            loaves = guard;
            if waited.timed_out() && Instant::now() >= end {
                return;
            }
        }
        loaves.push(loaf);
    }
}

fn sell(shelf: &Shelf, till: u32, end: Instant) -> f64 {
    let mut random = Random(100 + u64::from(till));
    let mut takings = 0.0;
    let mut customer = 0u64;
    while Instant::now() < end {
        customer += 1;
        let wanted = 1 + random.below(3) as usize;
        let basket: Vec<Loaf> = {
            let mut loaves = shelf.lock();
            let first = loaves.len().saturating_sub(wanted);
            loaves.split_off(first)
        };
        shelf.taken.notify_all();
        if basket.is_empty() {
            dormouse::event!(bakery.sold_out, till, customer, wanted = wanted as u32);
        } else {
            let price: f64 = basket.iter().map(|loaf| BREADS[loaf.bread].1).sum();
            let ids: Vec<u64> = basket.iter().map(|loaf| loaf.id).collect();
            takings += price;
            dormouse::event!(bakery.bread_sold, till, customer, loaves = ids.as_slice(), price);
        }
        random.pause(600);
    }
    takings
}

fn main() -> ExitCode {
    let seconds = match std::env::args().nth(1).map(|argument| argument.parse()) {
        None => 5,
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => {
            eprintln!("usage: bakery [SECONDS]");
            return ExitCode::from(2);
        }
    };
    println!("{}", std::process::id());
    let end = Instant::now() + Duration::from_secs(seconds);
    let shelf = Shelf::default();
    let takings: f64 = std::thread::scope(|scope| {
        for baker in 1..=BAKERS {
            let shelf = &shelf;
            scope.spawn(move || bake(shelf, baker, end));
        }
        let tills: Vec<_> = (1..=TILLS)
            .map(|till| {
                let shelf = &shelf;
                scope.spawn(move || sell(shelf, till, end))
            })
            .collect();
        tills.into_iter().map(|till| till.join().unwrap_or(0.0)).sum()
    });
    println!("{takings:.2} in the tills");
    ExitCode::SUCCESS
}
