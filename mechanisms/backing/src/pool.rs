use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::error::BackingError;
use crate::mapping::{HUGETLB_SIZE_BYTES_MIN, Mapping, allocate, set_aside};
use crate::options::{Huge, MemoryOptions, Obtained};
use crate::{huge_page_size, os_page_size};

/// File systems, by `f_type` (linux/magic.h), whose mapped files can be written once their blocks are allocated. An
/// overlay hides the file system below it. Network file systems, and those that write to new blocks each time,
/// guarantee nothing.
const TMPFS: u64 = 0x0102_1994;
const EXT: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;

/// Memory to share: a sealed memory file (or a file on a file system), and this process's mapping of it.
#[derive(Debug)]
pub struct Pool {
    file: OwnedFd,
    mapping: Mapping,
}

impl Pool {
    /// Makes a memory file of `size_bytes` zeroes, rounded up to whole `os_page`s, seals its size permanently, and maps
    /// it. `name` shows in `/proc/PID/maps`. If huge pages are required, the size is rounded up to whole huge pages.
    ///
    /// The file is closed on exec. It is as long as the capacity. Other processes map all of that, and must be told how
    /// much memory there is.
    ///
    /// # Errors
    /// [`BackingError::Size`] (zero, or too large for an address space), [`BackingError::NotEnough`] (only when
    /// prefaulted), [`BackingError::NotHuge`], [`BackingError::Lock`], [`BackingError::NoCpu`],
    /// [`BackingError::System`]. Nothing is left after an error.
    pub fn new(name: &str, size_bytes: usize, options: MemoryOptions) -> Result<Pool, BackingError> {
        let sizes = Sizes::new(size_bytes, options)?;
        sizes.down_the_ladder(|hugetlb| Pool::of_pages(name, sizes, options, hugetlb))
    }

