//! Measures how much faster the zero page is read than other memory, on this machine.

use std::fmt::Display;
use std::time::Instant;

use dormouse_backing::{
    Huge, MemoryOptions, NotBacked, PrivatePool, available_bytes, check_backed_raw, huge_page_size, os_page_size,
};
use rustix::mm::{Advice, madvise};
use serde::Serialize;

/// Minimum amount of memory that is read in a round, so that the time can be measured.
const ROUND_SIZE_BYTES: usize = 32 << 20;
/// Maximum amount of memory that is used.
const SIZE_BYTES_MAX: u64 = 256 << 20;
const ROUNDS: usize = 21;
/// Indexes of sorted rounds that enclose the median with a probability of 97 %, for any distribution (binomial, 21
/// rounds).
const INTERVAL: [usize; 2] = [5, 15];

/// Speed of reading the zero page and written memory of the same size, each from its beginning to its end, alternately.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speed {
    /// Size of each, in bytes.
    pub size: u64,
    /// Whether the size is that of the buffer; otherwise the buffer was too large for this machine or this measurement.
    pub is_whole: bool,
    /// Whether both are in huge pages.
    pub is_huge: bool,
    /// Median speed of reading the zero page, in gigabytes per second.
    pub zero_gb_per_s: f64,
    /// Median speed of reading written memory, in gigabytes per second.
    pub written_gb_per_s: f64,
    /// Ratio of both speeds: median over the rounds.
    pub factor: f64,
    /// A 95 % interval of that median, without assumptions about the distribution of rounds.
    pub factor_ci95: [f64; 2],
    /// Number of rounds.
    pub rounds: usize,
}

impl Speed {
    /// Measures for a buffer of `size` bytes. Takes that much memory, limited to 256 MiB and a quarter of the available
    /// memory, and about a second.
    ///
    /// # Errors
    /// A line of text: there is no memory, or the kernel does not use the zero page there.
    pub(crate) fn measure(size: u64, is_huge: bool) -> Result<Speed, String> {
        let available = available_bytes().unwrap_or(SIZE_BYTES_MAX);
        let page = if is_huge { huge_page_size() } else { os_page_size() };
        let used = (size.min(SIZE_BYTES_MAX).min(available / 4).max(1) as usize).next_multiple_of(page);
        let [zero, mut written] = [Region::new(used, is_huge)?, Region::new(used, is_huge)?];
        written.write();
        let passes = ROUND_SIZE_BYTES.div_ceil(used);
        let time = |region: &Region| {
            let start = Instant::now();
            (0..passes).for_each(|_| {
                std::hint::black_box(region.sum());
            });
            (used * passes) as f64 / start.elapsed().as_secs_f64().max(1e-9) / 1e9
        };
        // First touches fault, and are not measured.
        std::hint::black_box([&zero, &written].map(Region::sum));
        zero.check()?;
        let rounds: Vec<[f64; 2]> = (0..ROUNDS).map(|_| [time(&zero), time(&written)]).collect();
        let sorted = |of: fn(&[f64; 2]) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let factors = sorted(|[zero, written]| zero / written);
        Ok(Speed {
            size: used as u64,
            is_whole: used as u64 >= size,
            is_huge,
            zero_gb_per_s: sorted(|[zero, _]| *zero)[ROUNDS / 2],
            written_gb_per_s: sorted(|[_, written]| *written)[ROUNDS / 2],
            factor: factors[ROUNDS / 2],
            factor_ci95: INTERVAL.map(|rank| factors[rank]),
            rounds: ROUNDS,
        })
    }
}

/// Private memory of this process that is not touched yet.
struct Region {
    pool: PrivatePool,
    /// Size of the part that is used, in bytes.
    size: usize,
}

impl Region {
    fn new(size: usize, is_huge: bool) -> Result<Region, String> {
        let failed = |error: &dyn Display| format!("cannot take {size} bytes of memory: {error}");
        // Not `Huge::Prefer`: that tries pages of hugetlb first, and these have no zero page.
        let huge = if is_huge { Huge::AsConfigured } else { Huge::Never };
        // The size of at least a huge page makes the mapping start on a huge page boundary.
        let room = size.next_multiple_of(huge_page_size());
        let pool = PrivatePool::new(room, MemoryOptions::new().prefault(false).huge(huge));
        let pool = pool.map_err(|error| failed(&error))?;
        if is_huge {
            // SAFETY: the range is the pool's mapping; advice about huge pages does not change its contents.
            let advised = unsafe { madvise(pool.base().cast(), room, Advice::LinuxHugepage) };
            advised.map_err(|errno| failed(&errno))?;
        }
        Ok(Region { pool, size })
    }

    fn words(&self) -> &[u64] {
        // SAFETY: the pool has that many bytes from its base on, which is aligned to a page; they are initialised to
        // zeroes, and live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.pool.base().cast::<u64>(), self.size / size_of::<u64>()) }
    }

    /// Writes a different value to each word, so that no two pages are equal.
    fn write(&mut self) {
        // SAFETY: the pool has that many bytes from its base on, which is aligned to a page; they are initialised to
        // zeroes. Only this value uses the pool, and `&mut self` excludes any other reference into it.
        let words =
            unsafe { std::slice::from_raw_parts_mut(self.pool.base().cast::<u64>(), self.size / size_of::<u64>()) };
        for (word, value) in words.iter_mut().zip(1..) {
            *word = value;
        }
    }

    fn sum(&self) -> u64 {
        // Eight sums, so that an addition does not wait for the preceding one.
        let (lines, rest) = std::hint::black_box(self.words()).as_chunks::<8>();
        let mut sums = [0_u64; 8];
        for line in lines {
            for (sum, word) in sums.iter_mut().zip(line) {
                *sum = sum.wrapping_add(*word);
            }
        }
        sums.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
    }

    /// Checks that all of it is the zero page, as far as the kernel tells.
    fn check(&self) -> Result<(), String> {
        let zero = match check_backed_raw(self.pool.base(), self.size) {
            Ok(()) => 0,
            Err(NotBacked::Missing(part) | NotBacked::ZeroUnseen(part)) => part.zero_bytes + part.unknown_bytes,
            Err(error) => return Err(error.to_string()),
        };
        if zero == self.size {
            Ok(())
        } else {
            Err(format!("of {} bytes that were read and not written, {zero} are the zero page here", self.size))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_size_can_be_measured() {
        for size in [1, 4096, (3 << 20) + 5] {
            let speed = Speed::measure(size, false).unwrap();
            assert_eq!(speed.size, size.next_multiple_of(os_page_size() as u64));
            let [low, high] = speed.factor_ci95;
            assert!(low > 0.0 && low <= speed.factor && speed.factor <= high, "{speed:?}");
            assert!(speed.is_whole && speed.zero_gb_per_s > 0.0 && speed.written_gb_per_s > 0.0, "{speed:?}");
        }
        let speed = Speed::measure(SIZE_BYTES_MAX + 1, false).unwrap();
        assert!(!speed.is_whole && speed.size <= SIZE_BYTES_MAX, "{speed:?}");
    }

    #[test]
    fn written_memory_is_not_on_the_zero_page() {
        let mut region = Region::new(1 << 20, false).unwrap();
        assert_eq!(region.sum(), 0);
        region.check().unwrap();
        region.write();
        let words = (1 << 20) / 8;
        assert_eq!(region.sum(), words * (words + 1) / 2);
        assert!(region.check().is_err());
    }
}
