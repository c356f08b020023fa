//! Cuts slices that overlap, so that each one is within another or outside of it.
//!
//! ```text
//!   as they ran    a ├─────────┤          as they are written   a ├─────────┤
//!                  b      ├─────────┤                           b      ├────┤├────┤ continued
//! ```
//!
//! At most [`CONTINUED_MAX`] of the slices that are cut begin again, the outermost ones: otherwise the output would grow
//! with the square of the number of overlapping slices. The others are cut for good, and their ends are instants.

/// Maximum number of slices that begin again where one ends. Threads that do more things at once have a key for each of
/// them.
pub(crate) const CONTINUED_MAX: usize = 32;
/// Number of slices whose memory a track keeps when none is open.
const OPEN_KEPT: usize = 64;

/// Number and data of the open slices of each track, the innermost last.
#[derive(Debug)]
pub(crate) struct Nest<T>(Vec<Vec<(u64, T)>>);

impl<T> Default for Nest<T> {
    fn default() -> Nest<T> {
        Nest(Vec::new())
    }
}

impl<T> Nest<T> {
    /// Returns the open slices of a track.
    pub(crate) fn open(&mut self, track: u32) -> &mut Vec<(u64, T)> {
        let index = track as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, Vec::new);
        }
        &mut self.0[index]
    }

    pub(crate) fn begin(&mut self, track: u32, id: u64, kept: T) {
        self.open(track).push((id, kept));
    }

    /// Ends a slice if it is the innermost one of its track. Returns whether it was.
    #[inline]
    pub(crate) fn end_innermost(&mut self, track: u32, id: u64) -> bool {
        let Some(open) = self.0.get_mut(track as usize) else { return false };
        let has_ended = open.pop_if(|(innermost, _)| *innermost == id).is_some();
        if open.is_empty() && open.capacity() > OPEN_KEPT {
            *open = Vec::new();
        }
        has_ended
    }

    /// Ends a slice. Returns the number of slices that are cut for good, and the slices that begin again; `None` if it
    /// was itself cut for good.
    pub(crate) fn end(&mut self, track: u32, id: u64) -> Option<(usize, &[(u64, T)])> {
        let open = self.open(track);
        let index = open.iter().rposition(|(other, _)| *other == id)?;
        open.remove(index);
        let dropped = (open.len() - index).saturating_sub(CONTINUED_MAX);
        open.truncate(open.len() - dropped);
        if open.is_empty() && open.capacity() > OPEN_KEPT {
            *open = Vec::new();
        }
        Some((dropped, &open[index..]))
    }
}
