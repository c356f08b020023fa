//! Counters of the processor and the kernel, through perf events.

use std::collections::BTreeMap;
use std::io;

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware, Software};
use perf_event::{Builder, Counter};

/// The counters that are asked for, by name.
pub const COUNTERS: [&str; 6] =
    ["cycles", "instructions", "l1d_misses", "llc_misses", "page_faults", "context_switches"];

/// The counters of a thread. What is refused is known by its cause and reported as such, not as zero.
#[derive(Debug, Default)]
pub struct Counters {
    open: Vec<(&'static str, Counter)>,
    refused: Vec<(&'static str, String)>,
}

impl Counters {
    /// Opens those of the calling thread, user mode only where they are the processor's.
    pub fn open() -> Counters {
        let mut counters = Counters::default();
        let misses = |which| Cache { which, operation: CacheOp::READ, result: CacheResult::MISS };
        counters.add(COUNTERS[0], Hardware::CPU_CYCLES, false);
        counters.add(COUNTERS[1], Hardware::INSTRUCTIONS, false);
        counters.add(COUNTERS[2], misses(CacheId::L1D), false);
        counters.add(COUNTERS[3], misses(CacheId::LL), false);
        counters.add(COUNTERS[4], Software::PAGE_FAULTS, false);
        // Switches happen inside the kernel.
        counters.add(COUNTERS[5], Software::CONTEXT_SWITCHES, true);
        counters
    }

    fn add<E: Event>(&mut self, name: &'static str, event: E, in_kernel: bool) {
        let mut builder = Builder::new(event);
        builder.exclude_kernel(!in_kernel).exclude_hv(true);
        match builder.build() {
            Ok(counter) => self.open.push((name, counter)),
            Err(error) => self.refused.push((name, cause(&error))),
        }
    }

    /// Counters that cannot be had, with the cause.
    pub fn refused(&self) -> &[(&'static str, String)] {
        &self.refused
    }

    /// Starts all from zero.
    pub fn start(&mut self) {
        for (_, counter) in &mut self.open {
            // A counter that does not start is found not to have run.
            let _ = counter.reset();
            let _ = counter.enable();
        }
    }

    /// Stops all. Gives what each counted; one that the processor had no room for at all is left out.
    pub fn stop(&mut self) -> BTreeMap<String, f64> {
        for (_, counter) in &mut self.open {
            let _ = counter.disable();
        }
        let mut counts = BTreeMap::new();
        for (name, counter) in &mut self.open {
            let Ok(count) = counter.read_count_and_time() else { continue };
            if count.time_running > 0 {
                // Shared with others for a part of the time: scaled up, as perf does.
                let share = count.time_enabled as f64 / count.time_running as f64;
                counts.insert(name.to_string(), count.count as f64 * share);
            }
        }
        counts
    }
}

/// Why a counter cannot be opened, in words: perf_event_open(2), ERRORS.
fn cause(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            "this processor, or the virtual machine it is in, offers no such counter".into()
        }
        Some(libc::EACCES | libc::EPERM) => {
            let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
            format!(
                "not permitted (kernel.perf_event_paranoid is {}; 2 or less, or CAP_PERFMON, allows it)",
                level.trim()
            )
        }
        Some(libc::ENOSYS) => "this kernel, or its seccomp filter, has no perf events".into(),
        Some(libc::EMFILE | libc::ENFILE) => "too many open files".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_counts_or_says_why_not() {
        let mut counters = Counters::open();
        counters.start();
        let memory = vec![1u8; 64 << 10];
        std::hint::black_box(&memory);
        let counts = counters.stop();
        for name in COUNTERS {
            let refused = counters.refused().iter().any(|(refused, why)| *refused == name && !why.is_empty());
            assert!(refused != counts.contains_key(name), "{name}: {counts:?}, {:?}", counters.refused());
        }
    }
}
