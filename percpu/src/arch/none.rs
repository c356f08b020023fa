//! Architectures without critical sections: there is no handle, so callers always take their fallback.

use core::convert::Infallible;

use dormouse_abi::txn::Txn;

use super::Outcome;

/// Uninhabited.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle(Infallible);

impl Handle {
    pub(crate) fn detect() -> Option<Handle> {
        None
    }

    #[inline]
    pub(crate) fn offset(self) -> isize {
        match self.0 {}
    }

    pub(crate) fn cpu_id_start(self) -> u32 {
        match self.0 {}
    }

    pub(crate) fn cpu_id(self) -> u32 {
        match self.0 {}
    }

    #[cfg(test)]
    pub(crate) fn descriptor(self) -> u64 {
        match self.0 {}
    }

    /// # Safety
    /// Never called: there is no `Handle`.
    pub(crate) unsafe fn commit(self, _cpu: u32, _txn: &Txn) -> Outcome {
        match self.0 {}
    }

    /// # Safety
    /// Never called: there is no `Handle`.
    pub(crate) unsafe fn add(self, _cpu: u32, _target: *mut u64, _n: u64) -> Outcome {
        match self.0 {}
    }
}
