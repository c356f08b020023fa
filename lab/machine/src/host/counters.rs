//! Which counters of the processor and the kernel can be had, found by opening them.
//!
//! A counter that opens is not yet one that counts: under some hypervisors it stays at zero, and where all hardware
//! counters are in use it never gets its turn. So each is started, some work is done, and it is read.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Software};
use perf_event::{Builder, ReadFormat};

use super::{Availability, Fact};

/// What opening and reading came to.
#[derive(Debug, PartialEq, Eq)]
enum Trial {
    Counts,
    /// Read zero although there was something to count.
    StaysAtZero,
    /// Never got its turn.
    NeverRan,
    /// The kernel refused.
    Refused(i32),
}

/// Work of which every counter here sees something.
fn work() {
    let mut memory = vec![0_u8; 1 << 20];
    for index in (0..memory.len()).step_by(64) {
        if let Some(byte) = memory.get_mut(index) {
            *byte = index as u8;
        }
    }
    black_box(&memory);
}

fn count(builder: &mut Builder<'_>) -> io::Result<Trial> {
    builder.read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
    let mut counter = builder.build()?;
    counter.enable()?;
    work();
    counter.disable()?;
    let read = counter.read_count_and_time()?;
    Ok(match (read.time_running, read.count) {
        (0, _) => Trial::NeverRan,
        (_, 0) => Trial::StaysAtZero,
        _ => Trial::Counts,
    })
}

fn trial(builder: &mut Builder<'_>) -> Trial {
    count(builder).unwrap_or_else(|error| Trial::Refused(error.raw_os_error().unwrap_or(0)))
}

/// In words: whose fault it is, and so where to look.
fn verdict(trial: &Trial, is_hardware: bool, is_virtualised: bool, paranoid: &Fact<i32>) -> Availability {
    let cause = match *trial {
        Trial::Counts => return Availability::Available,
        Trial::StaysAtZero if is_virtualised => "it opens but stays at zero: the hypervisor does not count".into(),
        Trial::StaysAtZero => "it opens but stays at zero".into(),
        Trial::NeverRan => {
            "it opens but never runs: other counters (the NMI watchdog, a profiler) hold the hardware".into()
        }
        Trial::Refused(libc::EACCES | libc::EPERM) => match paranoid {
            Fact::Told(level) => {
                format!("not permitted: kernel.perf_event_paranoid is {level}, or a sandbox forbids it")
            }
            Fact::NotTold(_) => "not permitted, by a sandbox or a security policy".into(),
        },
        Trial::Refused(libc::ENOSYS) => "the kernel has no perf events, or a sandbox hides them".into(),
        Trial::Refused(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP | libc::EINVAL) if is_hardware => {
            if is_virtualised {
                "the hypervisor gives this machine no such hardware counter".into()
            } else {
                "this processor has no such counter, or the kernel no driver for it".into()
            }
        }
        Trial::Refused(libc::EBUSY) => "another program holds the counter exclusively".into(),
        Trial::Refused(libc::EMFILE) => "this process has too many open files".into(),
        Trial::Refused(errno) => io::Error::from_raw_os_error(errno).to_string(),
    };
    Availability::Not(cause)
}

/// Tries each counter on the calling thread. Names are those of `counters` in a measurement.
pub(super) fn read(is_virtualised: bool, paranoid: &Fact<i32>) -> BTreeMap<String, Availability> {
    let misses = |which| Cache { which, operation: CacheOp::READ, result: CacheResult::MISS };
    let hardware = |builder: &mut Builder<'_>, may_stay_at_zero: bool| {
        let trial = match trial(builder) {
            Trial::StaysAtZero if may_stay_at_zero => Trial::Counts,
            trial => trial,
        };
        verdict(&trial, true, is_virtualised, paranoid)
    };
    let cycles = hardware(&mut Builder::new(Hardware::CPU_CYCLES), false);
    let cycles_count = cycles.is_available();
    let mut all = BTreeMap::from([
        ("instructions".to_string(), hardware(&mut Builder::new(Hardware::INSTRUCTIONS), false)),
        // Prefetching may leave nothing to miss: zero is no sign where the processor's counters count at all.
        ("l1d_misses".to_string(), hardware(&mut Builder::new(misses(CacheId::L1D)), cycles_count)),
        ("llc_misses".to_string(), hardware(&mut Builder::new(misses(CacheId::LL)), cycles_count)),
        ("cycles".to_string(), cycles),
    ]);
    // A fault of user space; a switch happens in the kernel and is counted only where that may be watched.
    let faults = trial(&mut Builder::new(Software::PAGE_FAULTS));
    // The work may find its memory there already.
    let faults = if faults == Trial::StaysAtZero { Trial::Counts } else { faults };
    all.insert("page_faults".into(), verdict(&faults, false, is_virtualised, paranoid));
    let switches = trial(Builder::new(Software::CONTEXT_SWITCHES).include_kernel());
    let switches = if switches == Trial::StaysAtZero { Trial::Counts } else { switches };
    all.insert("context_switches".into(), verdict(&switches, false, is_virtualised, paranoid));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_name_who_is_to_blame() {
        let text = |trial, is_hardware, is_virtualised| {
            verdict(&trial, is_hardware, is_virtualised, &Fact::Told(4)).to_string()
        };
        assert_eq!(text(Trial::Counts, true, true), "available");
        let refused = text(Trial::Refused(libc::ENOENT), true, true);
        assert_eq!(refused, "not available: the hypervisor gives this machine no such hardware counter");
        assert!(text(Trial::Refused(libc::ENOENT), true, false).contains("this processor"));
        assert!(text(Trial::Refused(libc::EACCES), false, false).contains("kernel.perf_event_paranoid is 4"));
        assert!(text(Trial::NeverRan, true, false).contains("NMI watchdog"));
    }

    #[test]
    fn every_counter_is_answered_for() {
        let counters = read(true, &Fact::Told(2));
        let names: Vec<&str> = counters.keys().map(String::as_str).collect();
        assert_eq!(names, ["context_switches", "cycles", "instructions", "l1d_misses", "llc_misses", "page_faults"]);
    }
}
