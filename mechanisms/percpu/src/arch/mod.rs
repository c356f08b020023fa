//! The critical sections, per architecture.
//!
//! Every module has the same interface: `Handle`, a `Copy` value that proves that somebody registers restartable sequences,
//! and the sections on it. If an architecture has no sections yet, `Handle` is uninhabited, so that the compiler removes the
//! rseq path.

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_pointer_width = "64"))]
mod x86_64;
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_pointer_width = "64"))]
pub(crate) use x86_64::{Handle, SIGNATURE, own_offset, thread_pointer};

#[cfg(all(target_arch = "aarch64", target_os = "linux", target_pointer_width = "64"))]
mod aarch64;
#[cfg(all(target_arch = "aarch64", target_os = "linux", target_pointer_width = "64"))]
pub(crate) use aarch64::{Handle, SIGNATURE, own_offset, thread_pointer};

#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_pointer_width = "64"
)))]
mod none;
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_pointer_width = "64"
)))]
pub(crate) use none::Handle;

/// How a critical section ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[cfg_attr(
    not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", target_pointer_width = "64")),
    expect(dead_code, reason = "made by sections, and there are none")
)]
pub(crate) enum Outcome {
    /// The final store was made.
    Done = 0,
    /// The guard did not hold the expected value.
    GuardChanged = 1,
    /// The thread was on another CPU already when the section compared.
    OtherCpu = 2,
    /// The kernel aborted the section: preemption, migration or a signal.
    AbortedByKernel = 3,
}
