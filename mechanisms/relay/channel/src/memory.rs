//! The memory of a channel: private, or of a file that processes share.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use crate::atomic::{AtomicU64, Ordering};
use crate::layout::{
    Geometry, HEADER_BUFFER_COUNT, HEADER_KEPT_PAGE_COUNT, HEADER_MAGIC, HEADER_MODE, HEADER_PAGE_COUNT,
    HEADER_PAGE_SIZE_BYTES, MAGIC, PAGE_SIZES_BYTES, WORD_BYTES,
};
use crate::{Channel, ChannelError, Mode, Options};

/// Returns the number of CPUs that the system may have.
pub fn possible_cpu_count() -> usize {
    // SAFETY: the call has no conditions.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).map_or(1, |count| count.max(1))
}

fn last_error() -> ChannelError {
    ChannelError::System(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Maps this many bytes of a file, or private ones.
fn map(size_bytes: usize, file: Option<BorrowedFd<'_>>) -> Result<NonNull<AtomicU64>, ChannelError> {
    let (flags, file) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses, so no existing memory is touched (mmap(2)).
    let mapping = unsafe { libc::mmap(ptr::null_mut(), size_bytes, protection, flags, file, 0) };
    if mapping == libc::MAP_FAILED {
        return Err(last_error());
    }
    NonNull::new(mapping.cast()).ok_or(ChannelError::System(libc::ENOMEM))
}

fn file_size_bytes(file: BorrowedFd<'_>) -> Result<usize, ChannelError> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the descriptor is open, and the structure may be written.
    if unsafe { libc::fstat(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(last_error());
    }
    // SAFETY: the call has succeeded, so it has filled the structure.
    let stat = unsafe { stat.assume_init() };
    Ok(usize::try_from(stat.st_size).unwrap_or(0))
}

impl Channel {
    /// Makes a channel in private memory. A child of `fork` has a copy of its own.
    ///
    /// # Errors
    /// [`ChannelError::Options`]; [`ChannelError::System`]: there is no memory for it.
    pub fn new(options: &Options) -> Result<Channel, ChannelError> {
        let geometry = Geometry::checked(options)?;
        let memory = map(geometry.words() * WORD_BYTES, None)?;
        Ok(Channel::initialised(memory, geometry, true))
    }

    /// Makes a channel in a file or memfd, which is emptied and gets the size that the channel needs. Pages that were not
    /// yet written to take no space.
    ///
    /// # Errors
    /// [`ChannelError::Options`]; [`ChannelError::System`]: the size cannot be set, or the file cannot be mapped.
    pub fn create(file: BorrowedFd<'_>, options: &Options) -> Result<Channel, ChannelError> {
        let geometry = Geometry::checked(options)?;
        let size_bytes = geometry.words() * WORD_BYTES;
        let size = libc::off_t::try_from(size_bytes).map_err(|_| ChannelError::Options)?;
        for size in [0, size] {
            // SAFETY: the call has no conditions on memory.
            if unsafe { libc::ftruncate(file.as_raw_fd(), size) } != 0 {
                return Err(last_error());
            }
        }
        Ok(Channel::initialised(map(size_bytes, Some(file))?, geometry, true))
    }

    /// Opens the channel in a file, to write or to read.
    ///
    /// # Errors
    /// [`ChannelError::NoChannel`]; [`ChannelError::System`]: the file cannot be mapped.
    ///
    /// # Safety
    /// The file is not truncated while the channel is there, and is written to by channels only.
    pub unsafe fn open(file: BorrowedFd<'_>) -> Result<Channel, ChannelError> {
        let size_bytes = file_size_bytes(file)?;
        if size_bytes < *PAGE_SIZES_BYTES.start() {
            return Err(ChannelError::NoChannel);
        }
        let memory = map(size_bytes, Some(file))?;
        // SAFETY: the file is larger than the header, and mapped.
        let header = unsafe { core::slice::from_raw_parts(memory.as_ptr(), HEADER_KEPT_PAGE_COUNT + 1) };
        // (L) Acquire pairs with (K).
        let is_channel = header[HEADER_MAGIC].load(Ordering::Acquire) == MAGIC;
        let number = |word: usize| header[word].load(Ordering::Relaxed) as usize;
        let options = Options {
            mode: if number(HEADER_MODE) == Mode::Overwrite as usize { Mode::Overwrite } else { Mode::Discard },
            buffer_count: number(HEADER_BUFFER_COUNT),
            page_count: number(HEADER_PAGE_COUNT),
            page_size_bytes: number(HEADER_PAGE_SIZE_BYTES),
            kept_page_count: number(HEADER_KEPT_PAGE_COUNT),
        };
        let geometry = Geometry::checked(&options).ok();
        match geometry.filter(|geometry| is_channel && geometry.words() * WORD_BYTES == size_bytes) {
            Some(geometry) => Ok(Channel { memory, geometry, is_mapped: true }),
            None => {
                unmap(memory, size_bytes);
                Err(ChannelError::NoChannel)
            }
        }
    }

    /// Makes a channel in memory of zeroes, with all pages free.
    pub(crate) fn initialised(memory: NonNull<AtomicU64>, geometry: Geometry, is_mapped: bool) -> Channel {
        let channel = Channel { memory, geometry, is_mapped };
        // From the last to the first, so that the first pages are drawn first.
        (0..geometry.page_count).rev().for_each(|page| channel.push(page));
        for (word, number) in [
            (HEADER_MODE, geometry.mode as usize),
            (HEADER_BUFFER_COUNT, geometry.buffer_count as usize),
            (HEADER_PAGE_COUNT, geometry.page_count as usize),
            (HEADER_PAGE_SIZE_BYTES, geometry.page_words * WORD_BYTES),
            (HEADER_KEPT_PAGE_COUNT, geometry.kept_page_count as usize),
        ] {
            channel.words()[word].store(number as u64, Ordering::Relaxed);
        }
        // (K) Release pairs with (L): whoever finds the word finds the rest.
        channel.words()[HEADER_MAGIC].store(MAGIC, Ordering::Release);
        channel
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_mapped {
            unmap(self.memory, self.geometry.words() * WORD_BYTES);
        }
    }
}

/// Unmaps a mapping that is not used any more.
fn unmap(mapping: NonNull<AtomicU64>, size_bytes: usize) {
    // SAFETY: a whole mapping of the channel's. With these arguments it fails only for lack of memory, and then the mapping
    // stays.
    unsafe { libc::munmap(mapping.as_ptr().cast(), size_bytes) };
}
