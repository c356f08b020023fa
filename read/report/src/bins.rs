//! What tables and comparisons have in common: bins of durations, and names in call trees.

/// Parts of a factor of two in durations.
pub(crate) const BINS_AN_OCTAVE: u64 = 4;

/// A name in call trees: parent (0: none; plus 1), name, count, total, own time.
pub(crate) type Node = (u32, u32, u64, u128, u128);

/// In which part of all durations one is.
pub(crate) fn bin(duration: u64) -> u64 {
    let duration = duration.max(1);
    // As the page counts, where the bounds are drawn.
    ((duration as f64).log2() * BINS_AN_OCTAVE as f64).floor() as u64
}
