use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use rustix::fs::{FallocateFlags, FileType, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::available::available_bytes;
use crate::error::{BackingError, last_errno};
use crate::numa;
use crate::options::{Huge, MemoryOptions, Obtained};
use crate::page_table::{KernelInterface, PageKind, PageTable};
use crate::{huge_page_alignment, huge_page_size, os_page_size, unbacked_os_pages};

/// Value from linux/mman.h (Linux 6.1). The crate `libc` does not have it for musl.
pub(crate) const MADV_COLLAPSE: libc::c_int = 25;

/// Number of attempts to get a huge page. An attempt fails while another user holds one of its small pages.
pub(crate) const COLLAPSE_TRIES: usize = 8;

/// Memory that is mapped readable and writable: all of a memory file, of a file that is used as one, or memory of this
/// process only. It is unmapped when the value is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Length of the address range from `base` on that is set aside: at least `len`.
    capacity_len: usize,
    /// Length of the inaccessible part before `base`, in bytes.
    guard_len: usize,
    /// Length of the inaccessible part after that range, in bytes.
    behind_len: usize,
    is_sealed: bool,
    /// Whether only the first `os_page` is mapped, and the other addresses may belong to other mappings: see
    /// [`Mapping::fold`].
    is_folded: bool,
    /// Size of the pages in bytes, if the system has set them aside (hugetlb).
    hugetlb: Option<usize>,
    options: MemoryOptions,
}

/// Smallest size of pages that a system sets aside as huge ones, in bytes. AArch64 can also set aside runs of 64 KiB.
pub(crate) const HUGETLB_SIZE_BYTES_MIN: usize = 1 << 20;

/// `f_type` of hugetlbfs (linux/magic.h).
const HUGETLBFS: u64 = 0x9584_58F6;

/// Returns the size of the pages of a file in bytes, if the system has set them aside (hugetlb).
fn hugetlb(file: BorrowedFd<'_>) -> Result<Option<usize>, BackingError> {
    let stat = rustix::fs::fstatfs(file).map_err(BackingError::system("ask for the file system"))?;
    Ok((stat.f_type as u64 == HUGETLBFS).then_some(stat.f_bsize as usize))
}

/// Whether the program has requested that all memory that it maps from now on is locked and immediately present
/// (`mlockall`). Makes three system calls.
fn is_locked_from_now_on() -> bool {
    let os_page = os_page_size();
    // SAFETY: a new mapping at an address that the kernel chooses, so that no existing memory is touched (mmap(2)).
    let page = unsafe { rustix::mm::mmap_anonymous(null_mut(), os_page, ProtFlags::READ, MapFlags::PRIVATE) };
    let Ok(page) = page else { return true };
    let mut is_present = 0;
    // SAFETY: the range is the page that was mapped just now, and the result has room for its byte (mincore(2)).
    let is_told = unsafe { libc::mincore(page, os_page, &raw mut is_present) } == 0;
    // SAFETY: the page was mapped above, and nothing refers to it.
    let _ = unsafe { rustix::mm::munmap(page, os_page) };
    is_told && is_present & 1 != 0
}

/// Repeats a call while it fails with [`Errno::AGAIN`], at most [`COLLAPSE_TRIES`] times in all.
pub(crate) fn again_while_asked(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let mut results = (0..COLLAPSE_TRIES).map(|_| call());
    results.find(|result| *result != Err(Errno::AGAIN)).unwrap_or(Err(Errno::AGAIN))
}

