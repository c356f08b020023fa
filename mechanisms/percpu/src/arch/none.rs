//! Architectures without critical sections: there is no handle, so callers always take their fallback.

use core::convert::Infallible;

use dormouse_abi::rseq::{OFFSET_CPU_ID, OFFSET_MM_CID};

use super::Outcome;
use crate::node::Node;

/// Uninhabited.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle<const INDEX: usize = OFFSET_CPU_ID>(Infallible);

impl Handle {
    #[inline]
    pub(crate) fn offset(self) -> isize {
        match self.0 {}
    }

    pub(crate) fn by_concurrency_id(self) -> Handle<OFFSET_MM_CID> {
        match self.0 {}
    }
}

impl<const INDEX: usize> Handle<INDEX> {
    fn word<const FIELD: usize>(self) -> u32 {
        match self.0 {}
    }

    #[cfg(test)]
    pub(crate) fn descriptor(self) -> u64 {
        match self.0 {}
    }
}

/// A section without instructions, which cannot be entered because the handle is uninhabited.
macro_rules! critical_section {
    ({} [$($store:literal)?] $handle:ident, $($operands:tt)+) => {
        match $handle.0 {}
    };
}

sections! {
    rseq_load_cbne_stores_store {} then match width {
        _ => "",
    }
    rseq_load_add_store {}
    rseq_load {}
    rseq_store {}
    rseq_load_cbne_store {}
    rseq_load_store_store {}
    rseq_load_cbeq_load_store {}
    rseq_load_cbne_memcpy_store {}
}
