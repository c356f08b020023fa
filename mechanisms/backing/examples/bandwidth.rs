//! A small benchmark of reading, which is wrong at first: nothing has written to its array, so that all of it is the one page
//! of zeroes, in the first-level cache. Then the array gets memory, and is read again.
//!
//! ```text
//! cargo run --release --example bandwidth [MIB]
//! ```
//!
//! It prints how fast each read was, and how much of the array was memory.

use std::hint::black_box;
use std::time::Instant;

use dormouse_backing::{NotBacked, check_backed, populate};

const PASSES: u32 = 20;

/// Returns the sum of all words.
fn sum(words: &[u64]) -> u64 {
    // Eight sums, so that an addition does not wait for the one before.
    let (lines, rest) = words.as_chunks::<8>();
    let mut sums = [0_u64; 8];
    for line in lines {
        for (sum, word) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

fn measure(name: &str, words: &[u64]) {
    black_box(sum(black_box(words))); // page faults of first touches are not measured
    let start = Instant::now();
    for _ in 0..PASSES {
        black_box(sum(black_box(words)));
    }
    let size_bytes = size_of_val(words);
    let gb_per_s = (size_bytes as f64 * f64::from(PASSES)) / start.elapsed().as_secs_f64() / 1e9;
    let missing_bytes = match check_backed(words) {
        Ok(()) => 0,
        Err(NotBacked::Missing(missing) | NotBacked::ZeroUnseen(missing)) => {
            missing.zero_bytes + missing.unknown_bytes + missing.untouched_bytes
        }
        Err(error) => return println!("{name} {gb_per_s:.1} GB/s; {error}"),
    };
    println!("{name} {gb_per_s:.1} GB/s, {missing_bytes} of {size_bytes} bytes are no memory");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mib = std::env::args().nth(1).map_or(Ok(64), |text| text.parse::<usize>())?;
    let mut words = vec![0_u64; mib << 17];
    measure("never written:", &words);
    populate(&mut words)?;
    measure("populated:", &words);
    Ok(())
}
