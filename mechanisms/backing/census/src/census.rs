//! The census: each mapping, by a meaningful name, and the state of its pages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dormouse_backing::maps::{self, Map};
use dormouse_backing::page_table::{KernelInterface, PageKind, PageTable, Run};
use dormouse_backing::{huge_page_size, os_page_size};
use serde::Serialize;

use crate::PagesError;
use crate::object_file::{Functions, ObjectFile};
use crate::source_lines::{SourceLine, SourceLines};
use crate::{allocators, process, stacks};

/// The name of a mapping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Name {
    /// The part of an object that its file contains: code, constants, initialised variables.
    Object {
        /// Path of the object.
        path: PathBuf,
        /// Access rights, such as `r-x`.
        access: String,
    },
    /// The part of an object's memory for variables that begin as zeroes.
    Bss {
        /// Path of the object.
        path: PathBuf,
    },
    /// The C library's heap, in so far as it grows by `brk`.
    Heap,
    /// A thread's stack.
    Stack {
        /// Id of the thread.
        thread: u32,
        /// Name of the thread.
        name: String,
    },
    /// A mapped file.
    File {
        /// Path of the file.
        path: PathBuf,
    },
    /// Memory that is shared with other processes and is in no file system: memfd, System V, anonymous.
    Shared {
        /// Kernel's name of the memory.
        name: String,
    },
    /// Memory of this process only, with the name that the process gave it (`PR_SET_VMA_ANON_NAME`) or none.
    Anonymous {
        /// Name that the process gave it, or empty.
        name: String,
    },
    /// Mappings of the kernel, such as the vdso.
    Kernel {
        /// Kernel's name of the mapping.
        name: String,
    },
}

/// Bytes of a mapping, or of all mappings, by kind of page. The sum of `unbacked`, `zero`, `small`, `huge` and
/// `swapped` is the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Pages {
    /// Bytes without a page: the next access faults.
    pub unbacked: u64,
    /// Bytes on the zero page, small or huge: read and never written.
    pub zero: u64,
    /// The part of `zero` on the huge zero page.
    pub huge_zero: u64,
    /// Bytes in small pages.
    pub small: u64,
    /// Bytes in huge pages.
    pub huge: u64,
    /// Bytes that were swapped out.
    pub swapped: u64,
    /// The part of `small` and `huge` that belongs to a file, or that other processes may have mapped too.
    pub shared: u64,
}

impl Pages {
    fn enter(&mut self, run: &Run) {
        let bytes = run.range.end - run.range.start;
        let is = |kind| run.kind.is(kind);
        self.unbacked = self.unbacked.saturating_sub(bytes);
        match () {
            () if is(PageKind::ZERO) => {
                self.zero += bytes;
                self.huge_zero += if is(PageKind::HUGE) { bytes } else { 0 };
            }
            () if is(PageKind::SWAPPED) && !is(PageKind::PRESENT) => self.swapped += bytes,
            () => {
                let of_size = if is(PageKind::HUGE) { &mut self.huge } else { &mut self.small };
                *of_size += bytes;
                self.shared += if is(PageKind::FILE) { bytes } else { 0 };
            }
        }
    }

    /// Returns the number of bytes in memory.
    pub fn resident(&self) -> u64 {
        self.small + self.huge
    }

    pub(crate) fn add(&mut self, other: &Pages) {
        let Pages { unbacked, zero, huge_zero, small, huge, swapped, shared } = other;
        self.unbacked += unbacked;
        self.zero += zero;
        self.huge_zero += huge_zero;
        self.small += small;
        self.huge += huge;
        self.swapped += swapped;
        self.shared += shared;
    }
}

/// A mapping, and the pages behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mapping {
    /// Address of its first byte.
    pub start: u64,
    /// Address after its last byte.
    pub end: u64,
    /// Access rights in the kernel's format, such as `rw-p`.
    pub access: String,
    /// Name of the mapping.
    pub name: Name,
    /// Bytes by kind of page.
    pub pages: Pages,
}

