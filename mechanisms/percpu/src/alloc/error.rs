use core::error::Error;
use core::fmt;

/// An error of making a pool, or of allocating or freeing an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocError {
    /// The object is larger than any object of this pool can be.
    TooBig {
        /// Requested size, per CPU, in bytes.
        size_bytes: usize,
        /// Maximum size that the pool can allocate, in bytes.
        size_bytes_max: usize,
    },
    /// The alignment is larger than that of any object of this pool can be.
    BadAlignment {
        /// Requested alignment, in bytes.
        align_bytes: usize,
        /// Maximum alignment that the pool can allocate, in bytes.
        align_bytes_max: usize,
    },
    /// There is no room, and none can be made.
    Exhausted {
        /// Requested size, per CPU, in bytes. 0, like the alignment, if the pool itself cannot be made.
        size_bytes: usize,
        /// Requested alignment, in bytes.
        align_bytes: usize,
        /// Reason why the pool does not grow.
        shortage: Shortage,
    },
    /// The object has been freed before.
    DoubleFree {
        /// Word of the handle.
        address: usize,
    },
    /// No object of this pool starts there: the handle belongs to another pool, or is an address inside an object.
    Foreign {
        /// Word of the handle.
        address: usize,
    },
    /// Robust pools only: free memory, or an object's red zone, has been written to. The bytes are withdrawn, with the
    /// object if it is one: they are never allocated again.
    Corrupted(Corruption),
    /// An option of the pool is not valid.
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// Value of the option.
        value: usize,
        /// Requirement that the value does not meet.
        need: Requirement,
    },
    /// A signal handler has interrupted its own thread inside the same pool.
    Reentered,
}

/// A requirement of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requirement {
    /// A range, both ends included.
    Between {
        /// Minimum valid value.
        least: usize,
        /// Maximum valid value.
        most: usize,
    },
    /// A multiple of this number, the size of a granule.
    MultipleOf(usize),
    /// A power of two, because addresses are computed by a shift.
    PowerOfTwo,
}

/// The reason why a pool does not grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortage {
    /// The caller gave the pool's memory, so it is fixed.
    Fixed {
        /// Size of that memory, over all CPUs, in bytes.
        size_bytes: usize,
    },
    /// The next chunk would exceed the limit.
    Limit {
        /// `PoolOptions::limit_bytes`.
        limit_bytes: usize,
        /// Memory that the pool has, in bytes.
        mapped_bytes: usize,
        /// Memory that another chunk would add, in bytes.
        chunk_bytes: usize,
    },
    /// The kernel refuses memory.
    Refused {
        /// Size of the request, in bytes.
        size_bytes: usize,
        /// Error number of the kernel.
        errno: i32,
    },
    /// The pool has the maximum number of chunks that it can look up.
    Chunks {
        /// Maximum number of chunks.
        chunk_count_max: usize,
    },
}

/// A byte that was overwritten by faulty code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corruption {
    /// Kind of memory to which the byte belongs.
    pub kind: MemoryKind,
    /// CPU in whose stride the byte is.
    pub cpu: u32,
    /// Address of the first corrupted byte.
    pub address: usize,
    /// Value of that byte.
    pub found: u8,
    /// Value that it should have.
    pub expected: u8,
}

/// A kind of pool memory that no program may write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// The red zone after an object: a write went past the object's end.
    RedZone,
    /// Free memory: a write went to an object that was freed, or far past another.
    Free,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::TooBig { size_bytes, size_bytes_max } => {
                write!(
                    f,
                    "an object of {size_bytes} bytes does not fit: this pool's objects have at most {size_bytes_max}"
                )
            }
            AllocError::BadAlignment { align_bytes, align_bytes_max } => {
                write!(
                    f,
                    "alignment to {align_bytes} bytes cannot be met: this pool aligns to at most {align_bytes_max}"
                )
            }
            AllocError::Exhausted { size_bytes: 0, align_bytes: 0, shortage } => {
                write!(f, "no memory for the pool: {shortage}")
            }
            AllocError::Exhausted { size_bytes, align_bytes, shortage } => {
                write!(f, "no room for {size_bytes} bytes per CPU, aligned to {align_bytes}: {shortage}")
            }
            AllocError::DoubleFree { address } => write!(f, "the object {address:#x} has been freed before"),
            AllocError::Foreign { address } => write!(f, "no object of this pool starts at {address:#x}"),
            AllocError::Corrupted(corruption) => corruption.fmt(f),
            AllocError::BadOption { option, value, need } => write!(f, "{option} is {value}, but must be {need}"),
            AllocError::Reentered => f.write_str("a signal handler has interrupted this thread inside the same pool"),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Requirement::Between { least, most } => write!(f, "between {least} and {most}"),
            Requirement::MultipleOf(unit) => write!(f, "a multiple of {unit}"),
            Requirement::PowerOfTwo => write!(f, "a power of two"),
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shortage::Fixed { size_bytes } => write!(f, "the pool's {size_bytes} bytes are fixed"),
            Shortage::Limit { limit_bytes, mapped_bytes, chunk_bytes } => {
                write!(
                    f,
                    "{chunk_bytes} bytes more would pass the limit of {limit_bytes}, of which it has {mapped_bytes}"
                )
            }
            Shortage::Refused { size_bytes, errno } => {
                write!(f, "the kernel refuses {size_bytes} bytes more (errno {errno})")
            }
            Shortage::Chunks { chunk_count_max } => {
                write!(f, "the pool has all of its {chunk_count_max} chunks; a larger stride_bytes makes them larger")
            }
        }
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Corruption { kind, cpu, address, found, expected } = self;
        let place = if *kind == MemoryKind::RedZone { "the red zone behind an object" } else { "free memory" };
        write!(f, "{place} of CPU {cpu} was written to: {address:#x} holds {found:#04x} instead of {expected:#04x}")
    }
}

impl Error for AllocError {}
impl Error for Shortage {}
impl Error for Corruption {}
