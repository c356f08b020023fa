//! Critical sections, per architecture.
//!
//! An architecture's module has its bodies of the sections, the macro that wraps a body, and the way to find a thread's
//! rseq structure. The parts that all architectures share are in `sections`. `Handle` is a `Copy` value that proves
//! that restartable sequences are registered. On an architecture without sections it is uninhabited, so that the
//! compiler removes the rseq path.

#[macro_use]
#[allow(unused_macros, reason = "without sections there is nowhere to inject")]
mod sections;

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_pointer_width = "64",
    not(feature = "generic")
))]
mod handle;
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_pointer_width = "64",
    not(feature = "generic")
))]
pub(crate) use handle::Handle;

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_pointer_width = "64", not(feature = "generic")))]
mod x86_64;
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_pointer_width = "64", not(feature = "generic")))]
pub(crate) use x86_64::{SIGNATURE, own_offset, thread_pointer};

#[cfg(all(target_arch = "aarch64", target_os = "linux", target_pointer_width = "64", not(feature = "generic")))]
mod aarch64;
#[cfg(all(target_arch = "aarch64", target_os = "linux", target_pointer_width = "64", not(feature = "generic")))]
pub(crate) use aarch64::{SIGNATURE, own_offset, thread_pointer};

#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_pointer_width = "64",
    not(feature = "generic")
)))]
#[expect(unused_variables, unused_unsafe, unreachable_code, reason = "sections that nobody can enter")]
mod none;
#[cfg(not(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_os = "linux",
    target_pointer_width = "64",
    not(feature = "generic")
)))]
pub(crate) use none::Handle;

/// How a critical section ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Outcome {
    /// The final store was made.
    Done = 0,
    /// The guard did not hold the expected value.
    GuardChanged = 1,
    /// The thread was already on another CPU when the section compared.
    OtherCpu = 2,
    /// The kernel aborted the section: preemption, migration or a signal.
    AbortedByKernel = 3,
}

impl Outcome {
    /// Decodes the value that a section has left in its register.
    #[inline]
    #[cfg_attr(
        not(all(
            any(target_arch = "x86_64", target_arch = "aarch64"),
            target_os = "linux",
            target_pointer_width = "64",
            not(feature = "generic")
        )),
        expect(dead_code, reason = "called by sections, which nobody can enter")
    )]
    fn of(outcome: u32) -> Outcome {
        match outcome {
            0 => Outcome::Done,
            1 => Outcome::GuardChanged,
            2 => Outcome::OtherCpu,
            _ => Outcome::AbortedByKernel,
        }
    }
}
