//! Additions whose addresses the product does not compute.

mod x86_64;

pub(crate) use x86_64::{rseq_cpu_deref_add, rseq_cpu_load_add};
