//! Slices that overlap are cut, so that each lies in another or outside of it.
//!
//! ```text
//!   as they ran    a ├─────────┤          as they are written   a ├─────────┤
//!                  b      ├─────────┤                           b      ├────┤├────┤ continued
//! ```

/// The open slices of each track, the innermost last: what they are called, and what is kept of them.
#[derive(Debug)]
pub(crate) struct Nest<T>(Vec<Vec<(u64, T)>>);

impl<T> Default for Nest<T> {
    fn default() -> Nest<T> {
        Nest(Vec::new())
    }
}

impl<T> Nest<T> {
    /// The open slices of a track.
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

    /// Ends a slice. Gives what was kept of it, and those that have begun within it and are open: they are cut here.
    pub(crate) fn end(&mut self, track: u32, id: u64) -> Option<(T, &mut [(u64, T)])> {
        let open = self.open(track);
        let index = open.iter().rposition(|(other, _)| *other == id)?;
        let (_, kept) = open.remove(index);
        Some((kept, &mut open[index..]))
    }
}