/// A variable whose pages are the zero page, wholly or partly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ZeroVariable {
    /// Name of the variable, from the symbol table.
    pub name: String,
    /// Path of the object that contains it.
    pub path: PathBuf,
    /// Address in the process.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Number of its bytes that are the zero page.
    pub zero: u64,
}

/// A place in a program's code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CodePlace {
    /// Name of the function, from the symbol table; `None` if the object does not name it.
    pub function: Option<String>,
    /// Distance from the function's beginning, or the address in the object's file.
    pub offset: u64,
    /// Path of the object.
    pub path: PathBuf,
    /// Source line, and those where inlined functions were called, the innermost first; empty if the object has no debugging
    /// information.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<SourceLine>,
}

/// The state of a process's memory, at about one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Census {
    /// Id of the process.
    pub pid: u32,
    /// Name of the process.
    pub command: String,
    /// Mappings of the process, by address.
    #[serde(rename = "areas")]
    pub mappings: Vec<Mapping>,
    /// Sum over all mappings.
    pub total: Pages,
    /// Variables on the zero page, those with most bytes on it first.
    pub zero_variables: Vec<ZeroVariable>,
    /// Whether the zero page is distinguished from other memory; if not, it is counted as other memory.
    pub sees_zero: bool,
    /// Limits of this census, one line each.
    pub unseen: Vec<String>,
    /// Addresses on the zero page, ascending.
    #[serde(skip)]
    pub(crate) zero_runs: Vec<Range<u64>>,
    /// Addresses that were obtained by known functions, and do not overlap.
    #[serde(skip)]
    pub(crate) allocations: Vec<Allocation>,
}

/// Addresses that a function has obtained from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) range: Range<u64>,
    /// Place behind the call of that function.
    pub(crate) place: CodePlace,
}

impl Census {
    /// Takes the census of a process of the same user, or as root of any user. The process continues to run: memory
    /// that it maps or gives back during the census may be included or not. The page table is read by the first
    /// of these interfaces that the kernel supports.
    ///
    /// # Errors
    /// See [`PagesError`].
    pub fn of(pid: u32, interfaces: &[KernelInterface]) -> Result<Census, PagesError> {
        Surveyor::new(interfaces).census(pid, pid, Names::All)
    }

    /// Returns the mappings as rows, by address. Neighbours with the same name are one row.
    pub(crate) fn rows(&self, name: impl Fn(&Mapping) -> String) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for mapping in &self.mappings {
            let (name, size) = (name(mapping), mapping.end - mapping.start);
            match rows.last_mut().filter(|last| last.name == name) {
                Some(last) => {
                    last.addresses.end = mapping.end;
                    last.size += size;
                    last.pages.add(&mapping.pages);
                }
                None => rows.push(Row { name, addresses: mapping.start..mapping.end, size, pages: mapping.pages }),
            }
        }
        rows
    }
}

/// A mapping, or neighbours with one name, as a row for display.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) addresses: Range<u64>,
    /// Number of mapped bytes. There may be gaps between the addresses.
    pub(crate) size: u64,
    pub(crate) pages: Pages,
}

impl Pages {
    /// Returns the number of bytes that the process itself has touched: read or written, and neither a file's nor
    /// shared with other processes.
    pub fn touched(&self) -> u64 {
        self.zero + self.resident().saturating_sub(self.shared)
    }

    /// Returns the number of entries of the page table that lead to the zero page, small or huge.
    pub fn zero_entries(&self) -> u64 {
        (self.zero - self.huge_zero) / os_page_size() as u64 + self.huge_zero / huge_page_size() as u64
    }

    /// Returns the number of page faults for the touched bytes, without read-ahead: one for each page, small or huge.
    pub(crate) fn touches(&self) -> u64 {
        let huge = self.huge.min(self.resident().saturating_sub(self.shared)) + self.huge_zero;
        let small = self.touched().saturating_sub(huge);
        small / os_page_size() as u64 + huge / huge_page_size() as u64
    }
}

