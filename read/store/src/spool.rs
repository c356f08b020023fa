//! Temporary storage of files that are being made: one unnamed file that holds the pieces of all of them. Only one file
//! is open, however many are made at a time, and a killed process leaves nothing behind.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a file that are buffered before they are written.
const PIECE_BYTES: usize = 64 << 10;

#[derive(Debug, Clone)]
pub(crate) struct Spool(Arc<(File, AtomicU64)>);

impl Spool {
    /// Creates the unnamed file in the directory for temporary files (`TMPDIR`).
    pub(crate) fn new() -> std::io::Result<Spool> {
        Ok(Spool(Arc::new((tempfile::tempfile()?, AtomicU64::new(0)))))
    }

    /// Returns a new, empty file in the spool.
    pub(crate) fn file(&self) -> Spooled {
        Spooled { spool: self.clone(), pieces: Vec::new(), rest: Vec::new() }
    }
}

/// A file that is being made.
#[derive(Debug)]
pub(crate) struct Spooled {
    spool: Spool,
    /// Begin and length of each piece in the unnamed file, in bytes.
    pieces: Vec<(u64, usize)>,
    rest: Vec<u8>,
}

impl Spooled {
    fn spill(&mut self) -> std::io::Result<()> {
        let Spool(spool) = &self.spool;
        // Relaxed: the counter publishes no other data. Only the thread that gets a range writes it.
        let begin = spool.1.fetch_add(self.rest.len() as u64, Ordering::Relaxed);
        spool.0.write_all_at(&self.rest, begin)?;
        self.pieces.push((begin, self.rest.len()));
        self.rest.clear();
        Ok(())
    }

    /// Returns the whole content.
    pub(crate) fn read(self) -> std::io::Result<Vec<u8>> {
        let size_bytes = self.pieces.iter().map(|(_, size_bytes)| size_bytes).sum::<usize>();
        let mut bytes = vec![0; size_bytes];
        let mut at = 0;
        for (begin, size_bytes) in self.pieces {
            self.spool.0.0.read_exact_at(&mut bytes[at..at + size_bytes], begin)?;
            at += size_bytes;
        }
        bytes.extend(self.rest);
        Ok(bytes)
    }
}

impl Write for Spooled {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.rest.extend(bytes);
        if self.rest.len() >= PIECE_BYTES {
            self.spill()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
