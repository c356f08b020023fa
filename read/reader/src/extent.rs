//! Location of a stream's bytes, and the window through which they are read.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use dormouse_ctf::Source;

/// Range of window sizes: large enough to be worth a system call, small enough for the second-level cache.
pub(crate) const WINDOW_BYTES: std::ops::RangeInclusive<usize> = 16 << 10..=128 << 10;

/// A part of a file: a stream in a file of its own, or in an archive.
#[derive(Debug, Clone)]
pub struct Extent {
    file: Arc<File>,
    begin: u64,
    /// Its length when it was opened.
    pub size_bytes: u64,
}

impl Extent {
    /// Creates an extent of `size_bytes` bytes from `begin` on.
    pub fn new(file: Arc<File>, begin: u64, size_bytes: u64) -> Extent {
        Extent { file, begin, size_bytes }
    }

    /// Creates an extent of a whole file.
    ///
    /// # Errors
    /// The length of the file cannot be read.
    pub fn all(file: File) -> std::io::Result<Extent> {
        let size_bytes = file.metadata()?.len();
        Ok(Extent::new(Arc::new(file), 0, size_bytes))
    }

    /// Returns a part of the extent; `None` if it exceeds the extent.
    pub fn part(&self, begin: u64, size_bytes: u64) -> Option<Extent> {
        let is_there = begin.checked_add(size_bytes)? <= self.size_bytes;
        is_there.then(|| Extent { file: Arc::clone(&self.file), begin: self.begin + begin, size_bytes })
    }

    /// Fills `bytes` from `offset` on, and returns the number of bytes that were read.
    ///
    /// # Errors
    /// Reading failed.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let rest_bytes = usize::try_from(self.size_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let size_bytes = bytes.len().min(rest_bytes);
        let mut filled = 0;
        while filled < size_bytes {
            match self.file.read_at(&mut bytes[filled..size_bytes], self.begin + offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Returns the contents, if they are not longer than `len_max`.
    ///
    /// # Errors
    /// They are longer, or reading failed.
    pub fn read_all(&self, len_max: u64) -> std::io::Result<Vec<u8>> {
        if self.size_bytes > len_max {
            return Err(std::io::Error::new(ErrorKind::InvalidData, format!("it is longer than {len_max} bytes")));
        }
        let mut bytes = vec![0; self.size_bytes as usize];
        let count = self.read_at(&mut bytes, 0)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Returns the first `N` bytes, or fewer if the extent is shorter.
    ///
    /// # Errors
    /// Reading failed.
    pub fn start<const N: usize>(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; N];
        let count = self.read_at(&mut bytes, 0)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Returns a window of this size.
    pub fn window(&self, size_bytes: usize) -> Window<'_> {
        self.window_in(size_bytes, Vec::new())
    }

    /// Returns a window of this size that reuses the memory of another.
    pub(crate) fn window_in(&self, size_bytes: usize, mut memory: Vec<u8>) -> Window<'_> {
        if memory.len() > size_bytes {
            // The memory was grown for one long record.
            memory = Vec::new();
        }
        Window { extent: self, size_bytes, offset: 0, memory, len: 0 }
    }

    /// Whether both have the same contents.
    ///
    /// # Errors
    /// Reading failed.
    pub fn is_same(&self, other: &Extent) -> std::io::Result<bool> {
        if self.size_bytes != other.size_bytes {
            return Ok(false);
        }
        let (mut a, mut b) = (vec![0; 64 << 10], vec![0; 64 << 10]);
        let mut offset = 0;
        while offset < self.size_bytes {
            let count = self.read_at(&mut a, offset)?;
            if count == 0 || other.read_at(&mut b, offset)? != count || a[..count] != b[..count] {
                return Ok(false);
            }
            offset += count as u64;
        }
        Ok(true)
    }
}

/// A stream of which a part is in memory. It is not mapped: a process that reads a mapping beyond the end of a
/// shortened file is killed (SIGBUS).
#[derive(Debug)]
pub struct Window<'a> {
    extent: &'a Extent,
    /// Number of bytes that are read at a time.
    size_bytes: usize,
    /// Offset of the part.
    offset: u64,
    /// Buffer; its first `len` bytes are the part. Only memory that was not used before is filled with zeros.
    memory: Vec<u8>,
    /// Size of the part, in bytes.
    len: usize,
}

impl Window<'_> {
    /// Returns its memory, for another window.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        self.memory
    }

    fn read(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<()> {
        let rest_bytes = self.extent.size_bytes.saturating_sub(offset);
        let size_bytes = self.size_bytes.max(size_bytes_min).min(rest_bytes.try_into().unwrap_or(usize::MAX));
        self.offset = offset;
        if self.memory.len() > self.size_bytes && size_bytes <= self.size_bytes {
            // Memory for one long record is given back.
            self.memory = Vec::new();
        }
        if self.memory.len() < size_bytes {
            self.memory.resize(size_bytes, 0);
        }
        let filled = self.extent.read_at(&mut self.memory[..size_bytes], offset);
        self.len = *filled.as_ref().unwrap_or(&0);
        filled.map(|_| ())
    }
}

impl Source for Window<'_> {
    fn size_bytes(&self) -> u64 {
        self.extent.size_bytes
    }

    fn fetch(&mut self, offset: u64, size_bytes_min: usize) -> std::io::Result<&[u8]> {
        let end = self.offset + self.len as u64;
        if offset < self.offset || offset + size_bytes_min as u64 > end {
            self.read(offset, size_bytes_min)?;
        }
        Ok(self.fetched(offset))
    }

    fn fetched(&self, offset: u64) -> &[u8] {
        &self.memory[(offset - self.offset) as usize..self.len]
    }
}
