//! Memory pressure: walks that drive a program's data out of the caches.
//!
//! ```text
//!   linear    line 0, 1, 2, 3, … by memset      prefetchers see it coming, and processors have ways to set memory that spare
//!                                               their caches
//!   random    every line once, in an order that no prefetcher knows
//! ```
//! The order is that of a linear congruential generator with full period over the buffer's lines (Hull and Dobell 1962: with a modulus
//! 2^k, increment odd and multiplier 1 modulo 4), so that it needs no memory of its own, and another increment each time.
//! Lines are written, not only read: the lines that they drive out have to go somewhere else than into a sibling's clean copy.

use serde::{Deserialize, Serialize};

/// What comes before each timed iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Walk {
    /// Nothing: the loop runs as a whole, with warm caches.
    None,
    /// Every line of a buffer of so many bytes, in random order.
    Random {
        /// Size of the buffer; rounded up to a power of two.
        bytes: u64,
    },
    /// Every line in order.
    Linear {
        /// Size of the buffer; rounded up to a power of two.
        bytes: u64,
    },
}

const LINE_BYTES: usize = 64;

/// One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; LINE_BYTES / 8]);

/// The largest buffer that is walked: 1 GiB.
const BYTES_MAX: u64 = 1 << 30;

/// A buffer to walk over. Each worker has its own.
#[derive(Debug, Default)]
pub(crate) struct Walker {
    lines: Vec<Line>,
    turn: u64,
}

impl Walker {
    /// Makes the buffer fit, with memory that is really there: every line is written.
    pub(crate) fn prepare(&mut self, walk: Walk) -> Result<(), String> {
        let (Walk::Random { bytes } | Walk::Linear { bytes }) = walk else { return Ok(()) };
        if bytes > BYTES_MAX {
            return Err(format!("a walk over {bytes} bytes: at most {BYTES_MAX} are walked"));
        }
        let count = (bytes as usize).div_ceil(LINE_BYTES).next_power_of_two();
        if self.lines.len() != count {
            self.lines = vec![Line([1; LINE_BYTES / 8]); count];
            crate::assure_backed("the walk's buffer", &self.lines);
        }
        Ok(())
    }

    /// Walks.
    pub(crate) fn walk(&mut self, walk: Walk) {
        match walk {
            Walk::None => {}
            // As one would write it first: the whole buffer is set, by `memset`.
            Walk::Linear { .. } => self.lines.fill(Line([0; LINE_BYTES / 8])),
            Walk::Random { .. } => {
                self.turn = self.turn.wrapping_add(1);
                // The low bits of such a generator have short periods, but the sequence of whole numbers visits all.
                let mask = self.lines.len() - 1;
                let increment = self.turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize | 1;
                let mut index = increment >> 7 & mask;
                for _ in 0..self.lines.len() {
                    index = index.wrapping_mul(MULTIPLIER).wrapping_add(increment) & mask;
                    let line = &mut self.lines[index].0[0];
                    *line = line.wrapping_add(1);
                }
            }
        }
        std::hint::black_box(&self.lines);
    }
}

/// 1 modulo 4; otherwise of no structure (Knuth's MMIX generator).
const MULTIPLIER: usize = 6_364_136_223_846_793_005_u64 as usize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_walk_visits_every_line_once_and_never_in_order() {
        let walk = Walk::Random { bytes: 64 << 10 };
        let mut walker = Walker::default();
        walker.prepare(walk).unwrap();
        walker.walk(walk);
        walker.walk(walk);
        assert_eq!(walker.lines.len(), 1024);
        assert!(walker.lines.iter().all(|line| line.0[0] == 3));
    }

    #[test]
    fn the_order_has_no_stride() {
        let mask = 1023;
        let order: Vec<usize> = std::iter::successors(Some(17), |index: &usize| {
            Some(index.wrapping_mul(MULTIPLIER).wrapping_add(12345) & mask)
        })
        .take(1024)
        .collect();
        let mut strides: Vec<usize> = order.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) & mask).collect();
        strides.sort_unstable();
        strides.dedup();
        assert!(strides.len() > 200, "{} different strides", strides.len());
    }

    #[test]
    fn too_much_memory_is_refused() {
        assert!(Walker::default().prepare(Walk::Linear { bytes: 1 << 40 }).is_err());
    }
}