    /// Makes the pool with huge pages of the size `hugetlb`, which the system has set aside, or with other pages.
    fn of_pages(
        name: &str,
        sizes: Sizes,
        options: MemoryOptions,
        hugetlb: Option<usize>,
    ) -> Result<Pool, BackingError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let flags = flags | hugetlb.map_or(MemfdFlags::empty(), hugetlb_flags);
        let file = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Linux before 6.3 does not support the flag against execution.
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
            result => result,
        }
        .map_err(BackingError::system("make a memory file"))?;
        // As long as the capacity, so that it can be sealed now. The part for later growth consists of holes until
        // then.
        rustix::fs::ftruncate(&file, sizes.capacity_bytes as u64)
            .map_err(BackingError::system("size the memory file"))?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(BackingError::system("seal the memory file"))?;
        let options = options.capacity_bytes(sizes.capacity_bytes);
        let mapping = Mapping::with_capacity(Some(file.as_fd()), sizes.size_bytes, hugetlb, options)?;
        mapping.settle(Some(file.as_fd()), 0..sizes.size_bytes)?;
        Ok(Pool { file, mapping })
    }

    /// Makes a pool on a file system: makes a file at `path` that no other user may read or write, allocates the blocks
    /// of its first `promised_bytes`, and maps it. The rest must be prefaulted before it is used. The file outlives all
    /// its users until it is removed. If it is truncated, processes that map it get `SIGBUS`.
    ///
    /// Allowed file systems are tmpfs (`/dev/shm`), ext2 to ext4, and xfs. On a disk a store may wait for the disk.
    ///
    /// # Errors
    /// [`BackingError::Size`], [`BackingError::Range`] (`promised_bytes` exceed the size), [`BackingError::NotEnough`]
    /// (memory, on tmpfs), [`BackingError::NoSpace`], [`BackingError::FileSystem`], [`BackingError::System`] (for
    /// instance, the file exists already). After an error there is no new file.
    pub fn on_file_system(path: &Path, size_bytes: usize, promised_bytes: usize) -> Result<Pool, BackingError> {
        let size_bytes = whole_pages(size_bytes, os_page_size())?;
        if promised_bytes > size_bytes {
            return Err(BackingError::Range { start: 0, end: promised_bytes, size_bytes });
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(BackingError::system("make the file"))?;
        Pool::fill(file, size_bytes, promised_bytes).inspect_err(|_| {
            let _ = rustix::fs::unlink(path);
        })
    }

    fn fill(file: OwnedFd, size_bytes: usize, promised_bytes: usize) -> Result<Pool, BackingError> {
        let stat = rustix::fs::fstatfs(&file).map_err(BackingError::system("ask for the file system"))?;
        let magic = stat.f_type as u64;
        if ![TMPFS, EXT, XFS].contains(&magic) {
            return Err(BackingError::FileSystem { magic });
        }
        rustix::fs::ftruncate(&file, size_bytes as u64).map_err(BackingError::system("size the file"))?;
        let promised = 0..promised_bytes;
        let allocated = if magic == TMPFS {
            allocate(file.as_fd(), promised_bytes, promised)
        } else {
            set_aside(file.as_fd(), promised).map_err(BackingError::system("set blocks of the file aside"))
        };
        allocated.map_err(|error| match error {
            BackingError::System { errno: Errno::NOSPC | Errno::DQUOT, .. } => {
                BackingError::NoSpace { wanted_bytes: promised_bytes as u64 }
            }
            // ext2 and ext3 cannot allocate blocks in advance.
            BackingError::System { errno: Errno::OPNOTSUPP, .. } => BackingError::FileSystem { magic },
            error => error,
        })?;
        let mapping = Mapping::map_len(file.as_fd(), size_bytes)?;
        Ok(Pool { file, mapping })
    }

    /// Uses a file that another pool has made, all of `size_bytes`. Makes nothing of it present.
    ///
    /// # Errors
    /// [`BackingError::Size`], [`BackingError::System`].
    pub fn of_file(file: OwnedFd, size_bytes: usize) -> Result<Pool, BackingError> {
        let size_bytes = whole_pages(size_bytes, os_page_size())?;
        let mapping = Mapping::map_len(file.as_fd(), size_bytes)?;
        Ok(Pool { file, mapping })
    }

    /// Returns the file without the mapping.
    pub fn into_file(self) -> OwnedFd {
        self.file
    }

    /// Returns the memory file, to pass it on.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns this process's mapping of the memory.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the address of the first byte, which is on an `os_page` boundary.
    pub fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    /// Returns the size in bytes, whole `os_page`s.
    pub fn size_bytes(&self) -> usize {
        self.mapping.len()
    }

    #[cfg(test)]
    #[cfg(target_pointer_width = "64")]
    pub(crate) fn into_parts(self) -> (OwnedFd, Mapping) {
        (self.file, self.mapping)
    }

    /// Makes the `os_page`s that overlap `range` (bytes from the start) present: allocated, and in this process's page
    /// table. Their contents stay, and other threads and processes may use them at the same time.
    ///
    /// # Errors
    /// [`BackingError::Range`], [`BackingError::NotEnough`], [`BackingError::System`]. A part may then be present.
    pub fn prefault(&self, range: Range<usize>) -> Result<(), BackingError> {
        self.mapping.prefault(Some(self.file.as_fd()), range)
    }

    /// Grows the memory to `size_bytes`, rounded up as by [`Pool::new`], in place and as its options say. Other
    /// processes that map the file can use the new part as soon as they learn of it.
    ///
    /// # Errors
    /// See [`Pool::new`]; [`BackingError::Size`] also if it exceeds the capacity, or would shrink. After an error, the
    /// memory has its previous size.
    pub fn grow(&mut self, size_bytes: usize) -> Result<(), BackingError> {
        let begin = self.size_bytes() as u64;
        self.mapping.grow(Some(self.file.as_fd()), size_bytes).inspect_err(|_| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Memory that is not given back here is used when the pool grows the next time.
            let _ = rustix::fs::fallocate(&self.file, flags, begin, self.mapping.capacity_bytes() as u64 - begin);
        })
    }

    /// Returns the kinds of pages that the memory really consists of: see [`Mapping::obtained`].
    ///
    /// # Errors
    /// [`BackingError::System`].
    pub fn obtained(&self) -> Result<Obtained, BackingError> {
        self.mapping.obtained(0..self.size_bytes())
    }

    /// Replaces the `os_page`s inside `range` (bytes from the start) by huge pages if the kernel has some, independent
    /// of its settings for memory files. A whole huge page is then one fault, and one TLB entry, in each process that
    /// maps the pool. The contents of the memory stay; holes become zeroes. Returns the number of bytes in huge pages;
    /// 0 before Linux 6.1.
    ///
    /// Takes milliseconds for each MiB.
    pub fn use_huge_pages(&self, range: Range<usize>) -> usize {
        self.mapping.use_huge_pages(range)
    }

    /// Gives the memory of the whole `os_page`s inside `range` (bytes from the start) back to the system. They then
    /// read as zeroes, in every process, and each one is allocated again when it is written.
    ///
    /// # Errors
    /// [`BackingError::Range`], [`BackingError::System`].
    pub fn give_back(&self, range: Range<usize>) -> Result<(), BackingError> {
        self.mapping.check(&range)?;
        let os_page = os_page_size();
        let (start, end) = (range.start.next_multiple_of(os_page), range.end / os_page * os_page);
        if start >= end {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, start as u64, (end - start) as u64)
            .map_err(BackingError::system("give memory of the memory file back"))
    }
}

