//! Where the bytes of a stream come from.

/// Where the bytes of a stream come from.
pub trait Source {
    /// How many there are, or were when the stream was opened.
    fn size_bytes(&self) -> u64;

    /// Those from `offset` on: at least `size_bytes_min`, unless the end comes before, and as many more as are at hand.
    /// `offset` is below [`Source::size_bytes`]; where the end has come nearer since, there may be none.
    ///
    /// # Errors
    /// What the system says.
    fn fetch(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<&[u8]>;

    /// What the last [`Source::fetch`] has given, from `offset` on.
    fn fetched(&self, offset: u64) -> &[u8];
}

impl Source for &[u8] {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }
    fn fetch(&mut self, offset: u64, _: usize) -> std::io::Result<&[u8]> {
        Ok(&self[offset as usize..])
    }
    fn fetched(&self, offset: u64) -> &[u8] {
        &self[offset as usize..]
    }
}
