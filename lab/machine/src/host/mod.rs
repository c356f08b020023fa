//! The machine that figures were measured on: the member `host` of every result.
//!
//! # The problem
//! A figure without its machine cannot be placed, and two results that differ cannot be explained. So every result
//! carries whatever may bear on it, and what could not be read says why: a zero or an empty text would pass for a fact.
//!
//! # The picture
//! ```text
//!   /proc, /sys ─────────┐
//!   CPUID, prctl, sched ─┼─▶ Host::read (before the run) ──▶ JSON ──▶ `lab compare`, the HTML report
//!   counters, rseq,      │        ▲
//!   patching: tried ─────┘        └── Neighbours' findings (after the run)
//! ```
//!
//! # Limits
//! Caches, frequency and governor range are processor 0's. What is tried (counters, rseq, patching, huge pages) is
//! tried in the process that calls, whose environment, limits and `prctl` settings the engines inherit. Of the kernel's
//! command line only options that bear on figures are kept, because results are handed on.
//!
//! # Source
//! The kernel's `Documentation/ABI/testing/sysfs-devices-system-cpu`, `admin-guide/mm/transhuge.rst`,
//! `admin-guide/cgroup-v2.rst`; `proc(5)`, `perf_event_open(2)`, `membarrier(2)`.

mod counters;
mod processor;
mod source;
mod system;
mod tracing;

use std::collections::BTreeMap;

pub(crate) use crate::fact::tolerant;
pub use crate::fact::{Availability, Fact};
use serde::{Deserialize, Serialize};

pub use processor::{Cache, Processor};
use source::Source;
pub use source::list_text;
pub use system::{Clock, Kernel, Limits, Memory};
pub use tracing::Tracing;

use crate::neighbours::{Findings, Neighbour};
use crate::probes::Probes;

/// What a reader needs to place a figure. Every member may be missing in a result that is read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// When it was read, in UTC: `2026-11-21 22:17:00 UTC`.
    #[serde(deserialize_with = "tolerant")]
    pub measured: String,
    /// Model name of the processor.
    #[serde(deserialize_with = "tolerant")]
    pub cpu: String,
    /// Processors that this process may use at once: affinity and the control group's quota count.
    #[serde(deserialize_with = "tolerant")]
    pub cpu_count: usize,
    /// The processor in detail.
    #[serde(deserialize_with = "tolerant")]
    pub processor: Processor,
    /// The caches of processor 0.
    pub caches: Fact<Vec<Cache>>,
    /// Kernel release.
    #[serde(deserialize_with = "tolerant")]
    pub kernel: String,
    /// The kernel in detail.
    #[serde(deserialize_with = "tolerant")]
    pub kernel_details: Kernel,
    /// The kernel's clock source.
    #[serde(deserialize_with = "tolerant")]
    pub clock_source: String,
    /// Clocks in detail.
    #[serde(deserialize_with = "tolerant")]
    pub clock: Clock,
    /// Who chooses the frequency of the processors.
    pub governor: Fact<String>,
    /// Whether the processor says that it runs under a hypervisor.
    #[serde(deserialize_with = "tolerant")]
    pub virtualised: bool,
    /// Which hypervisor; `none` on bare metal.
    pub hypervisor: Fact<String>,
    /// Counters of the processor and the kernel, by name.
    #[serde(deserialize_with = "tolerant")]
    pub counters: BTreeMap<String, Availability>,
    /// `kernel.perf_event_paranoid`.
    pub perf_event_paranoid: Fact<i32>,
    /// Whether a thread may run as `SCHED_FIFO`, before all others.
    #[serde(deserialize_with = "tolerant")]
    pub fifo_scheduling: Availability,
    /// Memory.
    #[serde(deserialize_with = "tolerant")]
    pub memory: Memory,
    /// Limits of the control group.
    #[serde(deserialize_with = "tolerant")]
    pub limits: Limits,
    /// What tracing needs.
    #[serde(deserialize_with = "tolerant")]
    pub tracing: Tracing,
    /// Version of Dormouse that measured.
    pub dormouse_version: Fact<String>,
    /// How it was built: `release`, `debug`.
    pub dormouse_build: Fact<String>,
    /// Load average of the last minute, before the run.
    #[serde(deserialize_with = "tolerant")]
    pub load: String,
    /// Seconds since the machine started.
    pub uptime_s: Fact<f64>,
    /// Processes that took much of a processor while the run lasted.
    #[serde(deserialize_with = "tolerant")]
    pub neighbours: Vec<Neighbour>,
    /// Share of one processor that processes too short-lived to name took.
    pub unnamed_share: Fact<f64>,
    /// Share of the processors' time that the hypervisor gave to others while the run lasted.
    pub steal_share: Fact<f64>,
    /// What was measured of it on the spot, before the run.
    #[serde(deserialize_with = "tolerant", skip_serializing_if = "is_unmeasured")]
    pub probes: Probes,
}

