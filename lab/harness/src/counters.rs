//! Counters of the CPU and the kernel, through perf events.

use std::collections::BTreeMap;
use std::io;

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Software};
use perf_event::{Builder, Counter};

/// Returns the counters that the lab opens, by name. For caches they are those that `perf stat` prints: loads and
/// stores in user mode, and misses of the first level and of the last one.
///
/// A CPU counts few events at a time. The kernel multiplexes them in turns of milliseconds, so some are missing for a
/// shorter run.
pub fn counters() -> Vec<(&'static str, Builder<'static>)> {
    let cache = |which, operation, result| Builder::new(Cache { which, operation, result });
    let l1d = |operation, result| cache(CacheId::L1D, operation, result);
    let llc = |result| cache(CacheId::LL, CacheOp::READ, result);
    let mut switches = Builder::new(Software::CONTEXT_SWITCHES);
    // Switches happen inside the kernel.
    switches.exclude_kernel(false);
    vec![
        ("cycles", Builder::new(Hardware::CPU_CYCLES)),
        ("instructions", Builder::new(Hardware::INSTRUCTIONS)),
        ("l1d_loads", l1d(CacheOp::READ, CacheResult::ACCESS)),
        ("l1d_load_misses", l1d(CacheOp::READ, CacheResult::MISS)),
        ("l1d_stores", l1d(CacheOp::WRITE, CacheResult::ACCESS)),
        ("l1d_store_misses", l1d(CacheOp::WRITE, CacheResult::MISS)),
        ("llc_loads", llc(CacheResult::ACCESS)),
        ("llc_load_misses", llc(CacheResult::MISS)),
        ("page_faults", Builder::new(Software::PAGE_FAULTS)),
        ("context_switches", switches),
    ]
}

/// Counters of a thread. A counter that is refused is reported with its cause, not as zero.
#[derive(Debug, Default)]
pub struct Counters {
    open: Vec<(&'static str, Counter)>,
    refused: Vec<(&'static str, String)>,
}

impl Counters {
    /// Opens the counters of the calling thread.
    pub fn open() -> Counters {
        let mut opened = Counters::default();
        for (name, builder) in counters() {
            match builder.build() {
                Ok(counter) => opened.open.push((name, counter)),
                Err(error) => opened.refused.push((name, cause(&error))),
            }
        }
        opened
    }

    /// Counters that are not available, with the cause.
    pub fn refused(&self) -> &[(&'static str, String)] {
        &self.refused
    }

    /// Resets and starts all counters.
    pub fn start(&mut self) {
        for (_, counter) in &mut self.open {
            // If a counter does not start, `stop` finds that it has not run.
            let _ = counter.reset();
            let _ = counter.enable();
        }
    }

    /// Stops all counters and returns their counts. A counter that never got its turn on the hardware is left out.
    pub fn stop(&mut self) -> BTreeMap<String, f64> {
        for (_, counter) in &mut self.open {
            let _ = counter.disable();
        }
        let mut counts = BTreeMap::new();
        for (name, counter) in &mut self.open {
            let Ok(count) = counter.read_count_and_time() else { continue };
            if count.time_running > 0 {
                // If it was multiplexed for a part of the time, the count is scaled up, as perf does.
                let share = count.time_enabled as f64 / count.time_running as f64;
                counts.insert(name.to_string(), count.count as f64 * share);
            }
        }
        counts
    }
}

/// Returns the cause why a counter cannot be opened, in words (perf_event_open(2), ERRORS).
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
    fn every_counter_counts_or_gives_the_reason() {
        let mut opened = Counters::open();
        opened.start();
        let memory = vec![1u8; 64 << 10];
        std::hint::black_box(&memory);
        let counts = opened.stop();
        for (name, _) in counters() {
            let refused = opened.refused().iter().any(|(refused, why)| *refused == name && !why.is_empty());
            assert!(refused != counts.contains_key(name), "{name}: {counts:?}, {:?}", opened.refused());
        }
    }
}
