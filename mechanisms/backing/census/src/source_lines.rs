//! Source lines of instructions, from the debugging information in an object file.
//!
//! Debugging information in a file of its own, and compressed sections, are not read.

use std::path::Path;
use std::sync::Arc;

use gimli::{Dwarf, EndianArcSlice, Error, RunTimeEndian, SectionId};
use object::{Object, ObjectSection, ReadCache};
use serde::Serialize;

use crate::process;

/// A line of source code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceLine {
    /// Name of the function, as the linker has it; `None` if it is not told.
    pub function: Option<String>,
    /// Path of the file, as the compiler has it.
    pub file: String,
    /// Number of the line.
    pub line: u32,
}

/// Debugging information of an object file.
pub(crate) struct SourceLines(addr2line::Context<EndianArcSlice<RunTimeEndian>>);

impl SourceLines {
    /// Reads the debugging information. `None`: the file is not an object file, or cannot be read.
    pub(crate) fn read(path: &Path) -> Option<SourceLines> {
        let cache = ReadCache::new(std::fs::File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let section = |id: SectionId| {
            let section = file.section_by_name(id.name());
            let data = section.and_then(|section| section.uncompressed_data().ok()).unwrap_or_default();
            Ok::<_, Error>(EndianArcSlice::new(Arc::from(&*data), endian))
        };
        addr2line::Context::from_dwarf(Dwarf::load(section).ok()?).ok().map(SourceLines)
    }

    /// Returns the line of the instruction at an address in the file, and the lines where the functions were called that
    /// the compiler has put there instead of a call. Empty without information.
    pub(crate) fn at(&self, address: u64) -> Vec<SourceLine> {
        let mut lines = Vec::new();
        let Ok(mut frames) = self.0.find_frames(address).skip_all_loads() else { return lines };
        while let Ok(Some(frame)) = frames.next() {
            let function = frame.function.as_ref().and_then(|function| function.raw_name().ok());
            let function = function.map(|name| process::printable(name.as_bytes()));
            let place = frame
                .location
                .and_then(|location| Some((process::printable(location.file?.as_bytes()), location.line?)));
            lines.extend(place.map(|(file, line)| SourceLine { function, file, line }));
        }
        lines
    }
}

impl std::fmt::Debug for SourceLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceLines").finish_non_exhaustive()
    }
}