// SAFETY: the value owns the address range; accesses through the address are `unsafe` where they are made.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference, its methods only read the page table, make system calls that keep the contents,
// or store atomically.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all of a memory file that another process made and sealed. With `populate`, all of it is then in this
    /// process's page table, so that no write faults.
    ///
    /// # Errors
    /// [`BackingError::NotMemory`], [`BackingError::NotSealed`] (the seal against shrinking is missing),
    /// [`BackingError::Size`] (it is empty), [`BackingError::NotEnough`], [`BackingError::System`].
    pub fn map(file: impl AsFd, populate: bool) -> Result<Mapping, BackingError> {
        let file = file.as_fd();
        let len = Mapping::sealed_len(file)?;
        let mut mapping = Mapping::map_len(file, len)?;
        mapping.is_sealed = true;
        if populate {
            mapping.prefault(Some(file), 0..len)?;
        }
        Ok(mapping)
    }

    /// Maps memory that belongs to another program, independently of `mlockall(MCL_FUTURE)`: the memory is not locked,
    /// and the call does not fail because of the limit on locked memory. (The kernel never locks pages that the system
    /// has set aside.)
    ///
    /// The file is a sealed memory file, as for [`Mapping::map`], or a regular file of this user (or root) that no other
    /// user may write to: the buffers of a session on a file system. No seal protects these: if the file is truncated,
    /// the next access is a `SIGBUS`. The user who puts buffers there accepts that.
    ///
    /// # Errors
    /// The errors of [`Mapping::map`], and [`BackingError::NotOurs`].
    pub fn map_unlocked(file: impl AsFd) -> Result<Mapping, BackingError> {
        let file = file.as_fd();
        let (len, is_sealed) = match Mapping::sealed_len(file) {
            Ok(len) => (len, true),
            Err(BackingError::NotSealed | BackingError::NotMemory) => (Mapping::own_file_len(file)?, false),
            Err(error) => return Err(error),
        };
        let hugetlb = hugetlb(file)?;
        let plain = || Mapping::with_capacity(Some(file), len, hugetlb, MemoryOptions::new().prefault(false));
        let may_grow = hugetlb.is_none() && len > os_page_size();
        let mapped = if may_grow && is_locked_from_now_on() { Mapping::grown(file, len) } else { plain() };
        let mut mapping = match mapped {
            // This is the error with `MCL_ONFAULT`.
            Err(BackingError::System { errno: Errno::AGAIN, .. }) if may_grow => Mapping::grown(file, len)?,
            mapped => mapped?,
        };
        // SAFETY: the range is the whole mapping, whose contents do not change (munlock(2)). If it is not locked,
        // nothing happens.
        let _ = unsafe { rustix::mm::munlock(mapping.base.as_ptr().cast(), mapping.len) };
        mapping.is_sealed = is_sealed;
        Ok(mapping)
    }

    /// Maps the first page, and grows from there. The kernel counts that page as locked until it is unlocked, and a
    /// mapping that is not locked grows without being locked (mremap(2)). Valgrind does not support such growth.
    fn grown(file: BorrowedFd<'_>, len: usize) -> Result<Mapping, BackingError> {
        let os_page = os_page_size();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses, so that no existing memory is touched (mmap(2)).
        let first = unsafe { rustix::mm::mmap(null_mut(), os_page, protection, flags, file, 0) };
        let first: *mut u8 = first.map_err(BackingError::system("map the memory"))?.cast();
        let base = NonNull::new(first).ok_or(BackingError::Size { size_bytes: len })?;
        let mut mapping = Mapping {
            base,
            len,
            capacity_len: len.next_multiple_of(os_page),
            guard_len: 0,
            behind_len: 0,
            is_sealed: false,
            is_folded: true,
            hugetlb: None,
            options: MemoryOptions::new().prefault(false),
        };
        mapping.unlock_first()?;
        mapping.unfold_elsewhere()?;
        Ok(mapping)
    }

    fn sealed_len(file: BorrowedFd<'_>) -> Result<usize, BackingError> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|errno| match errno {
            Errno::INVAL => BackingError::NotMemory,
            errno => BackingError::System { purpose: "read the memory's seals", errno },
        })?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(BackingError::NotSealed);
        }
        // The size is read after the seal is checked: from here on the file cannot shrink.
        let stat = rustix::fs::fstat(file).map_err(BackingError::system("read the memory's size"))?;
        usize::try_from(stat.st_size).map_err(|_| BackingError::Size { size_bytes: usize::MAX })
    }

    fn own_file_len(file: BorrowedFd<'_>) -> Result<usize, BackingError> {
        let stat = rustix::fs::fstat(file).map_err(BackingError::system("read the memory's size"))?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let is_ours = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
        if !is_regular || !is_ours || stat.st_mode & 0o022 != 0 {
            return Err(BackingError::NotOurs);
        }
        usize::try_from(stat.st_size).map_err(|_| BackingError::Size { size_bytes: usize::MAX })
    }

    /// Maps all of an inherited regular file of `user` (or root), with fstat(2) and mmap(2) alone: for processes whose
    /// filter of system calls may kill them for any other.
    ///
    /// # Errors
    /// [`BackingError::NotOurs`], [`BackingError::Size`] (it is empty), [`BackingError::System`].
    pub fn map_inherited(file: impl AsFd, user: u32) -> Result<Mapping, BackingError> {
        let file = file.as_fd();
        let stat = rustix::fs::fstat(file).map_err(BackingError::system("read the memory's size"))?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_regular || ![0, user].contains(&stat.st_uid) {
            return Err(BackingError::NotOurs);
        }
        let len = usize::try_from(stat.st_size).map_err(|_| BackingError::Size { size_bytes: usize::MAX })?;
        // For hugetlbfs, this is the value that statfs(2) would return; other file systems with blocks of that size are
        // not harmed.
        let block_size_bytes = usize::try_from(stat.st_blksize).unwrap_or(0);
        let hugetlb = (block_size_bytes >= HUGETLB_SIZE_BYTES_MIN).then_some(block_size_bytes);
        Mapping::with_capacity(Some(file), len, hugetlb, MemoryOptions::new().prefault(false))
    }

    /// Whether the memory is sealed against shrinking, so that no access is a `SIGBUS`.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Maps the first `len` bytes, without checking seals. Memory of at least the size of a huge page starts on a huge
    /// page boundary, because the file's huge pages can be mapped only there.
    pub(crate) fn map_len(file: BorrowedFd<'_>, len: usize) -> Result<Mapping, BackingError> {
        Mapping::with_capacity(Some(file), len, hugetlb(file)?, MemoryOptions::new().prefault(false))
    }

    /// Sets addresses aside as the options say, and maps the first `len` bytes of a file, or of new memory. Nothing is
    /// present yet.
    pub(crate) fn with_capacity(
        file: Option<BorrowedFd<'_>>,
        len: usize,
        hugetlb: Option<usize>,
        options: MemoryOptions,
    ) -> Result<Mapping, BackingError> {
        let too_large = BackingError::Size { size_bytes: len };
        if len == 0 {
            return Err(too_large);
        }
        let os_page = os_page_size();
        let capacity_len = len.max(options.capacity_bytes).checked_next_multiple_of(os_page).ok_or(too_large)?;
        let guard_len = if options.guard { os_page } else { 0 };
        let huge_page = huge_page_alignment();
        let alignment = match hugetlb {
            Some(size) => size,
            None if capacity_len >= huge_page => huge_page,
            None => os_page,
        };
        let sum = [capacity_len, guard_len, guard_len, alignment - os_page]
            .iter()
            .try_fold(0, |sum: usize, len| sum.checked_add(*len));
        let outer_len = sum.ok_or(too_large)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses, so that no existing memory is touched (mmap(2));
        // it is inaccessible.
        let outer = unsafe { rustix::mm::mmap_anonymous(null_mut(), outer_len, ProtFlags::empty(), flags) };
        let outer: *mut u8 = outer.map_err(BackingError::system("map the memory"))?.cast();
        let skipped = (outer.addr() + guard_len).next_multiple_of(alignment) - guard_len - outer.addr();
        let behind = skipped + guard_len + capacity_len + guard_len;
        for (start, len) in [(outer, skipped), (outer.wrapping_add(behind), outer_len - behind)] {
            if len > 0 {
                // SAFETY: the parts of the reservation before and after the part that is kept; nothing refers to them.
                // If the kernel refuses (too many mappings), addresses stay set aside, without memory.
                let _ = unsafe { rustix::mm::munmap(start.cast(), len) };
            }
        }
        let base = NonNull::new(outer.wrapping_add(skipped + guard_len)).ok_or(too_large)?;
        let mut mapping = Mapping {
            base,
            len: 0,
            capacity_len,
            guard_len,
            behind_len: guard_len,
            is_sealed: false,
            is_folded: false,
            hugetlb,
            options,
        };
        mapping.extend(file, len)?;
        Ok(mapping)
    }

    /// Maps the address range up to `len`. The mapping is permanent.
    pub(crate) fn extend(&mut self, file: Option<BorrowedFd<'_>>, len: usize) -> Result<(), BackingError> {
        let (offset, part_len) = (self.len, len - self.len);
        if self.hugetlb.is_none() && self.options.is_prefaulted() {
            // Checked before mapping: the kernel refuses requests that are obviously too large, and may then already
            // have removed the mapping that sets the addresses aside.
            ask_for(part_len as u64)?;
        }
        let start = self.base.as_ptr().wrapping_add(offset).cast();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let mapped = match file {
            Some(file) => {
                let flags = MapFlags::SHARED | MapFlags::FIXED;
                // SAFETY: replaces a part of the reservation, which is inaccessible until now.
                unsafe { rustix::mm::mmap(start, part_len, protection, flags, file, offset as u64) }
            }
            None => {
                let flags = MapFlags::PRIVATE | MapFlags::FIXED | self.hugetlb.map_or(MapFlags::empty(), hugetlb_flags);
                // SAFETY: replaces a part of the reservation, which is inaccessible until now.
                unsafe { rustix::mm::mmap_anonymous(start, part_len, protection, flags) }
            }
        };
        if let Err(errno) = mapped {
            // Some kernels have removed that part of the mapping by now, and its addresses may belong to other
            // mappings. So nothing from there on is unmapped later. If the part still exists, it remains as addresses
            // without memory.
            self.capacity_len = self.len;
            self.behind_len = 0;
            return Err(BackingError::System { purpose: "map the memory", errno });
        }
        self.len = len;
        self.advise(offset..len).inspect_err(|_| self.shorten(offset))
    }

    /// Takes back the part that was mapped last, from `len` on. Nothing refers to it.
    fn shorten(&mut self, len: usize) {
        if len == 0 {
            // The mapping is empty, and is about to be dropped.
            return;
        }
        let start = self.base.as_ptr().wrapping_add(len).cast();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: replaces the last part of this value's own mapping by a reservation.
        let set_aside = unsafe { rustix::mm::mmap_anonymous(start, self.len - len, ProtFlags::empty(), flags) };
        if set_aside.is_err() {
            // See `extend`.
            self.capacity_len = len;
            self.behind_len = 0;
        }
        self.len = len;
    }

    /// Tells the kernel which kind of pages, and of which node, a new part should have. None of it is present.
    fn advise(&self, range: Range<usize>) -> Result<(), BackingError> {
        let start = self.base.as_ptr().wrapping_add(range.start);
        numa::bind(start, range.len(), self.options.numa)?;
        let advice = match self.options.huge {
            Huge::AsConfigured => return Ok(()),
            _ if self.hugetlb.is_some() => return Ok(()),
            Huge::Never => Advice::LinuxNoHugepage,
            Huge::Prefer | Huge::Require => Advice::LinuxHugepage,
        };
        // SAFETY: the range is inside the mapping, whose contents do not change (madvise(2)). A kernel without huge
        // pages refuses, which does no harm.
        let _ = unsafe { rustix::mm::madvise(start.cast(), range.len(), advice) };
        Ok(())
    }

    /// Makes a part present as the options say.
    pub(crate) fn settle(&self, file: Option<BorrowedFd<'_>>, range: Range<usize>) -> Result<(), BackingError> {
        if self.options.is_prefaulted() {
            self.prefault(file, range.clone())?;
        }
        if self.options.lock {
            let start = self.base.as_ptr().wrapping_add(range.start).cast();
            // SAFETY: the range is inside the mapping, whose contents do not change (mlock(2)).
            unsafe { rustix::mm::mlock(start, range.len()) }.map_err(|errno| lock_error(range.len(), errno))?;
        }
        if self.options.huge == Huge::Require {
            let obtained = self.obtained(range)?;
            // If the kernel does not tell, it has done what it could; only root could learn more.
            if obtained.huge_bytes() < obtained.size_bytes {
                return Err(BackingError::NotHuge {
                    wanted_bytes: obtained.size_bytes,
                    huge_bytes: obtained.huge_bytes(),
                });
            }
        }
        Ok(())
    }

    /// Grows to `size_bytes`, rounded up to whole pages.
    pub(crate) fn grow(&mut self, file: Option<BorrowedFd<'_>>, size_bytes: usize) -> Result<(), BackingError> {
        let page = match self.options.huge {
            Huge::Require => huge_page_size(),
            _ => os_page_size(),
        };
        let page = self.hugetlb.unwrap_or(page);
        let old_len = self.len;
        let len = size_bytes.checked_next_multiple_of(page).filter(|len| (old_len..=self.capacity_len).contains(len));
        let len = len.ok_or(BackingError::Size { size_bytes })?;
        if len > old_len {
            self.extend(file, len)?;
            self.settle(file, old_len..len).inspect_err(|_| self.shorten(old_len))?;
        }
        Ok(())
    }

    /// Reads the kinds of pages of the `os_page`s that overlap `range` (bytes from the start), and if a node was
    /// requested, whether they are on it. The source is the page table; the only assumption is that pages of hugetlb
    /// are huge.
    ///
    /// # Errors
    /// [`BackingError::Range`], [`BackingError::System`].
    pub fn obtained(&self, range: Range<usize>) -> Result<Obtained, BackingError> {
        self.check(&range)?;
        let os_page = os_page_size();
        let table = PageTable::of(None)?;
        let start = self.base.as_ptr().addr() + range.start / os_page * os_page;
        let end = self.base.as_ptr().addr() + range.end.next_multiple_of(os_page);
        let mut obtained = Obtained {
            size_bytes: end - start,
            is_huge_told: self.hugetlb.is_some() || table.interface() != KernelInterface::Words,
            ..Obtained::default()
        };
        table.runs(start as u64..end as u64, &mut |run| {
            let bytes = (run.range.end - run.range.start) as usize;
            if !run.kind.is(PageKind::PRESENT) || run.kind.is(PageKind::ZERO) {
            } else if self.hugetlb.is_some() {
                obtained.hugetlb_bytes += bytes;
            } else if run.kind.is(PageKind::HUGE) {
                obtained.thp_bytes += bytes;
            } else {
                obtained.small_bytes += bytes;
            }
        })?;
        obtained.missing_bytes = obtained.size_bytes - obtained.huge_bytes() - obtained.small_bytes;
        obtained.nodes = numa::nodes_of(start..end, self.options.numa);
        Ok(obtained)
    }

    /// Asks the kernel to replace the `os_page`s in `range` by huge pages, for every process that maps the file.
    /// Returns the number of its bytes that are then in huge pages; 0 if the kernel cannot or does not.
    pub(crate) fn use_huge_pages(&self, range: Range<usize>) -> usize {
        let mut size_bytes = 0;
        if self.hugetlb.is_some() {
            return range.end.min(self.len).saturating_sub(range.start);
        }
        let huge_page = huge_page_size();
        let first = range.start.div_ceil(huge_page);
        // One by one: if there is no room for one part, the others keep their huge pages.
        for index in first..range.end.min(self.len) / huge_page {
            let start = self.base.as_ptr().wrapping_add(index * huge_page);
            // SAFETY: the range is inside the mapping, whose contents do not change (madvise(2)).
            let collapse = || match unsafe { libc::madvise(start.cast(), huge_page, MADV_COLLAPSE) } {
                0 => Ok(()),
                _ => Err(last_errno()),
            };
            if again_while_asked(collapse).is_err() {
                break;
            }
            size_bytes += huge_page;
        }
        size_bytes
    }

    /// Returns the address of the first byte, which is on an `os_page` boundary. It is invalid once the mapping is
    /// dropped.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the number of bytes to which it may grow.
    pub fn capacity_bytes(&self) -> usize {
        self.capacity_len
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Leaves the memory out of core dumps of this process, and of its later children (`MADV_DONTDUMP`). By default,
    /// core dumps include shared memory.
    ///
    /// # Errors
    /// [`BackingError::System`].
    pub fn leave_out_of_dumps(&self) -> Result<(), BackingError> {
        // SAFETY: the range is the whole mapping; the advice does not change its contents (madvise(2)).
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontDump) }
            .map_err(BackingError::system("leave the memory out of core dumps"))
    }

    /// Takes all but the first `os_page` out of the address space until [`Mapping::unfold`], so that the kernel counts
    /// hardly more memory than the program's own. The memory must not be accessed meanwhile. Only for a mapping of a
    /// whole file in small pages, such as [`Mapping::map_unlocked`] returns.
    ///
    /// # Errors
    /// [`BackingError::System`].
    pub fn fold(&mut self) -> Result<(), BackingError> {
        let os_page = os_page_size();
        let is_whole = self.guard_len + self.behind_len == 0 && self.capacity_len == self.len.next_multiple_of(os_page);
        if self.hugetlb.is_some() || !is_whole || self.capacity_len <= os_page {
            return Err(BackingError::System { purpose: "fold the memory", errno: Errno::INVAL });
        }
        let behind = self.base.as_ptr().wrapping_add(os_page);
        // SAFETY: the range is this value's own mapping after its first page; the caller must not access it while it is
        // folded.
        unsafe { rustix::mm::munmap(behind.cast(), self.capacity_len - os_page) }
            .map_err(BackingError::system("fold the memory"))?;
        self.is_folded = true;
        Ok(())
    }

    /// Takes all of it into the address space again, not locked: at the same address, or elsewhere if that is occupied.
    ///
    /// # Errors
    /// [`BackingError::System`]: it is still folded.
    pub fn unfold(&mut self) -> Result<(), BackingError> {
        self.unlock_first()?;
        let base = self.base.as_ptr().cast();
        // SAFETY: grows this value's own mapping in place, only if no other mapping is in the way (mremap(2)).
        match unsafe { rustix::mm::mremap(base, os_page_size(), self.capacity_len, MremapFlags::empty()) } {
            Ok(_) => {
                self.is_folded = false;
                Ok(())
            }
            Err(_) => self.unfold_elsewhere(),
        }
    }

    fn unlock_first(&self) -> Result<(), BackingError> {
        // SAFETY: the page is inside the mapping; its contents do not change (munlock(2)).
        unsafe { rustix::mm::munlock(self.base.as_ptr().cast(), os_page_size()) }
            .map_err(BackingError::system("map the memory"))
    }

    /// Unfolds at another address, on a huge page boundary if the memory is large enough.
    fn unfold_elsewhere(&mut self) -> Result<(), BackingError> {
        let failed = BackingError::system("map the memory");
        let os_page = os_page_size();
        let huge_page = huge_page_alignment();
        let alignment = if self.capacity_len >= huge_page { huge_page } else { os_page };
        let outer_len = self.capacity_len + alignment - os_page;
        // Addresses are set aside first, and not locked either: they have no memory, but would count as locked.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses, so that no existing memory is touched (mmap(2));
        // it is inaccessible.
        let outer = unsafe { rustix::mm::mmap_anonymous(null_mut(), os_page, ProtFlags::empty(), flags) };
        let mut outer = outer.map_err(&failed)?;
        let mut mapped_len = os_page;
        // SAFETY: the range is the page that was mapped just now (munlock(2)).
        let unlocked = unsafe { rustix::mm::munlock(outer, os_page) };
        // SAFETY: the page was mapped above, and nothing refers to it, so it may move (mremap(2)).
        let grow = |()| unsafe { rustix::mm::mremap(outer, os_page, outer_len, MremapFlags::MAYMOVE) };
        let grown = unlocked.and_then(grow);
        if let Ok(grown) = grown {
            (outer, mapped_len) = (grown, outer_len);
        }
        let target = outer.wrapping_byte_add(outer.addr().next_multiple_of(alignment) - outer.addr());
        let base = self.base.as_ptr().cast();
        // SAFETY: this value's own mapping, which is folded and so not accessed, moves into a part of the reservation,
        // and replaces it (mremap(2)).
        let fix =
            |_| unsafe { rustix::mm::mremap_fixed(base, os_page, self.capacity_len, MremapFlags::MAYMOVE, target) };
        let moved = grown.and_then(fix);
        // The rest of the reservation is unmapped; all of it if the mapping was not moved.
        let kept = if moved.is_ok() { target.addr()..target.addr() + self.capacity_len } else { 0..0 };
        let end = outer.addr() + mapped_len;
        for range in if kept.is_empty() { [outer.addr()..end, 0..0] } else { [outer.addr()..kept.start, kept.end..end] }
        {
            if !range.is_empty() {
                // SAFETY: the range was set aside above, and nothing refers to it.
                let _ = unsafe { rustix::mm::munmap(outer.with_addr(range.start), range.len()) };
            }
        }
        let base = NonNull::new(moved.map_err(failed)?.cast()).ok_or(BackingError::Size { size_bytes: self.len })?;
        (self.base, self.is_folded) = (base, false);
        Ok(())
    }

    /// Gives up the mapping without unmapping it: it stays until the process ends. Returns its address and length.
    pub fn into_raw(self) -> (*mut u8, usize) {
        let this = ManuallyDrop::new(self);
        (this.base.as_ptr(), this.len)
    }

    /// Counts the `os_page`s that overlap `range` (bytes from the start) and are not present: see
    /// [`unbacked_os_pages`].
    ///
    /// # Errors
    /// [`BackingError::Range`], [`BackingError::System`].
    pub fn unbacked_os_pages(&self, range: Range<usize>) -> Result<usize, BackingError> {
        self.check(&range)?;
        let base = self.base.as_ptr().addr();
        unbacked_os_pages(base + range.start..base + range.end)
    }

    /// Makes the `os_page`s that overlap `range` present: allocated in `file`, which must be the mapped one, if any,
    /// and in this process's page table. Other threads and processes may use the memory at the same time.
    pub(crate) fn prefault(&self, file: Option<BorrowedFd<'_>>, range: Range<usize>) -> Result<(), BackingError> {
        self.check(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        let os_page = os_page_size();
        let start = range.start / os_page * os_page;
        // The file ends on an `os_page` boundary if a `Pool` made it; a file of another program may end earlier.
        let end = range.end.next_multiple_of(os_page).min(self.len);
        match file {
            Some(file) if self.hugetlb.is_some() => {
                set_aside(file, start..end).map_err(BackingError::system("allocate the memory"))?;
            }
            Some(file) => allocate(file, self.len, start..end)?,
            None if self.hugetlb.is_some() => {}
            // A part of it may already be present.
            None if ask_for((end - start) as u64).is_err() => {
                ask_for((self.unbacked_os_pages(start..end)? * os_page) as u64)?;
            }
            None => {}
        }
        match self.populate(start..end) {
            // Linux before 5.14, and tools that do not support this advice.
            Err(Errno::INVAL) => self.touch(start..end),
            result => result.map_err(BackingError::system("prefault the memory"))?,
        }
        if matches!(self.options.huge, Huge::Prefer | Huge::Require) {
            self.use_huge_pages(start..end);
        }
        Ok(())
    }

    fn populate(&self, range: Range<usize>) -> Result<(), Errno> {
        // SAFETY: the caller has checked that the range is inside the mapping; it starts on an `os_page` boundary.
        unsafe { populate_by_advice(self.base.as_ptr().wrapping_add(range.start), range.len()) }
    }

    /// Stores to every `os_page` in the range the value that it already has.
    pub(crate) fn touch(&self, range: Range<usize>) {
        // SAFETY: the caller has checked that the range is inside the mapping; it is allocated, so that no access is a
        // SIGBUS.
        unsafe { touch(self.base.as_ptr().wrapping_add(range.start), range.len()) };
    }

    pub(crate) fn check(&self, range: &Range<usize>) -> Result<(), BackingError> {
        if range.start <= range.end && range.end <= self.len {
            return Ok(());
        }
        Err(BackingError::Range { start: range.start, end: range.end, size_bytes: self.len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let outer = self.base.as_ptr().wrapping_sub(self.guard_len);
        let len = if self.is_folded { os_page_size() } else { self.guard_len + self.capacity_len + self.behind_len };
        // SAFETY: the range is this value's own mapping, whole. `base` is documented as invalid after the value is
        // dropped, so nothing accesses it any more. Unmapping a whole mapping does not fail (munmap(2)).
        _ = unsafe { rustix::mm::munmap(outer.cast(), len) };
    }
}

/// # Safety
/// The `size_bytes` bytes at `start` are mapped readable and writable; they are whole `os_page`s.
pub(crate) unsafe fn populate_by_advice(start: *mut u8, size_bytes: usize) -> Result<(), Errno> {
    loop {
        // SAFETY: the caller guarantees that the range is mapped; this advice does not change its contents
        // (madvise(2)).
        let result = unsafe { rustix::mm::madvise(start.cast(), size_bytes, Advice::LinuxPopulateWrite) };
        if !matches!(result, Err(Errno::INTR | Errno::AGAIN)) {
            return result;
        }
    }
}

/// Stores to one byte of every `os_page` that the bytes overlap the value that it already has.
///
/// # Safety
/// The `size_bytes` bytes at `start` are mapped readable and writable, and Rust code accesses them only atomically
/// during the call.
pub(crate) unsafe fn touch(start: *mut u8, size_bytes: usize) {
    let mut offset = 0;
    while offset < size_bytes {
        let byte = start.wrapping_add(offset);
        // SAFETY: the caller guarantees that the byte is mapped; the access is atomic, as Rust code's other accesses to
        // it are. Processes that share the memory are outside Rust's rules.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        let mut value = byte.load(Relaxed);
        // Repeated until it succeeds: on some machines a failed exchange does not store.
        while let Err(now) = byte.compare_exchange_weak(value, value, Relaxed, Relaxed) {
            value = now;
        }
        offset = (start.addr() + offset + 1).next_multiple_of(os_page_size()) - start.addr();
    }
}

/// Checks that enough memory is available, before the kernel wakes the OOM killer.
pub(crate) fn ask_for(wanted_bytes: u64) -> Result<(), BackingError> {
    match available_bytes() {
        Some(available_bytes) if wanted_bytes > available_bytes => {
            Err(BackingError::NotEnough { wanted_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

/// Returns `MAP_HUGETLB`, with the logarithm of the page size from bit 26 on (mmap(2)).
fn hugetlb_flags(size: usize) -> MapFlags {
    MapFlags::HUGETLB | MapFlags::from_bits_retain(size.trailing_zeros() << 26)
}

fn lock_error(wanted_bytes: usize, errno: Errno) -> BackingError {
    match errno {
        Errno::NOMEM | Errno::PERM | Errno::AGAIN => BackingError::Lock {
            wanted_bytes: wanted_bytes as u64,
            limit_bytes: rustix::process::getrlimit(rustix::process::Resource::Memlock).current,
        },
        errno => BackingError::System { purpose: "lock the memory", errno },
    }
}

/// Maximum number of bytes that are allocated in one call. A signal makes the kernel give back everything that the
/// interrupted call has allocated.
const ALLOCATE_STEP_BYTES: usize = 16 << 20;

/// Allocates a range of a memory file if there is memory for it, so that the first write does not fail with a SIGBUS.
/// Otherwise returns the reason.
pub(crate) fn allocate(file: BorrowedFd<'_>, len: usize, range: Range<usize>) -> Result<(), BackingError> {
    let stat = rustix::fs::fstat(file).map_err(BackingError::system("read the memory's size"))?;
    // Upper bound of what is missing: `st_blocks` counts what is allocated, in units of 512 bytes (stat(2)).
    let missing = (len as u64).saturating_sub(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
    ask_for(missing.min(range.len() as u64))?;
    set_aside(file, range).map_err(BackingError::system("allocate the memory"))
}

/// Makes the file system allocate blocks for a range of the file.
pub(crate) fn set_aside(file: BorrowedFd<'_>, range: Range<usize>) -> Result<(), Errno> {
    for start in range.clone().step_by(ALLOCATE_STEP_BYTES) {
        let step = ALLOCATE_STEP_BYTES.min(range.end - start);
        loop {
            // KEEP_SIZE is allowed under every seal that a pool has.
            match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, start as u64, step as u64) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}
