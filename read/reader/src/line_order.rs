//! Order of the printed lines: all of them in order of time, the last ones, or in reverse.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::os::unix::fs::FileExt;

/// The lines that are printed, and their order.
pub enum Order {
    /// All lines, each at once.
    AsTheyCome,
    /// The last `count` lines, in reverse if `is_reverse`.
    Last { count: usize, is_reverse: bool, lines: VecDeque<(Option<i64>, Vec<u8>)>, has_dropped: bool },
    /// All lines, the last one first. They are kept in a file, each followed by its length, because a trace can be
    /// larger than memory.
    Reverse { file: BufWriter<File>, size_bytes: u64 },
}

/// Size of a stored length, in bytes.
const LEN_BYTES: u64 = size_of::<u64>() as u64;

impl Order {
    /// Returns an empty order.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(is_reverse: bool, count: Option<usize>) -> Result<Order> {
        Ok(match count {
            Some(count) => Order::Last { count, is_reverse, lines: VecDeque::new(), has_dropped: false },
            None if is_reverse => {
                let file = tempfile::tempfile()?;
                Order::Reverse { file: BufWriter::new(file), size_bytes: 0 }
            }
            None => Order::AsTheyCome,
        })
    }

    /// Moves the line that starts at `begin` out of the text, unless it can be printed now. `ns`: time of its event.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn take(&mut self, text: &mut Vec<u8>, begin: usize, ns: Option<i64>) -> Result<()> {
        match self {
            Order::AsTheyCome => return Ok(()),
            Order::Last { count, lines, has_dropped, .. } => {
                lines.push_back((ns, text[begin..].to_vec()));
                if lines.len() > *count {
                    *has_dropped = true;
                    lines.pop_front();
                }
            }
            Order::Reverse { file, size_bytes } => {
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
        match self {
            Order::Last { lines, has_dropped: true, .. } => Some(lines.front()?.0.unwrap_or(i64::MIN)),
            _ => None,
        }
    }

    /// Calls `put` for each line that is kept, until it returns false because the reader is gone.
    ///
    /// # Errors
    /// The file cannot be read, or its last lines cannot be written.
    pub fn finish(self, mut put: impl FnMut(&[u8]) -> bool) -> Result<()> {
        match self {
            Order::AsTheyCome => {}
            Order::Last { is_reverse: false, lines, .. } => {
                let _ = lines.iter().all(|(_, line)| put(line));
            }
            Order::Last { lines, .. } => {
                let _ = lines.iter().rev().all(|(_, line)| put(line));
            }
            Order::Reverse { file, size_bytes: mut end } => {
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
