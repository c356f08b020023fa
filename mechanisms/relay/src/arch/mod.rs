//! Critical sections: their outlines, which all machines share, and one module for each architecture that has them.

#[cfg(target_arch = "aarch64")]
#[macro_use]
mod aarch64;
#[cfg(target_arch = "x86_64")]
#[macro_use]
mod x86_64;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod entry;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod sections;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use entry::*;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use sections::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
