//! The kernel's process-wide barrier that restarts critical sections (`membarrier(2)`, Linux 5.10).

use core::sync::atomic::{AtomicBool, Ordering};

use dormouse_imv::is_filtered;
use rustix::thread::{MembarrierCommand, membarrier};

static IS_READY: AtomicBool = AtomicBool::new(false);

/// Registers the process for the barrier: cheap while there is one thread, milliseconds later. Not under a filter,
/// which may not know the call.
pub(crate) fn register() {
    let is_registered = !is_filtered() && membarrier(MembarrierCommand::RegisterPrivateExpeditedRseq).is_ok();
    // Relaxed: no data depend on it; registration has happened in the kernel.
    IS_READY.store(is_registered, Ordering::Relaxed);
}

/// Whether the barrier can be used: the kernel has it, and [`register`] has been called.
pub(crate) fn is_ready() -> bool {
    IS_READY.load(Ordering::Relaxed)
}

/// Restarts every critical section that runs in this process. Returns false if the kernel cannot.
pub(crate) fn restart_sections() -> bool {
    is_ready() && membarrier(MembarrierCommand::PrivateExpeditedRseq).is_ok()
}