fn is_unmeasured(probes: &Probes) -> bool {
    *probes == Probes::default()
}

/// The text of a fact, for members that are plain text.
fn text(fact: &Fact<String>) -> String {
    fact.to_string()
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let virtualised = if self.virtualised { ", virtualised" } else { "" };
        write!(f, "{} × {}{virtualised}, Linux {}, load {}", self.cpu_count, self.cpu, self.kernel, self.load)
    }
}

impl Host {
    /// Reads and tries everything; takes some tens of milliseconds. Before the run: what it reads of the load is then
    /// that of the others.
    pub fn read() -> Host {
        Host::read_from(&Source::live())
    }

    fn read_from(source: &Source) -> Host {
        // First, while it is that of the others.
        let load = source.text("/proc/loadavg").map(|text| text.split(' ').next().unwrap_or_default().to_string());
        let cpuinfo = source.text("/proc/cpuinfo");
        let flags = processor::cpuinfo_field(&cpuinfo, "flags");
        let processor = Processor::read(source, &cpuinfo);
        let is_virtualised =
            flags.told().is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
        let clock = Clock::read(source, &flags);
        let paranoid = source.number("/proc/sys/kernel/perf_event_paranoid");
        Host {
            measured: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
            cpu: text(&processor::cpuinfo_field(&cpuinfo, "model name")),
            cpu_count: std::thread::available_parallelism().map_or(0, usize::from),
            caches: processor::caches(source),
            kernel: text(&source.text("/proc/sys/kernel/osrelease")),
            kernel_details: Kernel::read(source),
            clock_source: text(&clock.source),
            clock,
            governor: processor::governor(source, &processor.online),
            virtualised: is_virtualised,
            hypervisor: match flags {
                Fact::NotTold(cause) => Fact::NotTold(cause),
                Fact::Told(_) if is_virtualised => processor::hypervisor_name(),
                Fact::Told(_) => Fact::Told("none".into()),
            },
            counters: counters::read(is_virtualised, &paranoid),
            perf_event_paranoid: paranoid,
            fifo_scheduling: fifo_scheduling(),
            memory: Memory::read(source),
            limits: Limits::read(source),
            tracing: Tracing::read(),
            dormouse_version: Fact::Told(env!("CARGO_PKG_VERSION").into()),
            dormouse_build: Fact::Told(if cfg!(debug_assertions) { "debug" } else { "release" }.into()),
            load: text(&load),
            uptime_s: source.text("/proc/uptime").and_then(|text| {
                let first = text.split(' ').next().and_then(|first| first.parse().ok());
                Fact::from_option(first, || format!("/proc/uptime holds `{text}`"))
            }),
            neighbours: Vec::new(),
            unnamed_share: Fact::NotTold("nobody watched".into()),
            steal_share: Fact::NotTold("nobody watched".into()),
            probes: Probes::default(),
            processor,
        }
    }

    /// Keeps what was seen of the neighbours while an experiment ran; of several experiments, the worst of each.
    pub fn absorb(&mut self, findings: &Findings) {
        for found in &findings.neighbours {
            match self.neighbours.iter_mut().find(|known| known.pid == found.pid && known.command == found.command) {
                Some(known) if known.share < found.share => *known = found.clone(),
                Some(_) => {}
                None => self.neighbours.push(found.clone()),
            }
        }
        self.neighbours.sort_by(|a, b| b.share.total_cmp(&a.share));
        let worst = |known: &Fact<f64>, new: &Fact<f64>| match (known, new) {
            (Fact::Told(known), Fact::Told(new)) => Fact::Told(known.max(*new)),
            (Fact::Told(known), Fact::NotTold(_)) => Fact::Told(*known),
            (Fact::NotTold(_), new) => new.clone(),
        };
        self.unnamed_share = worst(&self.unnamed_share, &findings.unnamed_share);
        self.steal_share = worst(&self.steal_share, &findings.steal_share);
    }

