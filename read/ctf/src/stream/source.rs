//! Sources of a stream's bytes.

/// A source of a stream's bytes.
pub trait Source {
    /// Returns the size of the stream in bytes, as it was when the stream was opened.
    fn size_bytes(&self) -> u64;

    /// Returns the bytes from `offset` on: at least `size_bytes_min` unless the stream ends before, and as many more as
    /// are available. `offset` is below [`Source::size_bytes`]. If the stream was shortened since, there may be no
    /// bytes.
    ///
    /// # Errors
    /// Returns the error of the system.
    fn fetch(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<&[u8]>;

    /// Returns bytes of the last [`Source::fetch`], from `offset` on.
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
