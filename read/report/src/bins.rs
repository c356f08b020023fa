//! Data that tables and comparisons share: bins of time and durations, and nodes of call trees.

/// Number of bins in the overview of the whole time.
pub(crate) const DENSITY_BINS: usize = 512;
/// Bins per factor of two in durations.
pub(crate) const BINS_AN_OCTAVE: u64 = 4;

/// A node of a call tree: parent (its index plus 1; 0 for none), name, count, total time, own time.
pub(crate) type Node = (u32, u32, u64, u128, u128);

/// Returns the bin of a duration.
pub(crate) fn bin(duration: u64) -> u64 {
    let duration = duration.max(1);
    // The page computes the bounds of bins with the same formula.
    ((duration as f64).log2() * BINS_AN_OCTAVE as f64).floor() as u64
}
