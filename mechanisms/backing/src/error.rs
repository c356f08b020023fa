use std::fmt;

use rustix::io::Errno;

use crate::huge_page_size;

/// An error of making or mapping memory, with a remedy in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackingError {
    /// The size is zero, or larger than an address space.
    Size {
        /// Size that was requested.
        size_bytes: usize,
    },
    /// The machine or the control group does not have enough memory.
    NotEnough {
        /// Number of bytes that are needed in addition to those that are present.
        wanted_bytes: u64,
        /// Number of bytes that are available.
        available_bytes: u64,
    },
    /// The file is not sealed against shrinking, so its sender could kill this process.
    NotSealed,
    /// The file is not a memory file.
    NotMemory,
    /// The file belongs to another user, or others may write to it, or it is not a regular file.
    NotOurs,
    /// The file system does not guarantee that a store to a mapped file finds its block.
    FileSystem {
        /// `f_type` of the file system (statfs(2)).
        magic: u64,
    },
    /// The file system does not have enough space.
    NoSpace {
        /// Number of bytes that are needed.
        wanted_bytes: u64,
    },
    /// The range is not inside the memory.
    Range {
        /// Offset at which the range starts.
        start: usize,
        /// Offset at which the range ends.
        end: usize,
        /// Size of the memory, in bytes.
        size_bytes: usize,
    },
    /// Huge pages were required, and there are too few.
    NotHuge {
        /// Number of bytes that were required in huge pages.
        wanted_bytes: usize,
        /// Number of bytes that are in huge pages, as far as the kernel tells.
        huge_bytes: usize,
    },
    /// The memory cannot be locked.
    Lock {
        /// Number of bytes to lock.
        wanted_bytes: u64,
        /// `RLIMIT_MEMLOCK`; `None` if it is unlimited.
        limit_bytes: Option<u64>,
    },
    /// There is no such CPU, or its NUMA node is not known.
    NoCpu {
        /// Number of the CPU.
        cpu: u32,
    },
    /// The kernel refused a call.
    System {
        /// Purpose of the call.
        purpose: &'static str,
        /// Error of the kernel.
        errno: Errno,
    },
}

impl BackingError {
    /// Wraps an errno, for `map_err`.
    pub(crate) fn system(purpose: &'static str) -> impl Fn(Errno) -> BackingError {
        move |errno| BackingError::System { purpose, errno }
    }
}

/// Returns the errno of the preceding system call, which was not made through rustix.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn remedy(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::NOMEM | Errno::NOSPC => Some("there is not enough memory; choose a smaller --budget"),
        Errno::MFILE => Some("this process has too many open files; raise its limit (ulimit -n)"),
        Errno::NFILE => Some("the machine has too many open files; raise fs.file-max"),
        Errno::FAULT => Some("the memory went away while it was being prefaulted; choose a smaller --budget"),
        Errno::NOSYS => Some("the kernel is too old or a sandbox forbids the call"),
        Errno::PERM | Errno::ACCESS => Some("a sandbox or a security policy forbids it"),
        _ => None,
    }
}

pub(crate) struct Mib(pub(crate) u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

impl fmt::Display for BackingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BackingError::Size { size_bytes } => write!(f, "memory cannot have {size_bytes} bytes"),
            BackingError::NotEnough { wanted_bytes, available_bytes } => write!(
                f,
                "{} of memory are wanted and {} are available here; choose a smaller --budget",
                Mib(wanted_bytes),
                Mib(available_bytes)
            ),
            BackingError::NotSealed => {
                write!(f, "the memory is not sealed against shrinking; only a session owner's memory is used")
            }
            BackingError::NotMemory => {
                write!(f, "the file is no memory file (memfd); only a session owner's memory is used")
            }
            BackingError::NotOurs => write!(
                f,
                "the file is not a regular one of this user or root alone; only a session owner's buffers are used"
            ),
            BackingError::FileSystem { magic } => write!(
                f,
                "its file system (type {magic:#x}) does not promise that a mapped file can be written; give a place in /dev/shm, or \
                 on ext4 or xfs"
            ),
            BackingError::NoSpace { wanted_bytes } => write!(
                f,
                "there is no room for {} on its file system; choose a smaller --budget, free space, or give another place",
                Mib(wanted_bytes)
            ),
            BackingError::Range { start, end, size_bytes } => {
                write!(f, "bytes {start} to {end} are not inside memory of {size_bytes} bytes")
            }
            BackingError::NotHuge { wanted_bytes, huge_bytes } => write!(
                f,
                "{} of memory are wanted in huge pages, and {} of it are; set some aside (sysctl vm.nr_hugepages=N, of {} each), or do \
                 not require them",
                Mib(wanted_bytes as u64),
                Mib(huge_bytes as u64),
                Mib(huge_page_size() as u64)
            ),
            BackingError::Lock { wanted_bytes, limit_bytes } => {
                write!(f, "{} of memory cannot be locked", Mib(wanted_bytes))?;
                if let Some(limit_bytes) = limit_bytes {
                    write!(f, ": this process may lock {} in all", Mib(limit_bytes))?;
                }
                write!(f, "; raise its limit (ulimit -l, LimitMEMLOCK= of its unit), or give it CAP_IPC_LOCK")
            }
            BackingError::NoCpu { cpu } => {
                write!(f, "there is no CPU {cpu}; /sys/devices/system/cpu/possible lists the CPUs")
            }
            BackingError::System { purpose, errno } => {
                write!(f, "cannot {purpose}: {errno}")?;
                remedy(errno).map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
            }
        }
    }
}

impl std::error::Error for BackingError {}
