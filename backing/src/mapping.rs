use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use rustix::fs::{FallocateFlags, FileType, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::available::available_bytes;
use crate::error::BackingError;
use crate::{os_page_size, unbacked_os_pages};

/// Bytes of a huge page: what one entry of the second lowest table maps, on x86-64 and on AArch64 with `os_page`s of 4 KiB.
pub(crate) const HUGE_PAGE_SIZE_BYTES: usize = 2 << 20;

/// All of a memory file, or of a file that is used as one, mapped readable, writable and shared. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    is_sealed: bool,
}

// SAFETY: an address range that this value owns; whatever is done through the address is `unsafe` where it is done.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; its methods only read the page table, or store atomically.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps all of a memory file that somebody else made and sealed. With `populate`, all of it is in this process's page
    /// table afterwards, so that no write faults.
    ///
    /// # Errors
    /// [`BackingError::NotMemory`], [`BackingError::NotSealed`] (the seal against shrinking is missing),
    /// [`BackingError::Size`] (it is empty), [`BackingError::NotEnough`], [`BackingError::System`].
    pub fn map(file: impl AsFd, populate: bool) -> Result<Mapping, BackingError> {
        let file = file.as_fd();
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|errno| match errno {
            Errno::INVAL => BackingError::NotMemory,
            errno => BackingError::System { purpose: "read the memory's seals", errno },
        })?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(BackingError::NotSealed);
        }
        // Read after the seal is known: from here on it cannot become less.
        let stat = rustix::fs::fstat(file).map_err(BackingError::system("read the memory's size"))?;
        let len = usize::try_from(stat.st_size).map_err(|_| BackingError::Size { size_bytes: usize::MAX })?;
        let mut mapping = Mapping::map_len(file, len)?;
        mapping.is_sealed = true;
        if populate {
            mapping.prefault(file, 0..len)?;
        }
        Ok(mapping)
    }

    /// Maps all of a regular file of this user's (or root's) that nobody else may write to: the buffers of a session on a file
    /// system. No seal keeps it from being truncated, and then the next access is a `SIGBUS`: the user who puts buffers there
    /// answers for that.
    ///
    /// # Errors
    /// [`BackingError::NotOurs`], [`BackingError::Size`] (it is empty), [`BackingError::System`].
    pub fn map_file(file: impl AsFd) -> Result<Mapping, BackingError> {
        let file = file.as_fd();
        let stat = rustix::fs::fstat(file).map_err(BackingError::system("read the memory's size"))?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let is_ours = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
        if !is_regular || !is_ours || stat.st_mode & 0o022 != 0 {
            return Err(BackingError::NotOurs);
        }
        let len = usize::try_from(stat.st_size).map_err(|_| BackingError::Size { size_bytes: usize::MAX })?;
        Mapping::map_len(file, len)
    }

    /// Whether the memory is sealed against becoming less: no access is a `SIGBUS`.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Maps the first `len` bytes, whatever the seals. What is as large as a huge page starts where one may start, since huge
    /// pages of the file serve no other mapping.
    pub(crate) fn map_len(file: BorrowedFd<'_>, len: usize) -> Result<Mapping, BackingError> {
        if len == 0 {
            return Err(BackingError::Size { size_bytes: 0 });
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        if len < HUGE_PAGE_SIZE_BYTES {
            // SAFETY: a new mapping at an address that the kernel chooses, so that no existing memory is touched (mmap(2)).
            let base = unsafe { rustix::mm::mmap(null_mut(), len, protection, MapFlags::SHARED, file, 0) };
            return Mapping::of(base, len);
        }
        let mapped_len = len.checked_next_multiple_of(os_page_size()).ok_or(BackingError::Size { size_bytes: len })?;
        let reserved_len =
            mapped_len.checked_add(HUGE_PAGE_SIZE_BYTES).ok_or(BackingError::Size { size_bytes: len })?;
        // SAFETY: as above; nobody may access it.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                reserved_len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let reserved = Mapping::of(reserved, reserved_len)?;
        let skipped = reserved.base().addr().next_multiple_of(HUGE_PAGE_SIZE_BYTES) - reserved.base().addr();
        let start = reserved.base().wrapping_add(skipped).cast();
        // SAFETY: replaces a part of the reservation, which is this function's alone.
        let base = unsafe { rustix::mm::mmap(start, len, protection, MapFlags::SHARED | MapFlags::FIXED, file, 0) };
        let mapping = Mapping::of(base, len)?;
        let (first, _) = reserved.into_raw();
        let behind = skipped + mapped_len;
        for (start, len) in [(first, skipped), (first.wrapping_add(behind), reserved_len - behind)] {
            if len > 0 {
                // SAFETY: the parts of the reservation in front of and behind the mapping, of which nobody knows. Where the
                // kernel refuses (too many mappings), addresses stay reserved, and no memory.
                let _ = unsafe { rustix::mm::munmap(start.cast(), len) };
            }
        }
        Ok(mapping)
    }

    /// What mmap(2) gave.
    fn of(base: Result<*mut c_void, Errno>, len: usize) -> Result<Mapping, BackingError> {
        let base = base.map_err(BackingError::system("map the memory"))?;
        let base = NonNull::new(base.cast()).ok_or(BackingError::Size { size_bytes: len })?;
        Ok(Mapping { base, len, is_sealed: false })
    }

    /// Asks the kernel to put huge pages in place of the `os_page`s in `range`, for everybody who maps the file. Returns how many bytes
    /// of it are in huge pages then; 0 where the kernel cannot or will not.
    pub(crate) fn use_huge_pages(&self, range: Range<usize>) -> usize {
        let mut size_bytes = 0;
        let first = range.start.div_ceil(HUGE_PAGE_SIZE_BYTES);
        // One by one: a part that finds no room leaves the others what they got.
        for index in first..range.end.min(self.len) / HUGE_PAGE_SIZE_BYTES {
            let start = self.base.as_ptr().wrapping_add(index * HUGE_PAGE_SIZE_BYTES);
            // SAFETY: inside the mapping; what the memory holds stays (madvise(2)).
            if unsafe { libc::madvise(start.cast(), HUGE_PAGE_SIZE_BYTES, libc::MADV_COLLAPSE) } != 0 {
                break;
            }
            size_bytes += HUGE_PAGE_SIZE_BYTES;
        }
        size_bytes
    }

    /// Where it starts: on an `os_page`. The address means nothing once the mapping is dropped.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Gives the mapping up without unmapping it: it stays until the process ends.
    pub fn into_raw(self) -> (*mut u8, usize) {
        let this = ManuallyDrop::new(self);
        (this.base.as_ptr(), this.len)
    }

    /// How many `os_page`s that overlap `range` (bytes from the start) are not there: see [`unbacked_os_pages`].
    ///
    /// # Errors
    /// [`BackingError::Range`], [`BackingError::System`].
    pub fn unbacked_os_pages(&self, range: Range<usize>) -> Result<usize, BackingError> {
        self.check(&range)?;
        let base = self.base.as_ptr().addr();
        unbacked_os_pages(base + range.start..base + range.end)
    }

    /// Makes the `os_page`s that overlap `range` be there: allocated in `file`, which is the one mapped, and in this
    /// process's page table. Others may use the memory meanwhile.
    pub(crate) fn prefault(&self, file: BorrowedFd<'_>, range: Range<usize>) -> Result<(), BackingError> {
        self.check(&range)?;
        if range.is_empty() {
            return Ok(());
        }
        let os_page = os_page_size();
        let start = range.start / os_page * os_page;
        // The file ends on an `os_page` when a `Pool` made it, and its last bytes may be less when another program did.
        let end = range.end.next_multiple_of(os_page).min(self.len);
        allocate(file, self.len, start..end)?;
        match self.populate(start..end) {
            // Linux before 5.14, and tools that do not know the advice.
            Err(Errno::INVAL) => {
                self.touch(start..end);
                Ok(())
            }
            result => result.map_err(BackingError::system("prefault the memory")),
        }
    }

    fn populate(&self, range: Range<usize>) -> Result<(), Errno> {
        let start = self.base.as_ptr().wrapping_add(range.start).cast();
        loop {
            // SAFETY: the range was checked to be inside the mapping and starts on an `os_page`; this advice changes no
            // byte of it (madvise(2)).
            let result = unsafe { rustix::mm::madvise(start, range.len(), Advice::LinuxPopulateWrite) };
            if !matches!(result, Err(Errno::INTR | Errno::AGAIN)) {
                return result;
            }
        }
    }

    /// Stores to every `os_page` what is there already.
    pub(crate) fn touch(&self, range: Range<usize>) {
        for offset in range.step_by(os_page_size()) {
            let byte = self.base.as_ptr().wrapping_add(offset);
            // SAFETY: inside the mapping, by the caller's check; allocated, so that the access is no SIGBUS; the access
            // is atomic, and the memory is shared with processes that Rust's rules do not reach.
            let byte = unsafe { AtomicU8::from_ptr(byte) };
            let mut value = byte.load(Relaxed);
            // Until it succeeds: a failed exchange is not a store on every machine.
            while let Err(now) = byte.compare_exchange_weak(value, value, Relaxed, Relaxed) {
                value = now;
            }
        }
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
        // SAFETY: this value's own mapping, whole; who kept an address beyond the value's life broke `base`'s terms.
        // Unmapping a whole mapping does not fail (munmap(2)).
        _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Bytes allocated in one call: a signal makes the kernel give back what a call has allocated so far.
const ALLOCATE_STEP_BYTES: usize = 16 << 20;

/// Allocates a range of a memory file, where there is memory for it, or says why not, instead of leaving it to the first write
/// and its SIGBUS.
pub(crate) fn allocate(file: BorrowedFd<'_>, len: usize, range: Range<usize>) -> Result<(), BackingError> {
    let stat = rustix::fs::fstat(file).map_err(BackingError::system("read the memory's size"))?;
    // At most this is missing: `st_blocks` counts what is allocated, in units of 512 bytes (stat(2)).
    let missing = (len as u64).saturating_sub(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
    let wanted_bytes = missing.min(range.len() as u64);
    if let Some(available_bytes) = available_bytes().filter(|available| wanted_bytes > *available) {
        return Err(BackingError::NotEnough { wanted_bytes, available_bytes });
    }
    set_aside(file, range).map_err(BackingError::system("allocate the memory"))
}

/// Has a file's system set blocks aside for a range of it.
pub(crate) fn set_aside(file: BorrowedFd<'_>, range: Range<usize>) -> Result<(), Errno> {
    for start in range.clone().step_by(ALLOCATE_STEP_BYTES) {
        let step = ALLOCATE_STEP_BYTES.min(range.end - start);
        loop {
            // With KEEP_SIZE it is allowed under every seal that a pool has.
            match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, start as u64, step as u64) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}
