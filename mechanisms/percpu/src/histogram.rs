//! Histograms of log-linear buckets with counts on each CPU.
//!
//! # Picture
//! ```text
//!   b = 2 (four sub-buckets per power of two)
//!
//!   value    0 1 2 3 4 5 6 7 8   10    12    14    16        20        24 …
//!   bucket  │0│1│2│3│4│5│6│7│ 8 │  9  │ 10  │ 11  │    12   │    13   │ …        width doubles after every four
//!
//!   stride of a CPU   offset │ by_rseq: one word per bucket │ by_atomics: one word per bucket, for threads without rseq │
//! ```
//!
//! Each value below `2^(b + 1)` has a bucket of its own. The width of a larger bucket is at most `2^-b` of its least
//! value, which is the relative error of everything that is read from it. Every `u64` has a bucket: there are
//! `(65 - b) × 2^b` of them.
//!
//! # Cost
//! A value's bucket is found by counting leading zeros and by a shift; then follows one addition under rseq. An os_page
//! whose counts are not used is not touched: threads without rseq have a half of their own.
//!
//! # Source
//! G. Tene, HdrHistogram (2012). The sub-buckets are HdrHistogram's, restricted to powers of two.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::area::{Area, PerCpu};
use crate::counter::{ATTEMPTS_MAX, RseqU64};
use crate::rseq::{Rseq, near};

/// Mapping from values to buckets: the number of buckets, and the range of values of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistogramLayout {
    sub_bucket_bits: u32,
}

impl HistogramLayout {
    /// Maximum number of bits for sub-buckets: 65,536 sub-buckets, a relative error of 0.0015 %, and 25 MiB for each
    /// CPU.
    pub const SUB_BUCKET_BITS_MAX: u32 = 16;

    /// Returns the layout with `1 << sub_bucket_bits` sub-buckets per power of two; `None` for more bits than
    /// [`HistogramLayout::SUB_BUCKET_BITS_MAX`].
    pub const fn new(sub_bucket_bits: u32) -> Option<HistogramLayout> {
        if sub_bucket_bits <= Self::SUB_BUCKET_BITS_MAX { Some(HistogramLayout { sub_bucket_bits }) } else { None }
    }

    /// Returns the number of buckets.
    pub const fn bucket_count(self) -> usize {
        (65 - self.sub_bucket_bits as usize) << self.sub_bucket_bits
    }

    /// Returns the number of bytes that a histogram takes in each stride of its area.
    pub const fn size_bytes(self) -> usize {
        self.bucket_count() * (size_of::<RseqU64>() + size_of::<AtomicU64>())
    }

    /// Returns the index of a value's bucket, below [`HistogramLayout::bucket_count`].
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub const fn index(self, value: u64) -> usize {
        let bits = self.sub_bucket_bits;
        // For value 0 the highest bit is taken to be bit 0: value 0 is among the exact buckets.
        let highest = 63 - (value | 1).leading_zeros();
        if highest < bits {
            return value as usize;
        }
        let shift = highest - bits;
        // The highest bit of the sub-bucket number is always set, and adds one to the power of two.
        ((shift as usize) << bits) + (value >> shift) as usize
    }

    /// Returns the least and the greatest value of a bucket. An index beyond the last bucket means the last one.
    pub const fn bounds(self, index: usize) -> (u64, u64) {
        let bits = self.sub_bucket_bits;
        let last = self.bucket_count() - 1;
        let index = if index < last { index } else { last };
        let power = index >> bits;
        if power <= 1 {
            return (index as u64, index as u64);
        }
        let shift = power as u32 - 1;
        let low = ((index - (shift as usize) * (1 << bits)) as u64) << shift;
        (low, low + ((1 << shift) - 1))
    }
}

/// A histogram with counts on each CPU.
///
/// It is stored in an [`Area`], in private memory or in memory shared by processes, some with rseq and some without.
/// Zeroed memory is an empty histogram. Counts wrap modulo 2^64.
#[derive(Debug, Clone, Copy)]
pub struct Histogram {
    area: Area,
    offset: usize,
    layout: HistogramLayout,
}

impl Histogram {
    /// Returns the histogram that begins at `offset` in every stride of `area` and takes
    /// [`HistogramLayout::size_bytes`] there. `None` if it does not fit into the strides or is not aligned, or if the
    /// area has no stride.
    ///
    /// # Safety
    /// In every stride those bytes are zeroes or counts of histograms of this layout at this offset, and nothing else
    /// uses them.
    pub unsafe fn new(area: Area, offset: usize, layout: HistogramLayout) -> Option<Histogram> {
        let end = offset.checked_add(layout.size_bytes())?;
        // SAFETY: the caller guarantees counts at this offset in every stride; the handle is only used to compute an
        // address.
        let first = area.ptr(unsafe { PerCpu::<RseqU64>::new(offset) }, 0)?;
        let stride_bytes = area.stride_size_bytes();
        let fits = end <= stride_bytes && first.is_aligned() && stride_bytes.is_multiple_of(align_of::<RseqU64>());
        fits.then_some(Histogram { area, offset, layout })
    }

