use core::error::Error;
use core::fmt;

/// Why there is no object, or no pool, or why an object was not freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocError {
    /// The object is larger than any object of this pool can be.
    TooBig {
        /// Asked for, per CPU.
        size_bytes: usize,
        /// The most that the pool gives.
        size_bytes_max: usize,
    },
    /// No object of this pool can be aligned so.
    BadAlignment {
        /// Asked for.
        align_bytes: usize,
        /// The most that the pool gives.
        align_bytes_max: usize,
    },
    /// There is no room, and none can be made.
    Exhausted {
        /// Asked for, per CPU. 0, like the alignment, if the pool itself cannot be made.
        size_bytes: usize,
        /// Asked for.
        align_bytes: usize,
        /// Why the pool does not grow.
        shortage: Shortage,
    },
    /// The object has been freed before.
    DoubleFree {
        /// The handle's word.
        address: usize,
    },
    /// No object of this pool starts there: it is another pool's, or an address inside an object.
    Foreign {
        /// The handle's word.
        address: usize,
    },
    /// Robust mode: free memory, or an object's red zone, has been written to. The bytes are withdrawn, with the object if it is one: they
    /// are never allocated again.
    Corrupted(Corruption),
    /// An option of the pool is not valid.
    BadOption {
        /// The option's name.
        option: &'static str,
        /// Its value.
        value: usize,
        /// What it must be.
        need: Need,
    },
    /// A signal handler has interrupted an allocation of its own thread in the same pool.
    Reentered,
}

/// What an option must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// Both ends included.
    Between {
        /// The least value that is valid.
        least: usize,
        /// The greatest value that is valid.
        most: usize,
    },
    /// A multiple of this: the size of a granule.
    MultipleOf(usize),
    /// A power of two, because addresses are computed by a shift.
    PowerOfTwo,
}

/// Why a pool does not grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortage {
    /// Its memory was given by the caller.
    Fixed {
        /// Bytes of that memory, all CPUs together.
        size_bytes: usize,
    },
    /// The next chunk would pass the limit.
    Limit {
        /// `PoolOptions::limit_bytes`.
        limit_bytes: usize,
        /// What the pool has.
        mapped_bytes: usize,
        /// What another chunk would add.
        chunk_bytes: usize,
    },
    /// The kernel refuses memory.
    Refused {
        /// What the pool asked for.
        size_bytes: usize,
        /// The kernel's answer.
        errno: i32,
    },
    /// The pool has as many chunks as it can look up.
    Chunks {
        /// That many.
        chunk_count_max: usize,
    },
}

/// A byte that was overwritten by somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corruption {
    /// What the byte belongs to.
    pub part: Part,
    /// The CPU whose stride it is in.
    pub cpu: u32,
    /// The first such byte.
    pub address: usize,
    /// Its value.
    pub found: u8,
    /// The value that it should have.
    pub expected: u8,
}

/// What a corrupted byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Behind an object: somebody has written past the object's end.
    RedZone,
    /// In free memory: somebody has written to an object that was freed, or far past another.
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

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Between { least, most } => write!(f, "between {least} and {most}"),
            Need::MultipleOf(unit) => write!(f, "a multiple of {unit}"),
            Need::PowerOfTwo => write!(f, "a power of two"),
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
        let Corruption { part, cpu, address, found, expected } = self;
        let place = if *part == Part::RedZone { "the red zone behind an object" } else { "free memory" };
        write!(f, "{place} of CPU {cpu} was written to: {address:#x} holds {found:#04x} instead of {expected:#04x}")
    }
}

impl Error for AllocError {}
impl Error for Shortage {}
impl Error for Corruption {}
