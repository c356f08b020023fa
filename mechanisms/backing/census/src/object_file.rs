//! The addresses of an object file's variables.

use std::ops::Range;
use std::path::Path;

use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};

/// A variable with an address in the object file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// Addresses in the file.
    pub(crate) range: Range<u64>,
}

/// Symbols and segments of an object file.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectFile {
    /// Address in the file of the first byte that is loaded.
    pub(crate) base: u64,
    /// Addresses in the file of the parts that it does not contain: `.bss`.
    pub(crate) bss: Vec<Range<u64>>,
    /// Variables, sorted by address.
    pub(crate) variables: Vec<Variable>,
}

impl ObjectFile {
    /// Reads symbols and segments. `None`: the file is not an object file, or cannot be read.
    pub(crate) fn read(path: &Path) -> Option<ObjectFile> {
        let cache = ReadCache::new(std::fs::File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let mut found = ObjectFile { base: u64::MAX, ..ObjectFile::default() };
        for segment in file.segments() {
            // Segments are mapped from the beginning of a page, so the file offset is subtracted.
            found.base = found.base.min(segment.address().saturating_sub(segment.file_range().0));
            let (start, size) = (segment.address(), segment.size());
            let (_, in_file) = segment.file_range();
            if size > in_file {
                found.bss.push(start.saturating_add(in_file)..start.saturating_add(size));
            }
        }
        if found.base == u64::MAX {
            return None;
        }
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            if symbol.kind() == SymbolKind::Data && symbol.is_definition() && symbol.size() > 0 {
                let name = String::from_utf8_lossy(symbol.name_bytes().unwrap_or_default()).into_owned();
                let range = symbol.address()..symbol.address().saturating_add(symbol.size());
                found.variables.push(Variable { name, range });
            }
        }
        found.variables.sort_by(|a, b| (a.range.start, &a.name).cmp(&(b.range.start, &b.name)));
        found.variables.dedup();
        Some(found)
    }
}
