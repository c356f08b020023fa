//! temporary
use rustix::mm::*;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[derive(Debug)]
pub struct BackingError(rustix::io::Errno);
impl std::fmt::Display for BackingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}
impl std::error::Error for BackingError {}
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
}
unsafe impl Send for Mapping {}
unsafe impl Sync for Mapping {}
impl Mapping {
    pub fn map(fd: OwnedFd, _populate: bool) -> Result<Mapping, BackingError> {
        let len = rustix::fs::fstat(&fd).map_err(BackingError)?.st_size as usize;
        let base =
            unsafe { mmap(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0) }
                .map_err(BackingError)?;
        Ok(Mapping { base: base.cast(), len })
    }
    pub fn as_ptr(&self) -> *mut u8 {
        self.base
    }
    pub fn len(&self) -> usize {
        self.len
    }
}
impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}
#[derive(Debug)]
pub struct Pool {
    fd: OwnedFd,
    mapping: Mapping,
}
impl Pool {
    pub fn new(name: &str, size: usize) -> Result<Pool, BackingError> {
        let fd =
            rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING)
                .map_err(BackingError)?;
        rustix::fs::ftruncate(&fd, size as u64).map_err(BackingError)?;
        let mapping = Mapping::map(fd.try_clone().unwrap(), false)?;
        Ok(Pool { fd, mapping })
    }
    pub fn prefault(&self, range: std::ops::Range<usize>) -> Result<(), BackingError> {
        unsafe { madvise(self.mapping.base.wrapping_add(range.start).cast(), range.len(), Advice::LinuxPopulateWrite) }
            .map_err(BackingError)
    }
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.base
    }
    pub fn len(&self) -> usize {
        self.mapping.len
    }
}