    /// Counts `value`: by rseq in the CPU's first half, in at most 8 attempts; if all are aborted, by an atomic
    /// addition in the CPU's second half.
    ///
    /// Wait-free, async-signal-safe.
    #[inline]
    pub fn record(&self, rseq: Option<Rseq>, value: u64) {
        let index = self.layout.index(value);
        if let (Some(rseq), Some(first)) = (rseq, self.area.ptr(self.by_rseq(index), 0)) {
            for _ in 0..ATTEMPTS_MAX {
                // SAFETY: `new` has checked that all buckets are inside each of the area's strides. All histograms find
                // a CPU's buckets by this arithmetic, and the type of the words lets only sections write them.
                if unsafe { rseq.add_by_stride(first.cast(), self.area.stride_shift(), self.area.count(), 1) } {
                    return;
                }
            }
        }
        self.record_by_atomics(rseq, index);
    }

    #[cold]
    fn record_by_atomics(&self, rseq: Option<Rseq>, index: usize) {
        let cpu = near(rseq);
        // A count on any CPU is correct; the thread's own CPU is the nearest.
        if let Some(count) = self.area.get(self.by_atomics(index), cpu % self.area.count()) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Returns the bucket's count, summed over all CPUs. It includes every value that was recorded before the call.
    ///
    /// Wait-free, async-signal-safe.
    pub fn bucket(&self, index: usize) -> u64 {
        if index >= self.layout.bucket_count() {
            return 0;
        }
        let (by_rseq, by_atomics) = (self.by_rseq(index), self.by_atomics(index));
        (0..self.area.count()).fold(0, |sum: u64, cpu| {
            let by_rseq = self.area.get(by_rseq, cpu).map_or(0, RseqU64::load);
            let by_atomics = self.area.get(by_atomics, cpu).map_or(0, |count| count.load(Relaxed));
            sum.wrapping_add(by_rseq).wrapping_add(by_atomics)
        })
    }

    /// Returns the number of recorded values, modulo 2^64. It includes every value that was recorded before the call.
    ///
    /// Wait-free, async-signal-safe.
    pub fn count(&self) -> u64 {
        (0..self.layout.bucket_count()).fold(0, |sum, index| sum.wrapping_add(self.bucket(index)))
    }

    /// Returns the greatest value of the bucket that holds the `q`-quantile, which is the value of rank
    /// `max(1, ⌈q × count⌉)` from below.
    ///
    /// The quantile itself is at most that value, and less by at most the relative error. `None` if nothing was
    /// recorded, or `q` is not in 0 to 1. The product is computed in `f64`, so ranks are exact up to 2^53 values.
    /// Buckets are read twice, so values that are recorded during the call may be included.
    ///
    /// Wait-free, async-signal-safe.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let count = self.count();
        if !(0.0..=1.0).contains(&q) || count == 0 {
            return None;
        }
        let rank = rank(q, count);
        let mut below = 0_u64;
        (0..self.layout.bucket_count()).find_map(|index| {
            below = below.saturating_add(self.bucket(index));
            (below >= rank).then(|| self.layout.bounds(index).1)
        })
    }

    /// Returns the layout of the buckets.
    pub const fn layout(&self) -> HistogramLayout {
        self.layout
    }

    #[inline]
    fn by_rseq(&self, index: usize) -> PerCpu<RseqU64> {
        // SAFETY: `new`'s caller guarantees that these bytes are counts that nothing else uses; the first half has this
        // type.
        unsafe { PerCpu::new(self.offset + index * size_of::<RseqU64>()) }
    }

    #[inline]
    fn by_atomics(&self, index: usize) -> PerCpu<AtomicU64> {
        let offset = self.offset + (self.layout.bucket_count() + index) * size_of::<AtomicU64>();
        // SAFETY: `new`'s caller guarantees that these bytes are counts that nothing else uses; the second half has
        // this type.
        unsafe { PerCpu::new(offset) }
    }
}

/// Returns `⌈q × count⌉`, from 1 to `count`. It uses the next number below `q`, so that 0.07 of 100, which is slightly
/// above 7 in binary, is 7.
fn rank(q: f64, count: u64) -> u64 {
    let product = q.next_down() * count as f64;
    let floor = product as u64;
    let rank = if (floor as f64) < product { floor.saturating_add(1) } else { floor };
    rank.clamp(1, count)
}
