//! The addresses of an object file's variables.

use std::ops::Range;
use std::path::Path;

use crate::allocators;
use object::{Object, ObjectSegment, ObjectSymbol, ReadCache, SymbolKind};

/// Maximum number of functions that are looked at for one address: aliases, and functions that end before it.
const ALIASES_MAX: usize = 16;

/// A variable or function with an address in the object file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    /// Addresses in the file.
    pub(crate) range: Range<u64>,
}

/// The functions of an object file, sorted by address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Functions {
    all: Vec<Symbol>,
    /// Addresses of those that obtain memory for others.
    allocators: Vec<Range<u64>>,
}

impl Functions {
    /// Reads the functions. `None`: the file is not an object file, or cannot be read.
    pub(crate) fn read(path: &Path) -> Option<Functions> {
        let cache = ReadCache::new(std::fs::File::open(path).ok()?);
        let file = object::File::parse(&cache).ok()?;
        let all = symbols(&file, SymbolKind::Text);
        let allocators = all.iter().filter(|function| allocators::is_function(&function.name));
        let allocators = allocators.map(|function| function.range.clone()).collect();
        Some(Functions { all, allocators })
    }

    /// Returns the addresses of the functions that obtain memory for others.
    pub(crate) fn allocators(&self) -> &[Range<u64>] {
        &self.allocators
    }

    /// Returns the function at an address in the file, and the address's distance from its beginning.
    pub(crate) fn at(&self, address: u64) -> Option<(&str, u64)> {
        let next = self.all.partition_point(|function| function.range.start <= address);
        let function =
            self.all[..next].iter().rev().take(ALIASES_MAX).find(|function| function.range.contains(&address))?;
        Some((&function.name, address - function.range.start))
    }
}

/// Symbols and segments of an object file.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectFile {
    /// Address in the file of the first byte that is loaded.
    pub(crate) base: u64,
    /// Addresses in the file of the parts that it does not contain: `.bss`.
    pub(crate) bss: Vec<Range<u64>>,
    /// Variables, sorted by address.
    pub(crate) variables: Vec<Symbol>,
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
        found.variables = symbols(&file, SymbolKind::Data);
        Some(found)
    }
}

/// Returns the symbols of one kind that have a size, sorted by address and name.
fn symbols<'data>(file: &impl Object<'data>, kind: SymbolKind) -> Vec<Symbol> {
    let mut found = Vec::new();
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        if symbol.kind() == kind && symbol.is_definition() && symbol.size() > 0 {
            let name = String::from_utf8_lossy(symbol.name_bytes().unwrap_or_default()).into_owned();
            let range = symbol.address()..symbol.address().saturating_add(symbol.size());
            found.push(Symbol { name, range });
        }
    }
    found.sort_by(|a: &Symbol, b| (a.range.start, &a.name).cmp(&(b.range.start, &b.name)));
    found.dedup();
    found
}
