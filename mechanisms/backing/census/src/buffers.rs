//! Buffers on the zero page: their names, the largest part of each that was the zero page, and whether that exceeds the
//! limits.

use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;

use crate::census::Allocation;
use crate::{Census, CodePlace, Mapping, Name, ZeroVariable};

/// Maximum number of buffers that are kept, the largest.
const COUNT_MAX: usize = 1000;

/// The name of a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum BufferName {
    /// A variable.
    Variable {
        /// Name of the variable, from the symbol table.
        name: String,
        /// Path of the object that contains it.
        path: PathBuf,
    },
    /// A mapping, without its variables.
    Mapping {
        /// Name of the mapping.
        name: Name,
    },
    /// Memory without a name.
    Allocation {
        /// Place in the program behind the call that obtained it from the kernel: of a memory allocator, or of `mmap`.
        by: CodePlace,
    },
}

/// Limits for reporting a buffer as read from the zero page. Both must be reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limits {
    /// Bytes of this buffer that are the zero page, in percent of all bytes that its process has touched.
    pub share_percent: f64,
    /// Number of bytes of this buffer that are the zero page.
    pub size_bytes: u64,
}

impl Default for Limits {
    /// Returns 10 % and 64 KiB: the memory that a loader and a language's own data read as zeroes stays below.
    fn default() -> Limits {
        Limits { share_percent: 10.0, size_bytes: 64 << 10 }
    }
}

/// A variable or mapping that was the zero page, wholly or partly.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Buffer {
    /// Id of the process.
    pub pid: u32,
    /// Name of the process.
    pub command: String,
    /// The variable or mapping.
    pub what: BufferName,
    /// Address of the buffer.
    pub address: u64,
    /// Size of the buffer, in bytes.
    pub size: u64,
    /// Largest number of its bytes that were the zero page.
    pub zero: u64,
    /// Time of that census, in milliseconds from the command's start.
    pub time_ms: f64,
    /// Number of its bytes that were the zero page in the last census.
    pub zero_at_end: u64,
    /// Whether most of it was the huge zero page.
    pub is_huge: bool,
    /// Number of bytes that the process had touched when `zero` was counted: on the zero page and in memory of its own.
    pub touched: u64,
    /// `zero` in percent of `touched`.
    pub share_percent: f64,
    /// Whether it reaches the limits.
    pub is_found: bool,
    /// Instruction that read the first of these bytes, if this was requested and is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_read: Option<CodePlace>,
}

impl Buffer {
    fn is_same(&self, old: &Buffer) -> bool {
        match (&old.what, &self.what) {
            (BufferName::Variable { .. }, BufferName::Variable { .. }) => {
                old.address == self.address && old.what == self.what
            }
            // A mapping grows and shrinks, and may get another name later.
            (BufferName::Mapping { .. }, BufferName::Mapping { .. }) => {
                old.address < self.address + self.size && self.address < old.address + old.size
            }
            (BufferName::Allocation { by: old_by }, BufferName::Allocation { by }) => {
                old_by == by && old.address == self.address
            }
            _ => false,
        }
    }
}

/// The buffers in one process's memory, over all censuses.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Vec<Buffer>);

impl Buffers {
    /// Adds the buffers of a census, and updates known ones. Returns whether a buffer reaches the limits now.
    pub(crate) fn enter(&mut self, census: &Census, time_ms: f64, limits: &Limits) -> bool {
        let mut has_found = false;
        self.0.iter_mut().for_each(|buffer| buffer.zero_at_end = 0);
        for new in on_zero_page(census, time_ms, limits) {
            has_found |= new.is_found;
            match self.0.iter_mut().find(|old| new.is_same(old)) {
                // A buffer that reaches the limits is worse than one with more bytes that does not.
                Some(old) if (new.is_found, new.zero) > (old.is_found, old.zero) => {
                    *old = Buffer { first_read: old.first_read.take(), ..new };
                }
                Some(old) => old.zero_at_end = new.zero,
                None => self.0.push(new),
            }
        }
        has_found
    }

    /// Sets the first reader of each buffer in which a census has found the zero page, as far as `reader` knows it from the
    /// addresses on the zero page.
    pub(crate) fn explain(&mut self, census: &Census, mut reader: impl FnMut(Vec<Range<u64>>) -> Option<CodePlace>) {
        for buffer in self.0.iter_mut().filter(|buffer| buffer.first_read.is_none() && buffer.zero_at_end > 0) {
            let end = buffer.address + buffer.size;
            let inside = census.zero_runs.iter().map(|run| run.start.max(buffer.address)..run.end.min(end));
            buffer.first_read = reader(inside.filter(|run| !run.is_empty()).collect());
        }
    }

    /// Adds another process's buffers, and keeps the worst ones.
    pub(crate) fn append(&mut self, other: Buffers) {
        self.0.extend(other.0);
        self.0.sort_by(|a, b| (b.is_found, b.zero, a.pid, a.address).cmp(&(a.is_found, a.zero, b.pid, b.address)));
        self.0.truncate(COUNT_MAX);
    }

    pub(crate) fn into_vec(self) -> Vec<Buffer> {
        self.0
    }
}

