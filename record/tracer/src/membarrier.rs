//! The kernel's process-wide barrier that restarts critical sections (`membarrier(2)`, Linux 5.10).

use core::sync::atomic::{AtomicBool, Ordering};

const CMD_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 7;
const CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 8;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

static IS_READY: AtomicBool = AtomicBool::new(false);

/// Announces that the process will use it: cheap while there is one thread, milliseconds later.
pub(crate) fn register() {
    // Relaxed: the kernel has done what there is to do.
    IS_READY.store(membarrier(CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ), Ordering::Relaxed);
}

/// Whether it can be used: the kernel has it, and [`register`] has been called.
pub(crate) fn is_ready() -> bool {
    IS_READY.load(Ordering::Relaxed)
}

/// Restarts every critical section that runs in this process. False where the kernel cannot.
pub(crate) fn restart_sections() -> bool {
    membarrier(CMD_PRIVATE_EXPEDITED_RSEQ)
}
