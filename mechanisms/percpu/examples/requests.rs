//! Counts requests on every CPU: no shared line of memory, no locked instruction.
//!
//! ```text
//! cargo run --release --example requests [THREADS]
//! ```
//!
//! It prints what each CPU has counted, and the sums.

use dormouse_percpu::{WordError, per_cpu};

per_cpu! {
    /// Requests that were served.
    static REQUESTS: u64 = 0;
    /// Requests of which the answer was empty.
    static EMPTY: u32 = 0;
    /// Requests that were begun on this CPU, less those that were completed on it: the sum is the number of open ones.
    static OPEN: i64 = 0;
    /// Length of the longest answer that this CPU has given, in bytes.
    static LONGEST: u64 = 0;
}

/// Requests of each thread.
const COUNT: u64 = 100_000;

fn serve(request: u64) -> Result<(), WordError> {
    OPEN.add(1)?;
    let answer_bytes = request % 1_000;
    if answer_bytes == 0 {
        EMPTY.add(1)?;
    }
    let mut longest = LONGEST.read()?;
    while longest < answer_bytes {
        let found = LONGEST.compare_exchange(longest, answer_bytes)?;
        if found == longest {
            break;
        }
        // Another thread was here first, or this one is on another CPU.
        longest = found;
    }
    REQUESTS.add(1)?;
    OPEN.sub(1)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(4), |text| text.parse::<u64>())?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| (0..COUNT).try_for_each(serve))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    for (cpu, requests) in (0..).map_while(|cpu| REQUESTS.read_on(cpu).map(|requests| (cpu, requests))) {
        println!("CPU {cpu}: {requests}");
    }
    let longest = (0..).map_while(|cpu| LONGEST.read_on(cpu)).max().unwrap_or(0);
    println!("{} requests, {} empty, {} open, longest {longest} bytes", REQUESTS.sum(), EMPTY.sum(), OPEN.sum());
    Ok(())
}
