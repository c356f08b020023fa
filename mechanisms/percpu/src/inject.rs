//! Injection points: delays at numbered places inside the critical sections, in tests only.
//!
//! | point | place |
//! | --- | --- |
//! | 1 | after `rseq_cs` is set, before `cpu_id` is compared |
//! | 2 | after 1, before the guard (the word to add to, the list's head) is read |
//! | 3 | after 2, before the value that was read is compared or used |
//! | 4 | after each plain store |
//! | 5 | before the final store (in a load: before the load) |
//!
//! | section | points |
//! | --- | --- |
//! | `rseq_load_cbne_stores_store` | 1 2 3 4 5 |
//! | `rseq_load_add_store` | 1 2 3 5 |
//! | `rseq_load`, `rseq_store`, `rseq_cpu_shift_add` (x86-64) | 1 2 5 |
//! | `rseq_load_cbne_store` | 1 2 3 5 |
//! | `rseq_load_store_store` (push) | 1 2 3 4 5 |
//! | `rseq_load_cbeq_load_store` (pop) | 1 2 3 5; at 5 it has read `next` |
//! | `rseq_load_cbne_memcpy_store` | 1 2 3 4 5 |

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::arch::Outcome;

/// Iterations of an empty loop at each point; index 0 is not a point.
pub static DELAYS: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];

/// Number of sections that the kernel aborted, in this process.
pub static ABORTED_BY_KERNEL: AtomicU64 = AtomicU64::new(0);
/// Number of sections that began on a CPU other than the requested one, in this process.
pub static OTHER_CPU: AtomicU64 = AtomicU64::new(0);

pub(crate) fn count(outcome: Outcome) {
    match outcome {
        Outcome::AbortedByKernel => _ = ABORTED_BY_KERNEL.fetch_add(1, Relaxed),
        Outcome::OtherCpu => _ = OTHER_CPU.fetch_add(1, Relaxed),
        Outcome::Done | Outcome::GuardChanged => {}
    }
}
