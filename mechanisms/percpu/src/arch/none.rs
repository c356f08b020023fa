//! Architectures without critical sections: there is no handle, so callers always take their fallback.

use core::convert::Infallible;

use dormouse_abi::txn::Txn;

use super::Outcome;
use crate::node::Node;

/// Uninhabited.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle(Infallible);

impl Handle {
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
    pub(crate) unsafe fn rseq_load_add_store(self, _cpu: u32, _target: *mut u64, _n: u64) -> Outcome {
        match self.0 {}
    }

    /// # Safety
    /// Never called: there is no `Handle`.
    pub(crate) unsafe fn rseq_load(self, _cpu: u32, _target: *const u64) -> (Outcome, u64) {
        match self.0 {}
    }

    /// # Safety
    /// Never called: there is no `Handle`.
    pub(crate) unsafe fn rseq_store(self, _cpu: u32, _target: *mut u64, _value: u64) -> Outcome {
        match self.0 {}
    }

    /// # Safety
    /// Never called: there is no `Handle`.
    pub(crate) unsafe fn rseq_load_cbne_store(
        self,
        _cpu: u32,
        _target: *mut u64,
        _expected: u64,
        _value: u64,
    ) -> Outcome {
        match self.0 {}
    }

    /// # Safety
    /// Never called: there is no `Handle`.
    pub(crate) unsafe fn rseq_load_store_store(self, _cpu: u32, _head: *mut *mut Node, _node: *mut Node) -> Outcome {
        match self.0 {}
    }

    /// # Safety
    /// Never called: there is no `Handle`.
    pub(crate) unsafe fn rseq_load_cbeq_load_store(self, _cpu: u32, _head: *mut *mut Node) -> (Outcome, *mut Node) {
        match self.0 {}
    }

    /// # Safety
    /// Never called: there is no `Handle`.
    pub(crate) unsafe fn rseq_load_cbne_memcpy_store(
        self,
        _cpu: u32,
        _guard: (*const u64, u64),
        _copy: (*mut u8, *const u8, usize),
        _last: (*mut u64, u64),
    ) -> Outcome {
        match self.0 {}
    }
}