    fn cache(&self, level: u32) -> Option<&Cache> {
        self.caches.told()?.iter().find(|cache| cache.level == level && cache.kind != "Instruction")
    }

    /// Bytes of the level-1 data cache.
    pub fn l1d_bytes(&self) -> Option<u64> {
        self.cache(1).map(|cache| cache.size_bytes)
    }

    /// Bytes of the level-2 cache.
    pub fn l2_bytes(&self) -> Option<u64> {
        self.cache(2).map(|cache| cache.size_bytes)
    }

    /// Bytes of the level-3 cache.
    pub fn l3_bytes(&self) -> Option<u64> {
        self.cache(3).map(|cache| cache.size_bytes)
    }

    /// Bytes of the three levels of caches for data, where they are known.
    pub fn caches_bytes(&self) -> [Option<u64>; 3] {
        [self.l1d_bytes(), self.l2_bytes(), self.l3_bytes()]
    }

    /// Bytes of a cache line.
    pub fn cache_line_bytes(&self) -> Option<u32> {
        self.cache(1).and_then(|cache| cache.line_bytes)
    }
}

/// Tried by a thread that ends at once: the limit, the capability and the control group all have their say.
fn fifo_scheduling() -> Availability {
    let tried = std::thread::spawn(|| dormouse_lab_harness::set_scheduler(libc::SCHED_FIFO, 1));
    match tried.join() {
        Ok(Ok(())) => Availability::Available,
        Ok(Err(error)) if error.raw_os_error() == Some(libc::EPERM) => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Rtprio).current;
            let limit = limit.map_or("unlimited".into(), |limit| limit.to_string());
            Availability::Not(format!(
                "not permitted: RLIMIT_RTPRIO is {limit}, and there is no CAP_SYS_NICE (or the control group gives no \
                 real-time share)"
            ))
        }
        Ok(Err(error)) => Availability::Not(error.to_string()),
        Err(_) => Availability::Not("the thread that tried it failed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_survives_json() {
        let host = Host::read();
        let text = serde_json::to_string(&host).expect("a host is JSON");
        let again: Host = serde_json::from_str(&text).expect("and can be read");
        assert_eq!(again, host, "{text}");
        for member in ["cpu", "caches", "kernel", "clock", "governor", "virtualised", "counters"] {
            assert!(text.contains(&format!("\"{member}\":")), "{member} is missing in {text}");
        }
    }

    #[test]
    fn results_of_other_versions_load() {
        let old =
            r#"{"cpu":"Old","cpu_count":4,"kernel":"5.4","clock_source":"tsc","virtualised":false,"load":"0.10"}"#;
        let host: Host = serde_json::from_str(old).expect("the first layout");
        assert_eq!((host.cpu.as_str(), host.cpu_count), ("Old", 4));
        assert_eq!(host.governor.cause(), Some("this result does not have it"));
        let strange =
            r#"{"cpu":7,"counters":[],"caches":{"L1":1},"memory":"much","tracing":{"rseq":1},"neighbours":{}}"#;
        let host: Host = serde_json::from_str(strange).expect("a later layout");
        assert_eq!(host.cpu, "");
        assert_eq!(host.caches.told(), None);
        assert_eq!(host.tracing.rseq, Availability::default());
    }

    #[test]
    fn where_nothing_can_be_read_everything_has_its_cause() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let host = Host::read_from(&Source::at(dir.path()));
        assert_eq!(host.kernel, "not told: the kernel has no /proc/sys/kernel/osrelease");
        assert_eq!(host.cpu, "not told: the kernel has no /proc/cpuinfo");
        assert!(host.memory.thp.cause().is_some_and(|cause| cause.contains("built without transparent huge pages")));
        assert!(host.governor.cause().is_some());
        assert!(host.limits.cpu.cause().is_some());
    }
}