/// Precision of the names of mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// All names.
    All,
    /// All names except the owners of stacks, for which each thread must be examined.
    ButStacks,
}

/// Takes several censuses, and reads each object file only once.
#[derive(Debug)]
pub(crate) struct Surveyor {
    interfaces: Vec<KernelInterface>,
    /// Interface by which the last census was made.
    pub(crate) interface: Option<KernelInterface>,
    files: BTreeMap<(PathBuf, u64), Option<Rc<ObjectFile>>>,
    functions: BTreeMap<(PathBuf, u64), Option<Functions>>,
    lines: BTreeMap<(PathBuf, u64), Option<SourceLines>>,
    /// Total time spent reading object files.
    pub(crate) reading: Duration,
}

impl Surveyor {
    pub(crate) fn new(interfaces: &[KernelInterface]) -> Surveyor {
        Surveyor {
            interfaces: interfaces.into(),
            interface: None,
            files: BTreeMap::new(),
            functions: BTreeMap::new(),
            lines: BTreeMap::new(),
            reading: Duration::ZERO,
        }
    }

    /// Takes the census of process `pid`, whose memory is read through `task`, one of its threads: the first thread may
    /// have ended before the others.
    ///
    /// # Errors
    /// See [`PagesError`].
    pub(crate) fn census(&mut self, pid: u32, task: u32, how: Names) -> Result<Census, PagesError> {
        let failed = |error| PagesError::of_backing(pid, error);
        let table = PageTable::by(Some(task), &self.interfaces).map_err(failed)?;
        self.interface = Some(table.interface());
        let maps = maps::read(task).map_err(|error| PagesError::of_io(pid, error))?;
        if maps.is_empty() {
            // A kernel thread, or one that has ended and was not waited for yet.
            return Err(PagesError::NoMemory(pid));
        }
        let objects = self.objects(task, &maps);
        let mut stacks = if how == Names::All { stacks::of(pid) } else { Vec::new() };
        let (mut mappings, mut zero, mut total) = (Vec::new(), Vec::new(), Pages::default());
        for map in &maps {
            let mut pages = Pages { unbacked: map.range.end - map.range.start, ..Pages::default() };
            // The vsyscall page is in no process's page table.
            if map.range.end <= i64::MAX as u64 {
                let walked = table.runs(map.range.clone(), &mut |run| {
                    pages.enter(&run);
                    if run.kind.is(PageKind::ZERO) {
                        zero.push(run.range);
                    }
                });
                walked.map_err(failed)?;
            }
            let access = String::from_utf8_lossy(&map.access).into_owned();
            let name = name(map, &objects, &mut stacks);
            total.add(&pages);
            mappings.push(Mapping { start: map.range.start, end: map.range.end, access, name, pages });
        }
        let command = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let command = process::printable(command.trim_ascii_end());
        let unseen = unseen(table.interface(), &mappings);
        let zero_variables = objects.variables_in(&zero);
        let sees_zero = table.interface().sees_zero();
        Ok(Census {
            pid,
            command,
            mappings,
            total,
            zero_variables,
            sees_zero,
            unseen,
            zero_runs: zero,
            allocations: Vec::new(),
        })
    }

    /// Returns the place in the code of a process at an address; `None` if no object is mapped there.
    pub(crate) fn place(&mut self, task: u32, address: u64) -> Option<CodePlace> {
        let maps = maps::read(task).ok()?;
        let map = maps.iter().find(|map| map.range.contains(&address))?;
        let path = map.path()?;
        let (bias, _) = self.objects(task, &maps).0.remove(&path)??;
        let start = Instant::now();
        let read = || read_object(task, map, &path, Functions::read);
        let functions = self.functions.entry((path.clone(), map.inode)).or_insert_with(read);
        let read = || read_object(task, map, &path, SourceLines::read);
        let lines = self.lines.entry((path.clone(), map.inode)).or_insert_with(read);
        let offset = address.wrapping_sub(bias);
        let lines = lines.as_ref().map(|lines| lines.at(offset)).unwrap_or_default();
        self.reading += start.elapsed();
        let found = functions.as_ref().and_then(|functions| functions.at(offset));
        let (function, offset) = found.map_or((None, offset), |(name, offset)| (Some(name.to_string()), offset));
        Some(CodePlace { function, offset, path, lines })
    }

