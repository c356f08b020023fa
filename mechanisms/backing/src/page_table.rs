//! The pages of an address space of this or another process, as the kernel reports them.
//!
//! ```text
//!   PageTable::of(pid) ── runs(range) ─▶ Run Run Run …    adjacent pages with the same properties
//!        │
//!        ├ PAGEMAP_SCAN                    Linux 6.7 and later, for the user's own processes without privilege
//!        └ a word for each page            before that; /proc/kpageflags tells root the rest
//! ```

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use crate::error::BackingError;
use crate::{huge_page_size, os_page_size};

/// A set of properties of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PageKind(u64);

impl PageKind {
    /// A page of a file, or of memory that other processes may share.
    pub const FILE: PageKind = PageKind(1 << 2);
    /// In the page table: a read does not fault.
    pub const PRESENT: PageKind = PageKind(1 << 3);
    /// Swapped out, or being swapped out.
    pub const SWAPPED: PageKind = PageKind(1 << 4);
    /// The zero page, small or huge: memory that was read and never written.
    pub const ZERO: PageKind = PageKind(1 << 5);
    /// A huge page with one entry of the page table.
    pub const HUGE: PageKind = PageKind(1 << 6);
    /// In one page table only, and so not the zero page, which no page table owns. Only [`KernelInterface::Words`] tells
    /// this, because it cannot recognise the zero page otherwise.
    pub const EXCLUSIVE: PageKind = PageKind(1 << 32);

    const ALL: u64 = PageKind::FILE.0 | PageKind::PRESENT.0 | PageKind::SWAPPED.0 | PageKind::ZERO.0 | PageKind::HUGE.0;

    /// Whether it has all properties of `other`.
    pub const fn is(self, other: PageKind) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both sets.
    pub const fn and(self, other: PageKind) -> PageKind {
        PageKind(self.0 | other.0)
    }
}

/// Adjacent pages that have the same properties, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Addresses of the pages, in whole `os_page`s.
    pub range: Range<u64>,
    /// Properties of each page. Never empty: a page that is neither in the page table nor swapped out is in no run.
    pub kind: PageKind,
}

/// A kernel interface by which a page table is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelInterface {
    /// By `PAGEMAP_SCAN`, which tells everything.
    Scan,
    /// By a word for each page, and by `/proc/kpageflags` for its page frame. This also tells everything, but a huge
    /// page is one that is physically contiguous, whether or not it has one entry of the page table.
    WordsAndFlags,
    /// By a word for each page only: pages that are not [`PageKind::EXCLUSIVE`] may be the zero page, and huge pages are not distinguished
    /// from small ones.
    Words,
}

impl KernelInterface {
    /// All interfaces, the best first.
    pub const ALL: [KernelInterface; 3] =
        [KernelInterface::Scan, KernelInterface::WordsAndFlags, KernelInterface::Words];

    /// Whether this interface recognises the zero page.
    pub const fn sees_zero(self) -> bool {
        !matches!(self, KernelInterface::Words)
    }
}

/// The page table of a process.
#[derive(Debug)]
pub struct PageTable {
    pagemap: File,
    flags: Option<File>,
    interface: KernelInterface,
}

fn system(purpose: &'static str) -> impl Fn(io::Error) -> BackingError {
    move |error| BackingError::System { purpose, errno: Errno::from_io_error(&error).unwrap_or(Errno::IO) }
}

impl PageTable {
    /// Opens the page table of a process, or of this one (`None`), by the best interface that the kernel supports.
    ///
    /// It remains the table of the program that the process runs now: after an exec it is empty.
    ///
    /// # Errors
    /// [`BackingError::System`]: there is no such process, it is another user's (`EACCES`), `/proc` is not mounted, or a sandbox forbids
    /// it.
    pub fn of(pid: Option<u32>) -> Result<PageTable, BackingError> {
        PageTable::by(pid, &KernelInterface::ALL)
    }

