//! A barrier for the restartable sequences that run on a CPU.

use core::error::Error;
use core::ffi::{c_int, c_long};
use core::fmt;

use crate::alloc::possible_cpus;
use crate::rseq::Rseq;

/// The reason why [`fence`] waited for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceError {
    /// The machine can never have this CPU.
    NoSuchCpu {
        /// Number of the CPU.
        cpu: u32,
    },
    /// The kernel has no such barrier (it came with Linux 5.10) or refuses it, or this process has no rseq.
    Unsupported,
}

/// Waits until every section that now runs on `cpu`, or on any CPU, in a thread of this process has committed or has
/// been aborted. What the caller stored before is visible to sections that start later.
///
/// So a thread can replace what sections on another CPU use (a list's head, a pointer to a buffer), and knows after the
/// fence that none of them uses the old one. It takes microseconds: the kernel interrupts the CPU.
///
/// Not async-signal-safe, for the reason that [`Rseq::detect`] gives. `errno` is not kept.
///
/// # Errors
/// [`FenceError`]: nothing was waited for.
pub fn fence(cpu: Option<u32>) -> Result<(), FenceError> {
    if let Some(cpu) = cpu
        && cpu >= possible_cpus()
    {
        return Err(FenceError::NoSuchCpu { cpu });
    }
    if Rseq::detect().is_none() {
        return Err(FenceError::Unsupported);
    }
    let (flags, number) = cpu.map_or((0, 0), |cpu| (FLAG_CPU, cpu.cast_signed()));
    let is_done = || membarrier(PRIVATE_EXPEDITED_RSEQ, flags, number) == 0;
    // A process registers its intent once; until then the kernel refuses.
    let is_done = is_done() || (membarrier(REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0 && is_done());
    if is_done { Ok(()) } else { Err(FenceError::Unsupported) }
}

// Commands and flag of membarrier(2), in <linux/membarrier.h>.
const PRIVATE_EXPEDITED_RSEQ: c_int = 1 << 7;
const REGISTER_PRIVATE_EXPEDITED_RSEQ: c_int = 1 << 8;
const FLAG_CPU: c_int = 1;

fn membarrier(command: c_int, flags: c_int, cpu: c_int) -> c_long {
    // SAFETY: membarrier(2) takes three numbers, and accesses no memory of the caller.
    unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) }
}

impl fmt::Display for FenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FenceError::NoSuchCpu { cpu } => write!(f, "this machine has no CPU {cpu}"),
            FenceError::Unsupported => write!(
                f,
                "the kernel has no barrier for restartable sequences (it came with Linux 5.10), or this process has no such sequences"
            ),
        }
    }
}

impl Error for FenceError {}