    /// Returns the addresses of code that obtains memory for other code: of the C library, of libraries that allocate, and of
    /// such functions in other objects.
    pub(crate) fn allocators(&mut self, task: u32) -> Vec<Range<u64>> {
        let maps = maps::read(task).unwrap_or_default();
        let objects = self.objects(task, &maps);
        let mut found = Vec::new();
        for map in maps.iter().filter(|map| map.access[2] == b'x') {
            let Some(path) = map.path() else { continue };
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if allocators::is_library(name) {
                found.push(map.range.clone());
                continue;
            }
            let Some(Some((bias, _))) = objects.0.get(&path) else { continue };
            let start = Instant::now();
            let read = || read_object(task, map, &path, Functions::read);
            let functions = self.functions.entry((path.clone(), map.inode)).or_insert_with(read);
            self.reading += start.elapsed();
            let ranges = functions.iter().flat_map(|functions| functions.allocators());
            found.extend(ranges.map(|range| range.start.wrapping_add(*bias)..range.end.wrapping_add(*bias)));
        }
        found
    }

    /// Returns the mapped objects, each with the distance between its addresses in memory and in the file.
    fn objects(&mut self, task: u32, maps: &[Map]) -> Objects {
        let mut objects = Objects::default();
        for map in maps {
            let Some(path) = map.path().filter(|path| !objects.0.contains_key(path)) else { continue };
            let file = self.files.entry((path.clone(), map.inode)).or_insert_with(|| {
                let start = Instant::now();
                let file = read_object(task, map, &path, ObjectFile::read);
                self.reading += start.elapsed();
                file.map(Rc::new)
            });
            let bias = |file: &ObjectFile| map.range.start.wrapping_sub(map.offset).wrapping_sub(file.base);
            objects.0.insert(path, file.clone().map(|file| (bias(&file), file)));
        }
        objects
    }
}

/// Reads the file behind a mapping. The path is resolved in the process's own root, which may differ; the file may have been
/// replaced.
fn read_object<T>(task: u32, map: &Map, path: &Path, read: impl Fn(&Path) -> Option<T>) -> Option<T> {
    let range = format!("/proc/{task}/map_files/{:x}-{:x}", map.range.start, map.range.end);
    read(range.as_ref()).or_else(|| read(format!("/proc/{task}/root{}", path.display()).as_ref()))
}

/// Returns the limits of an interface, for any process.
pub(crate) fn unseen_by(interface: KernelInterface) -> Option<String> {
    match interface {
        KernelInterface::Scan => None,
        KernelInterface::WordsAndFlags => Some(
            "this kernel has no PAGEMAP_SCAN (Linux 6.7): contiguous physical memory of a huge page's size counts as a huge page, even if it is mapped as small pages".into(),
        ),
        KernelInterface::Words => Some(
            "this kernel has no PAGEMAP_SCAN (Linux 6.7), and only root can see the physical frames of pages: the zero page and huge pages count as small \
             pages; run as root, or on a newer kernel"
                .into(),
        ),
    }
}

fn unseen(interface: KernelInterface, mappings: &[Mapping]) -> Vec<String> {
    let is_vsyscall = |mapping: &Mapping| matches!(&mapping.name, Name::Kernel { name } if name == "[vsyscall]");
    let vsyscall =
        mappings.iter().any(is_vsyscall).then(|| "[vsyscall] is not in the page table: it counts as unbacked".into());
    unseen_by(interface).into_iter().chain(vsyscall).collect()
}

/// The mapped object files, each with the distance between its addresses in memory and in the file.
#[derive(Debug, Default)]
struct Objects(BTreeMap<PathBuf, Option<(u64, Rc<ObjectFile>)>>);