/// Returns variables on the zero page, and the rest of each mapping on the zero page.
fn on_zero_page(census: &Census, time_ms: f64, limits: &Limits) -> Vec<Buffer> {
    let touched = census.total.touched();
    let buffer = |what, address, size, zero, is_huge| {
        let share_percent = 100.0 * zero as f64 / touched.max(1) as f64;
        Buffer {
            pid: census.pid,
            command: census.command.clone(),
            what,
            address,
            size,
            zero,
            time_ms,
            zero_at_end: zero,
            is_huge,
            touched,
            share_percent,
            is_found: zero >= limits.size_bytes && share_percent >= limits.share_percent,
            first_read: None,
        }
    };
    let mut found = Vec::new();
    let is_huge = |mapping: &Mapping| 2 * mapping.pages.huge_zero > mapping.pages.zero;
    // The first variable of an object may begin in the preceding page, which is filled from the file.
    let is_in = |variable: &ZeroVariable, mapping: &Mapping| {
        variable.address < mapping.end && mapping.start < variable.address + variable.size
    };
    for variable in &census.zero_variables {
        let what = BufferName::Variable { name: variable.name.clone(), path: variable.path.clone() };
        let is_huge = census.mappings.iter().any(|mapping| is_in(variable, mapping) && is_huge(mapping));
        found.push(buffer(what, variable.address, variable.size, variable.zero, is_huge));
    }
    for mapping in census.mappings.iter().filter(|mapping| mapping.pages.zero > 0) {
        let inside = census.zero_variables.iter().filter(|variable| is_in(variable, mapping));
        let named: u64 = inside.map(|variable| variable.zero).sum();
        let mut zero = mapping.pages.zero.saturating_sub(named);
        let is_nameless = matches!(&mapping.name, Name::Anonymous { name } if name.is_empty());
        for Allocation { range, place } in census.allocations.iter().filter(|_| is_nameless) {
            let (start, end) = (range.start.max(mapping.start), range.end.min(mapping.end));
            let of_run = |run: &Range<u64>| run.end.min(end).saturating_sub(run.start.max(start));
            let inside: u64 = census.zero_runs.iter().map(of_run).sum();
            if start < end && inside > 0 {
                let what = BufferName::Allocation { by: place.clone() };
                found.push(buffer(what, start, end - start, inside, is_huge(mapping)));
                zero = zero.saturating_sub(inside);
            }
        }
        // Less than a page is the rest of a page in which a variable begins or ends.
        if zero >= dormouse_backing::os_page_size() as u64 {
            let what = BufferName::Mapping { name: mapping.name.clone() };
            found.push(buffer(what, mapping.start, mapping.end - mapping.start, zero, is_huge(mapping)));
        }
    }
    found
}

/// Returns the name of the variable or mapping with most bytes on the zero page.
pub(crate) fn largest_on_zero_page(census: &Census) -> Option<BufferName> {
    let buffers = on_zero_page(census, 0.0, &Limits::default());
    buffers.into_iter().max_by_key(|buffer| buffer.zero).map(|buffer| buffer.what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;

    const KIB: u64 = 1 << 10;

    /// Returns a census of a process with a variable in its `.bss` and a mapping without a name, with these numbers of
    /// bytes on the zero page.
    fn census(variable: u64, mapping: u64, small: u64) -> Census {
        let mapped = |start: u64, name: Name, zero: u64| Mapping {
            start,
            end: start + 1024 * KIB,
            access: "rw-p".into(),
            name,
            pages: Pages { zero, ..Pages::default() },
        };
        let path = PathBuf::from("/bin/codec");
        let frame =
            ZeroVariable { name: "frame".into(), path: path.clone(), address: 4096, size: 512 * KIB, zero: variable };
        Census {
            pid: 7,
            command: "codec".into(),
            mappings: vec![
                mapped(0, Name::Bss { path }, variable),
                mapped(1 << 30, Name::Anonymous { name: String::new() }, mapping),
            ],
            total: Pages { zero: variable + mapping, small, ..Pages::default() },
            zero_variables: if variable > 0 { vec![frame] } else { Vec::new() },
            sees_zero: true,
            unseen: Vec::new(),
            zero_runs: Vec::new(),
            allocations: Vec::new(),
        }
    }

    #[test]
    fn the_largest_sample_and_the_last_are_kept() {
        let (mut buffers, limits) = (Buffers::default(), Limits::default());
        buffers.enter(&census(64 * KIB, 4 * KIB, 0), 1.0, &limits);
        buffers.enter(&census(512 * KIB, 8 * KIB, 512 * KIB), 2.0, &limits);
        buffers.enter(&census(0, 8 * KIB, 1024 * KIB), 3.0, &limits);
        let mut all = Buffers::default();
        all.append(buffers);
        let found = all.into_vec();
        let told: Vec<_> = found.iter().map(|b| (b.zero, b.zero_at_end, b.time_ms, b.is_found)).collect();
        assert_eq!(told, [(512 * KIB, 0, 2.0, true), (8 * KIB, 8 * KIB, 2.0, false)]);
        assert!(matches!(&found[0].what, BufferName::Variable { name, .. } if name == "frame"));
        assert!((found[0].share_percent - 100.0 * 512.0 / 1032.0).abs() < 1e-9);
    }

    #[test]
    fn a_buffer_is_found_only_above_both_limits() {
        for (zero, small, is_found) in
            [(64 * KIB, 0, true), (60 * KIB, 0, false), (64 * KIB, 576 * KIB, true), (64 * KIB, 580 * KIB, false)]
        {
            let mut buffers = Buffers::default();
            buffers.enter(&census(zero, 0, small), 0.0, &Limits::default());
            assert_eq!(buffers.into_vec()[0].is_found, is_found, "{zero} beside {small}");
        }
    }

    #[test]
    fn a_growing_mapping_stays_the_same_buffer() {
        let mut buffers = Buffers::default();
        let mut grown = census(0, 64 * KIB, 0);
        buffers.enter(&grown, 0.0, &Limits::default());
        grown.mappings[1].start -= 4096;
        grown.mappings[1].pages.zero = 128 * KIB;
        buffers.enter(&grown, 1.0, &Limits::default());
        assert_eq!(buffers.into_vec().iter().map(|buffer| buffer.zero).collect::<Vec<_>>(), [128 * KIB]);
    }
}