    /// Opens a page table like [`PageTable::of`], by the first of these interfaces that the kernel supports.
    /// [`KernelInterface::Words`] is always supported.
    ///
    /// # Errors
    /// See [`PageTable::of`]; [`Errno::NOSYS`] if none of the interfaces is supported.
    pub fn by(pid: Option<u32>, interfaces: &[KernelInterface]) -> Result<PageTable, BackingError> {
        let path = pid.map_or("/proc/self/pagemap".into(), |pid| format!("/proc/{pid}/pagemap"));
        let pagemap = File::open(path).map_err(system("read the process's page table"))?;
        let mut table = PageTable { pagemap, flags: None, interface: KernelInterface::Words };
        for interface in interfaces {
            table.interface = *interface;
            table.flags = None;
            match interface {
                // A kernel that supports the request accepts an empty range.
                KernelInterface::Scan => match scan(&table.pagemap, 0..0, &mut []) {
                    Ok(_) => return Ok(table),
                    Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {}
                    Err(error) => return Err(system("scan the process's page table by PAGEMAP_SCAN")(error)),
                },
                KernelInterface::WordsAndFlags => {
                    table.flags = File::open("/proc/kpageflags").ok();
                    if table.flags.is_some() && sees_frames() {
                        return Ok(table);
                    }
                }
                KernelInterface::Words => return Ok(table),
            }
        }
        Err(BackingError::System { purpose: "read a page table in the way that was asked for", errno: Errno::NOSYS })
    }

    /// Returns the interface by which it is read.
    pub fn interface(&self) -> KernelInterface {
        self.interface
    }

    /// Calls `each` with the runs in `range`, addresses of the process in whole `os_page`s, in ascending order.
    /// Adjacent pages with the same properties may be in two runs.
    ///
    /// Each run is read at a different moment. Memory that the process maps, touches or gives back at the same time may
    /// be included or not.
    ///
    /// # Errors
    /// [`BackingError::System`]. A process that has ended has an empty page table, which is no error.
    pub fn runs(&self, range: Range<u64>, each: &mut impl FnMut(Run)) -> Result<(), BackingError> {
        let walked = match self.interface {
            KernelInterface::Scan => self.scanned(range, each),
            KernelInterface::WordsAndFlags | KernelInterface::Words => self.read(range, each),
        };
        walked.map_err(system("read the process's page table"))
    }

    fn scanned(&self, range: Range<u64>, each: &mut impl FnMut(Run)) -> io::Result<()> {
        let mut regions = [PageRegion::default(); 256];
        let mut start = range.start;
        while start < range.end {
            let (count, walk_end) = match scan(&self.pagemap, start..range.end, &mut regions) {
                // The process has ended, or runs another program by now.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                result => result?,
            };
            for region in regions.iter().take(count) {
                each(Run { range: region.start..region.end, kind: PageKind(region.categories & PageKind::ALL) });
            }
            if walk_end <= start {
                // Nothing was walked because nothing is mapped any more.
                return if count == 0 { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) };
            }
            start = walk_end;
        }
        Ok(())
    }

    fn read(&self, range: Range<u64>, each: &mut impl FnMut(Run)) -> io::Result<()> {
        let os_page = os_page_size() as u64;
        let mut words = vec![0_u8; 8 * huge_page_size() / os_page_size()];
        let mut next = range.start / os_page;
        let end = range.end.div_ceil(os_page);
        let mut run: Option<Run> = None;
        while next < end {
            // Read at most up to a huge page boundary.
            let count = (end - next).min(words.len() as u64 / 8 - next % (words.len() as u64 / 8));
            let words = words.get_mut(..8 * count as usize).unwrap_or_default();
            let found = read_at(&self.pagemap, words, 8 * next)?;
            let kinds = self.kinds(words.get(..found).unwrap_or_default())?;
            for (index, kind) in (next..).zip(&kinds).filter(|(_, kind)| **kind != PageKind::default()) {
                let range = index * os_page..(index + 1) * os_page;
                match &mut run {
                    Some(run) if run.kind == *kind && run.range.end == range.start => run.range.end = range.end,
                    _ => run.replace(Run { range, kind: *kind }).into_iter().for_each(&mut *each),
                }
            }
            if kinds.is_empty() {
                // The process has ended.
                break;
            }
            next += kinds.len() as u64;
        }
        run.into_iter().for_each(each);
        Ok(())
    }

    /// Returns the properties that words of the page table give, with the flags of their frames if these can be read.
    fn kinds(&self, words: &[u8]) -> io::Result<Vec<PageKind>> {
        let words: Vec<u64> =
            words.chunks_exact(8).map(|word| <[u8; 8]>::try_from(word).map_or(0, u64::from_ne_bytes)).collect();
        let mut kinds: Vec<PageKind> = words.iter().map(|word| kind_of_word(*word)).collect();
        let Some(flags) = &self.flags else {
            let exclusive = words.iter().zip(&mut kinds).filter(|(word, _)| *word & WORD_EXCLUSIVE != 0);
            exclusive.for_each(|(_, kind)| *kind = kind.and(PageKind::EXCLUSIVE));
            return Ok(kinds);
        };
        // The pages are huge if all of them are physically contiguous.
        let first = words.first().map_or(0, |word| word & FRAME);
        let pages_of_huge = huge_page_size() / os_page_size();
        let mut is_one_piece = words.len() == pages_of_huge && first.is_multiple_of(pages_of_huge as u64);
        for (index, (word, kind)) in words.iter().zip(&mut kinds).enumerate() {
            let frame = word & FRAME;
            if !kind.is(PageKind::PRESENT) || frame == 0 {
                is_one_piece = false;
                continue;
            }
            let mut found = [0; 8];
            flags.read_exact_at(&mut found, 8 * frame)?;
            let found = u64::from_ne_bytes(found);
            if found & KPF_ZERO_PAGE != 0 {
                *kind = kind.and(PageKind::ZERO);
            }
            if found & KPF_HUGE != 0 {
                *kind = kind.and(PageKind::HUGE);
            }
            is_one_piece &= found & KPF_THP != 0 && frame == first + index as u64;
        }
        if is_one_piece {
            kinds.iter_mut().for_each(|kind| *kind = kind.and(PageKind::HUGE));
        }
        Ok(kinds)
    }
}