impl AsFd for Pool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Memory of this process only (anonymous), made with the options of a [`Pool`].
///
/// A child made by `fork` has a copy: the first write to each page by either process faults, and takes memory.
#[derive(Debug)]
pub struct PrivatePool {
    mapping: Mapping,
}

impl PrivatePool {
    /// Makes memory of `size_bytes` zeroes, rounded up to whole `os_page`s. If huge pages are required, the size is
    /// rounded up to whole huge pages.
    ///
    /// # Errors
    /// See [`Pool::new`].
    pub fn new(size_bytes: usize, options: MemoryOptions) -> Result<PrivatePool, BackingError> {
        let sizes = Sizes::new(size_bytes, options)?;
        let options = options.capacity_bytes(sizes.capacity_bytes);
        sizes.down_the_ladder(|hugetlb| {
            let mapping = Mapping::with_capacity(None, sizes.size_bytes, hugetlb, options)?;
            mapping.settle(None, 0..sizes.size_bytes)?;
            Ok(PrivatePool { mapping })
        })
    }

    /// Returns the mapping of the memory.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the address of the first byte: see [`Pool::base`].
    pub fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    /// Returns the size in bytes: see [`Pool::size_bytes`].
    pub fn size_bytes(&self) -> usize {
        self.mapping.len()
    }

    /// Returns the mapping alone, for owners that keep it elsewhere.
    pub fn into_mapping(self) -> Mapping {
        self.mapping
    }

    /// Makes a part of the memory present: see [`Pool::prefault`].
    ///
    /// # Errors
    /// See [`Pool::prefault`].
    pub fn prefault(&self, range: Range<usize>) -> Result<(), BackingError> {
        self.mapping.prefault(None, range)
    }

    /// Grows the memory: see [`Pool::grow`].
    ///
    /// # Errors
    /// See [`Pool::grow`].
    pub fn grow(&mut self, size_bytes: usize) -> Result<(), BackingError> {
        self.mapping.grow(None, size_bytes)
    }

    /// Returns the kinds of pages that the memory really consists of: see [`Pool::obtained`].
    ///
    /// # Errors
    /// See [`Pool::obtained`].
    pub fn obtained(&self) -> Result<Obtained, BackingError> {
        self.mapping.obtained(0..self.size_bytes())
    }
}

/// Size and capacity in bytes, both in whole pages.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    size_bytes: usize,
    capacity_bytes: usize,
    huge: Huge,
}

