//! The order in which lines are printed: in the order of time, only the last ones, or in reverse.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::os::unix::fs::FileExt;

/// Lines that are held back, and the order in which they are printed.
pub struct LineOrder(Lines);

enum Lines {
    /// No line is held back.
    Unchanged,
    /// The last `count` lines, each with the time of its event in nanoseconds; in reverse if `is_reverse`.
    Last { count: usize, is_reverse: bool, lines: VecDeque<(Option<i64>, Vec<u8>)>, has_dropped: bool },
    /// All lines, the last one first. They are kept in a file, each followed by its length, because a trace can be
    /// larger than memory.
    Reverse { file: BufWriter<File>, size_bytes: u64 },
}

/// Size of a stored length, in bytes.
const LEN_BYTES: u64 = size_of::<u64>() as u64;

impl LineOrder {
    /// Returns the order of the last `count` lines, or of all lines.
    ///
    /// # Errors
    /// All lines are to be printed in reverse, and the temporary file for them cannot be created.
    pub fn new(is_reverse: bool, count: Option<usize>) -> Result<LineOrder> {
        Ok(LineOrder(match count {
            Some(count) => Lines::Last { count, is_reverse, lines: VecDeque::new(), has_dropped: false },
            None if is_reverse => Lines::Reverse { file: BufWriter::new(tempfile::tempfile()?), size_bytes: 0 },
            None => Lines::Unchanged,
        }))
    }

    /// Moves the line that starts at `begin` out of the text, unless it can be printed now. `ns`: time of its event.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub fn take(&mut self, text: &mut Vec<u8>, begin: usize, ns: Option<i64>) -> Result<()> {
        match &mut self.0 {
            Lines::Unchanged => return Ok(()),
            Lines::Last { count, lines, has_dropped, .. } => {
                lines.push_back((ns, text[begin..].to_vec()));
                if lines.len() > *count {
                    *has_dropped = true;
                    lines.pop_front();
                }
            }
            Lines::Reverse { file, size_bytes } => {
                let line = &text[begin..];
                file.write_all(line)?;
                file.write_all(&(line.len() as u64).to_le_bytes())?;
                *size_bytes += line.len() as u64 + LEN_BYTES;
            }
        }
        text.truncate(begin);
        Ok(())
    }

    /// Returns the time of the first line that is kept, if earlier lines were dropped.
    pub fn first_ns(&self) -> Option<i64> {
        match &self.0 {
            Lines::Last { lines, has_dropped: true, .. } => Some(lines.front()?.0.unwrap_or(i64::MIN)),
            _ => None,
        }
    }

    /// Calls `put` for each line that is kept, until it returns false because the reader is gone.
    ///
    /// # Errors
    /// The temporary file cannot be read, or its last lines cannot be written.
    pub fn finish(self, mut put: impl FnMut(&[u8]) -> bool) -> Result<()> {
        match self.0 {
            Lines::Unchanged => {}
            Lines::Last { is_reverse: false, lines, .. } => {
                let _ = lines.iter().all(|(_, line)| put(line));
            }
            Lines::Last { lines, .. } => {
                let _ = lines.iter().rev().all(|(_, line)| put(line));
            }
            Lines::Reverse { file, size_bytes: mut end } => {
                let file = file.into_inner()?;
                let mut line = Vec::new();
                while end > 0 {
                    let mut len = [0; LEN_BYTES as usize];
                    file.read_exact_at(&mut len, end - LEN_BYTES)?;
                    let len = u64::from_le_bytes(len);
                    end -= LEN_BYTES + len;
                    line.resize(len as usize, 0);
                    file.read_exact_at(&mut line, end)?;
                    if !put(&line) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}