/// Reads as much as there is; nothing from a process that has ended.
fn read_at(file: &File, target: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut found = 0;
    while let Some(rest) = target.get_mut(found..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + found as u64) {
            Ok(0) => break,
            Ok(count) => found += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Bits of a page table's word: `Documentation/admin-guide/mm/pagemap.rst`.
const WORD_PRESENT: u64 = 1 << 63;
const WORD_SWAPPED: u64 = 1 << 62;
const WORD_FILE: u64 = 1 << 61;
/// Since Linux 4.2, for a page that is present. The zero page, small or huge, never has it: no page table counts it
/// (`pte_to_pagemap_entry` in `fs/proc/task_mmu.c`).
const WORD_EXCLUSIVE: u64 = 1 << 56;
/// The frame of a page that is present; zero without `CAP_SYS_ADMIN`.
const FRAME: u64 = (1 << 55) - 1;
/// Bits of `/proc/kpageflags`.
const KPF_HUGE: u64 = 1 << 17;
const KPF_THP: u64 = 1 << 22;
const KPF_ZERO_PAGE: u64 = 1 << 24;

fn kind_of_word(word: u64) -> PageKind {
    let bits = [(WORD_PRESENT, PageKind::PRESENT), (WORD_SWAPPED, PageKind::SWAPPED)];
    let kind =
        bits.iter().filter(|(bit, _)| word & bit != 0).fold(PageKind::default(), |all, (_, kind)| all.and(*kind));
    // For a page that is not present, the bit has no meaning.
    if kind != PageKind::default() && word & WORD_FILE != 0 { kind.and(PageKind::FILE) } else { kind }
}

/// Whether the kernel tells this process the frames of its pages.
fn sees_frames() -> bool {
    let local = 0_u8;
    let page = (&raw const local).addr() / os_page_size();
    let mut word = [0; 8];
    let is_read =
        File::open("/proc/self/pagemap").and_then(|file| file.read_exact_at(&mut word, 8 * page as u64)).is_ok();
    is_read && u64::from_ne_bytes(word) & FRAME != 0
}

/// `struct pm_scan_arg` of `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of `include/uapi/linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `PAGEMAP_SCAN`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<ScanArguments>(b'f' as u32, 16);

/// Scans for pages that are present or were swapped out. Returns the number of regions, and the address at which the
/// walk ended.
fn scan(pagemap: &File, range: Range<u64>, regions: &mut [PageRegion]) -> io::Result<(usize, u64)> {
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        start: range.start,
        end: range.end,
        vec: if regions.is_empty() { 0 } else { regions.as_mut_ptr().expose_provenance() as u64 },
        vec_len: regions.len() as u64,
        category_anyof_mask: PageKind::PRESENT.0 | PageKind::SWAPPED.0,
        return_mask: PageKind::ALL,
        ..ScanArguments::default()
    };
    // SAFETY: the structure is the ABI's, states its own size, and points to `regions`, whose length it gives; without
    // flags the call changes nothing else (Documentation/admin-guide/mm/pagemap.rst).
    let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    Ok((count, arguments.walk_end))
}
