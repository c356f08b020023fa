//! Emits numbered events from several threads, then prints how many.
//!
//! ```text
//!   spin [THREADS] [EVENTS PER THREAD]
//! ```

fn main() {
    let number =
        |index: usize, default: u64| std::env::args().nth(index).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (threads, events) = (number(1, 2), number(2, 1_000_000));
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for number in 0..events {
                    dormouse::event!(spin.step, thread, number);
                }
            });
        }
    });
    let elapsed = started.elapsed();
    println!("{} events, {:.1} ns each", threads * events, elapsed.as_nanos() as f64 / events as f64);
}
