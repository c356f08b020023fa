use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::error::BackingError;
use crate::mapping::{Mapping, allocate, set_aside};
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

/// File systems by their `f_type` (linux/magic.h) whose mapped files can be written once their blocks are set aside. An overlay
/// hides which one lies below; network file systems and those that write elsewhere than before promise nothing.
const TMPFS: u64 = 0x0102_1994;
const EXT: u64 = 0xEF53;
const XFS: u64 = 0x5846_5342;

/// Memory that is to be shared: a sealed memory file (or a file on a file system), and this process's mapping of it.
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
        let size_bytes = whole_os_pages(size_bytes)?;
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

    /// As [`Pool::new`], but on a file system: makes a file at `path` that nobody else may read or write, has the blocks of its
    /// first `promised_bytes` set aside, and maps it. The rest has to be prefaulted before it is used. It outlives all who use
    /// it until somebody removes it; nothing protects them from its being truncated.
    ///
    /// Allowed are tmpfs (`/dev/shm`), ext2 to ext4, and xfs. On a disk a store may wait for the disk.
    ///
    /// # Errors
    /// [`BackingError::Size`], [`BackingError::NotEnough`] (memory, on tmpfs), [`BackingError::NoSpace`],
    /// [`BackingError::FileSystem`], [`BackingError::System`] (it exists already, among others). No file is left then.
    pub fn on_file_system(path: &Path, size_bytes: usize, promised_bytes: usize) -> Result<Pool, BackingError> {
        let size_bytes = whole_os_pages(size_bytes)?;
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
            // Those that came before ext4 cannot set blocks aside.
            BackingError::System { errno: Errno::OPNOTSUPP, .. } => BackingError::FileSystem { magic },
            error => error,
        })?;
        let mapping = Mapping::map_len(file.as_fd(), size_bytes)?;
        Ok(Pool { file, mapping })
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

fn whole_os_pages(size_bytes: usize) -> Result<usize, BackingError> {
    match size_bytes.checked_next_multiple_of(os_page_size()) {
        Some(rounded) if (1..=isize::MAX as usize).contains(&rounded) => Ok(rounded),
        _ => Err(BackingError::Size { size_bytes }),
    }
}

impl AsFd for Pool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