impl Sizes {
    fn new(size_bytes: usize, options: MemoryOptions) -> Result<Sizes, BackingError> {
        // Asked of the kernel in any case, before the boundaries of huge pages are needed.
        let huge_page = huge_page_size();
        let page = if options.huge == Huge::Require { huge_page } else { os_page_size() };
        let size_bytes = whole_pages(size_bytes, page)?;
        let capacity_bytes = whole_pages(options.capacity_bytes.max(size_bytes), page)?;
        Ok(Sizes { size_bytes, capacity_bytes, huge: options.huge })
    }

    /// Tries one kind of pages after the other: hugetlb of each size, if the memory is a whole number of these pages,
    /// then other pages.
    fn down_the_ladder<T>(self, attempt: impl Fn(Option<usize>) -> Result<T, BackingError>) -> Result<T, BackingError> {
        if matches!(self.huge, Huge::Prefer | Huge::Require) {
            let fits =
                |size: &usize| self.size_bytes.is_multiple_of(*size) && self.capacity_bytes.is_multiple_of(*size);
            for size in hugetlb_sizes().into_iter().filter(fits).filter(|size| has_hugetlb(*size)) {
                if let Ok(made) = attempt(Some(size)) {
                    return Ok(made);
                }
            }
        }
        attempt(None)
    }
}

/// Returns the sizes of huge pages that the system may have set aside, in bytes, the largest first.
fn hugetlb_sizes() -> Vec<usize> {
    let directory = std::fs::read_dir("/sys/kernel/mm/hugepages");
    let names = directory.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut sizes: Vec<usize> = names.filter_map(|name| hugetlb_size_in(&name)).collect();
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    sizes
}

/// Returns the size that a directory's name states.
fn hugetlb_size_in(name: &str) -> Option<usize> {
    let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<usize>().ok()?.checked_mul(1 << 10)?;
    (size.is_power_of_two() && size >= HUGETLB_SIZE_BYTES_MIN).then_some(size)
}

/// Whether a huge page of this size is available: free, or made on demand.
fn has_hugetlb(size: usize) -> bool {
    let place = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", size >> 10);
    ["free_hugepages", "nr_overcommit_hugepages"].iter().any(|name| {
        let text = std::fs::read_to_string(Path::new(&place).join(name)).unwrap_or_default();
        text.trim().parse::<u64>().is_ok_and(|count| count > 0)
    })
}

/// Returns `MFD_HUGETLB`, with the logarithm of the page size from bit 26 on (memfd_create(2)).
fn hugetlb_flags(size: usize) -> MemfdFlags {
    MemfdFlags::HUGETLB | MemfdFlags::from_bits_retain(size.trailing_zeros() << 26)
}

fn whole_pages(size_bytes: usize, page: usize) -> Result<usize, BackingError> {
    match size_bytes.checked_next_multiple_of(page) {
        Some(rounded) if (1..=isize::MAX as usize).contains(&rounded) => Ok(rounded),
        _ => Err(BackingError::Size { size_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_hugetlb_are_read_from_names() {
        let names = ["hugepages-2048kB", "hugepages-32768kB", "hugepages-64kB", "hugepages-kB", "hugepages-3072kB"];
        assert_eq!(names.map(hugetlb_size_in), [Some(2 << 20), Some(32 << 20), None, None, None]);
        assert!(hugetlb_sizes().is_sorted_by(|one, other| one > other));
    }

    /// 16 KiB and 64 KiB are base pages of AArch64.
    #[test]
    fn sizes_are_rounded_up_to_whole_pages() {
        for page in [4 << 10, 16 << 10, 64 << 10, 2 << 20, 32 << 20, 512 << 20] {
            let sizes = [1, page - 1, page, page + 1].map(|size| whole_pages(size, page).unwrap());
            assert_eq!(sizes, [page, page, page, 2 * page]);
            assert!(whole_pages(0, page).is_err() && whole_pages(usize::MAX - page / 2, page).is_err());
        }
    }
}
