//! Memory pressure: walks that drive a program's data out of the caches.
//!
//! ```text
//!   linear    line 0, 1, 2, 3, … by memset      prefetchers predict it, and CPUs have ways to set memory that bypass
//!                                               their caches
//!   random    every line once, in an order that no prefetcher predicts
//! ```
//! The order is that of a linear congruential generator with full period over the buffer's lines (Hull and Dobell 1962:
//! modulus 2^k, odd increment, multiplier 1 modulo 4). So it needs no memory of its own, and uses another increment for
//! each walk. Lines are written, not only read, so that the lines that they evict have to be moved, and are not merely
//! dropped because a sibling cache has a clean copy.

use serde::{Deserialize, Serialize};

/// Walk before each timed iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Walk {
    /// No walk: the loop runs as a whole, with warm caches.
    None,
    /// Writes every line of a buffer, in random order.
    Random {
        /// Size of the buffer in bytes; rounded up to a power of two.
        bytes: u64,
    },
    /// Writes every line of a buffer, in order.
    Linear {
        /// Size of the buffer in bytes; rounded up to a power of two.
        bytes: u64,
    },
}

const LINE_BYTES: usize = 64;

/// One cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; LINE_BYTES / 8]);

/// Maximum size of a walked buffer: 1 GiB.
const BYTES_MAX: u64 = 1 << 30;

/// A buffer for walks. Each worker has its own.
#[derive(Debug, Default)]
pub(crate) struct Walker {
    lines: Vec<Line>,
    turn: u64,
}

impl Walker {
    /// Allocates a buffer of the walk's size, and writes every line so that it is backed.
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

    /// Makes one walk.
    pub(crate) fn walk(&mut self, walk: Walk) {
        match walk {
            Walk::None => {}
            // The obvious way: sets the whole buffer, by `memset`.
            Walk::Linear { .. } => self.lines.fill(Line([0; LINE_BYTES / 8])),
            Walk::Random { .. } => {
                self.turn = self.turn.wrapping_add(1);
                // The low bits of the generator have short periods, but the sequence of whole numbers visits all lines.
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

/// Multiplier of Knuth's MMIX generator: 1 modulo 4, otherwise without structure.
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