impl Objects {
    fn is_object(&self, path: &Path) -> bool {
        self.0.get(path).is_some_and(Option::is_some)
    }

    /// Returns the object whose `.bss` overlaps an anonymous mapping.
    fn with_bss(&self, range: &Range<u64>) -> Option<PathBuf> {
        let has_it = |(bias, file): &(u64, Rc<ObjectFile>)| {
            file.bss.iter().any(|bss| {
                let end = bss.end.wrapping_add(*bias);
                let start = bss.start.wrapping_add(*bias);
                range.start < end && start < range.end
            })
        };
        self.0.iter().find(|(_, object)| object.as_ref().is_some_and(has_it)).map(|(path, _)| path.clone())
    }

    /// Returns the variables that overlap these ascending ranges, with the number of bytes that overlap. If a variable
    /// has several names, the first is used.
    fn variables_in(&self, zero: &[Range<u64>]) -> Vec<ZeroVariable> {
        let mut found: Vec<ZeroVariable> = Vec::new();
        for (path, (bias, file)) in self.0.iter().filter_map(|(path, object)| Some((path, object.as_ref()?))) {
            for variable in &file.variables {
                let (start, end) = (variable.range.start.wrapping_add(*bias), variable.range.end.wrapping_add(*bias));
                if end <= start {
                    // Only a damaged file has such a variable.
                    continue;
                }
                let first = zero.partition_point(|range| range.end <= start);
                let inside = zero.iter().skip(first).take_while(|range| range.start < end);
                let bytes: u64 = inside.map(|range| range.end.min(end) - range.start.max(start)).sum();
                let is_another = || found.last().is_none_or(|last| (last.address, last.size) != (start, end - start));
                if bytes > 0 && is_another() {
                    let (name, path) = (variable.name.clone(), path.clone());
                    found.push(ZeroVariable { name, path, address: start, size: end - start, zero: bytes });
                }
            }
        }
        found.sort_by(|a, b| (b.zero, &a.name).cmp(&(a.zero, &b.name)));
        found
    }
}

fn name(map: &Map, objects: &Objects, stacks: &mut Vec<stacks::Stack>) -> Name {
    let text = String::from_utf8_lossy(&map.name).into_owned();
    if let Some(path) = map.path() {
        return match () {
            // A mapping made with MAP_HUGETLB: only the kernel treats it as a file.
            () if text.starts_with("/anon_hugepage") && !map.is_shared() => Name::Anonymous { name: "hugetlb".into() },
            () if text.starts_with("/anon_hugepage") => Name::Shared { name: "hugetlb".into() },
            () if text.starts_with("/memfd:") || text.starts_with("/SYSV") || text.starts_with("/dev/zero") => {
                Name::Shared { name: text }
            }
            () if objects.is_object(&path) => {
                Name::Object { path, access: String::from_utf8_lossy(&map.access[..3]).into_owned() }
            }
            () => Name::File { path },
        };
    }
    let is_in = |stack: &stacks::Stack| map.range.contains(&stack.pointer);
    if map.is_writable()
        && let Some(at) = stacks.iter().position(is_in)
    {
        let stacks::Stack { thread, name, .. } = stacks.swap_remove(at);
        return Name::Stack { thread, name };
    }
    match text.as_str() {
        "[heap]" => Name::Heap,
        "" if map.is_shared() => Name::Shared { name: text },
        "" => objects.with_bss(&map.range).map_or(Name::Anonymous { name: text }, |path| Name::Bss { path }),
        _ => match text.strip_prefix("[anon:").or_else(|| text.strip_prefix("[anon_shmem:")) {
            Some(given) => {
                let given = given.trim_end_matches(']').to_string();
                // A name that the dynamic linker has set does not change what the mapping is.
                let bss = objects.with_bss(&map.range).filter(|_| !map.is_shared());
                bss.map_or(Name::Anonymous { name: given }, |path| Name::Bss { path })
            }
            None => Name::Kernel { name: text },
        },
    }
}
