use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::error::BackingError;
use crate::mapping::Mapping;
use crate::os_page_size;

/// How a pool is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    /// Make all of it be there before [`Pool::new`] returns (the default). Otherwise call [`Pool::prefault`] for a part
    /// before it is used.
    pub prefault: bool,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions { prefault: true }
    }
}

/// Memory that is to be shared: a sealed memory file, and this process's mapping of it.
#[derive(Debug)]
pub struct Pool {
    file: OwnedFd,
    mapping: Mapping,
}

impl Pool {
    /// Makes a memory file of `size_bytes`, rounded up to whole `os_page`s and all zeroes, seals its size for good, and
    /// maps it. `name` shows in `/proc/PID/maps`.
    ///
    /// The file is closed on exec.
    ///
    /// # Errors
    /// [`BackingError::Size`] (none, or too many for an address space), [`BackingError::NotEnough`] (only when prefaulted),
    /// [`BackingError::System`].
    pub fn new(name: &str, size_bytes: usize, options: PoolOptions) -> Result<Pool, BackingError> {
        let size_bytes = match size_bytes.checked_next_multiple_of(os_page_size()) {
            Some(rounded) if (1..=isize::MAX as usize).contains(&rounded) => rounded,
            _ => return Err(BackingError::Size { size_bytes }),
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Linux before 6.3 does not know that memory may be sealed against being a program.
            Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
            result => result,
        }
        .map_err(BackingError::system("make a memory file"))?;
        rustix::fs::ftruncate(&file, size_bytes as u64).map_err(BackingError::system("size the memory file"))?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(BackingError::system("seal the memory file"))?;
        let mapping = Mapping::map_len(file.as_fd(), size_bytes)?;
        let pool = Pool { file, mapping };
        if options.prefault {
            pool.prefault(0..size_bytes)?;
        }
        Ok(pool)
    }

    /// The memory file, to hand out.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// This process's mapping of all of it.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Where the mapping starts: on an `os_page`.
    pub fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    /// Bytes, whole `os_page`s.
    pub fn size_bytes(&self) -> usize {
        self.mapping.len()
    }

    /// Takes the pool apart, for owners that keep the two in different places.
    pub fn into_parts(self) -> (OwnedFd, Mapping) {
        (self.file, self.mapping)
    }

    /// Makes the `os_page`s that overlap `range` (bytes from the start) be there: allocated, and in this process's page
    /// table. What they hold stays, and others may use them meanwhile.
    ///
    /// # Errors
    /// [`BackingError::Range`], [`BackingError::NotEnough`], [`BackingError::System`]. A part may be there then.
    pub fn prefault(&self, range: Range<usize>) -> Result<(), BackingError> {
        self.mapping.prefault(self.file.as_fd(), range)
    }

    /// Puts huge pages in place of the `os_page`s inside `range` (bytes from the start) where the kernel has some to give, whatever its
    /// settings say of memory files; a whole huge page is then one fault, and one entry of the processor's cache of the page table, in
    /// each process that maps the pool. What the memory holds stays; holes become zeroes. Returns how many bytes are in huge pages; 0
    /// before Linux 6.1.
    ///
    /// Takes milliseconds for each MiB.
    pub fn use_huge_pages(&self, range: Range<usize>) -> usize {
        self.mapping.use_huge_pages(range)
    }

    /// Gives the memory of the whole `os_page`s inside `range` (bytes from the start) back to the system. They read as zeroes then, in
    /// every process, and come back, one by one, when somebody writes to them.
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

    /// How many `os_page`s that overlap `range` (bytes from the start) are not there: see [`crate::unbacked_os_pages`].
    ///
    /// # Errors
    /// [`BackingError::Range`], [`BackingError::System`].
    pub fn unbacked_os_pages(&self, range: Range<usize>) -> Result<usize, BackingError> {
        self.mapping.unbacked_os_pages(range)
    }
}

impl AsFd for Pool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
