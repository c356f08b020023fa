//! Chains of instructions, each of which needs what the one before it came to.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(super) use aarch64::{adds, products};
#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{adds, products};

/// Instructions of a chain.
pub(super) const LINKS: usize = 256;
