//! Sets of granules, one bit each. They are written under the pool's lock, and are atomic so that no reference to them
//! must be unique.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Returns the number of words that hold `bits` bits.
pub(crate) const fn words(bits: usize) -> usize {
    bits.div_ceil(64)
}

/// Returns the start of the first `count` consecutive clear bits inside `range` that start at a multiple of `align`, a
/// power of two.
pub(crate) fn find_clear(bits: &[AtomicU64], range: Range<usize>, count: usize, align: usize) -> Option<usize> {
    let mut start = range.start;
    loop {
        start = next(bits, start..range.end, false)?.next_multiple_of(align);
        let end = start.checked_add(count).filter(|end| *end <= range.end)?;
        match next(bits, start..end, true) {
            Some(occupied) => start = occupied + 1,
            None => return Some(start),
        }
    }
}

/// Returns the first bit in `range` that is `value`.
pub(crate) fn next(bits: &[AtomicU64], range: Range<usize>, value: bool) -> Option<usize> {
    if range.is_empty() {
        return None;
    }
    let flip = if value { 0 } else { u64::MAX };
    let mut word = range.start / 64;
    let mut seen = (bits[word].load(Relaxed) ^ flip) & (u64::MAX << (range.start % 64));
    while seen == 0 {
        word += 1;
        if word * 64 >= range.end {
            return None;
        }
        seen = bits[word].load(Relaxed) ^ flip;
    }
    Some(word * 64 + seen.trailing_zeros() as usize).filter(|bit| *bit < range.end)
}

pub(crate) fn get(bits: &[AtomicU64], bit: usize) -> bool {
    bits[bit / 64].load(Relaxed) & (1 << (bit % 64)) != 0
}

pub(crate) fn fill(bits: &[AtomicU64], range: Range<usize>, value: bool) {
    let mut bit = range.start;
    while bit < range.end {
        let end = range.end.min((bit / 64 + 1) * 64);
        let mask = (u64::MAX >> (64 - (end - bit))) << (bit % 64);
        let word = &bits[bit / 64];
        let seen = word.load(Relaxed);
        word.store(if value { seen | mask } else { seen & !mask }, Relaxed);
        bit = end;
    }
}

/// Returns the maximal parts of `range` in which all bits are equal, with that bit.
pub(crate) fn runs(bits: &[AtomicU64], range: Range<usize>) -> impl Iterator<Item = (Range<usize>, bool)> {
    let mut start = range.start;
    core::iter::from_fn(move || {
        if start >= range.end {
            return None;
        }
        let value = get(bits, start);
        let end = next(bits, start..range.end, !value).unwrap_or(range.end);
        let run = start..end;
        start = end;
        Some((run, value))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(bits: &[AtomicU64]) -> Vec<bool> {
        (0..bits.len() * 64).map(|bit| get(bits, bit)).collect()
    }

    proptest! {
        #[test]
        fn bitmaps_match_a_list_of_booleans(
            fills in prop::collection::vec((0..400usize, 0..150usize, any::<bool>()), 0..30),
            from in 0..400usize, len in 0..400usize, count in 1..100usize, align in 0..8u32,
        ) {
            let bits: Vec<AtomicU64> = (0..words(400)).map(|_| AtomicU64::new(0)).collect();
            let mut oracle = vec![false; bits.len() * 64];
            for (start, len, value) in fills {
                let end = (start + len).min(400);
                fill(&bits, start..end, value);
                oracle[start..end].fill(value);
            }
            prop_assert_eq!(plain(&bits), oracle.clone());
            let range = from..(from + len).min(400);
            for value in [false, true] {
                prop_assert_eq!(next(&bits, range.clone(), value), range.clone().find(|bit| oracle[*bit] == value));
            }
            let fits = |start: &usize| {
                start.is_multiple_of(1 << align) && start + count <= range.end && !oracle[*start..start + count].contains(&true)
            };
            prop_assert_eq!(find_clear(&bits, range.clone(), count, 1 << align), range.clone().find(fits));
            let mut again = Vec::new();
            for (run, value) in runs(&bits, range.clone()) {
                prop_assert_eq!(run.start, range.start + again.len());
                again.resize(again.len() + run.len(), value);
            }
            prop_assert_eq!(&again, &oracle[range]);
        }
    }
}
