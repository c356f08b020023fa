//! The machine that figures were measured on: the member `host` of every result.
//!
//! A figure without its machine cannot be placed, and two results that differ cannot be explained. So every result carries whatever may bear
//! on it, and what could not be read says why: a zero or an empty text would pass for a fact.
//!
//! ```text
//!   /proc, /sys ─────────┐
//!   CPUID, prctl, sched ─┼─▶ Host::read (before the run) ──▶ JSON ──▶ `lab compare`, the HTML report
//!   counters, rseq,      │        ▲
//!   patching: tried ─────┘        └── Neighbours' findings (after the run)
//! ```
//!
//! # Limits
//! Caches and the range of frequency are processor 0's. What is tried (counters, rseq, patching, huge pages) is tried in the process that
//! calls, whose environment, limits and `prctl` settings the engines inherit.
//!
//! # Source
//! The kernel's `Documentation/ABI/testing/sysfs-devices-system-cpu`, `admin-guide/mm/transhuge.rst`,
//! `admin-guide/cgroup-v2.rst`; `proc(5)`, `perf_event_open(2)`, `membarrier(2)`.

mod caches;
mod counters;
mod facts;
mod limits;
mod source;

use serde::{Deserialize, Serialize};

pub use crate::fact::Fact;
use crate::fact::tolerant;
use crate::neighbours::{Findings, Neighbour};
use crate::probes::Probes;
pub use caches::Cache;
pub use facts::Facts;
use source::Source;

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
    /// The caches of processor 0.
    pub caches: Fact<Vec<Cache>>,
    /// Kernel release.
    #[serde(deserialize_with = "tolerant")]
    pub kernel: String,
    /// The kernel's clock source.
    #[serde(deserialize_with = "tolerant")]
    pub clock_source: String,
    /// Whether the processor says that it runs under a hypervisor.
    #[serde(deserialize_with = "tolerant")]
    pub virtualised: bool,
    /// Counters of the processor and the kernel: `available`, or why not.
    #[serde(deserialize_with = "tolerant")]
    pub counters: Facts,
    /// All else that may bear on figures.
    #[serde(deserialize_with = "tolerant")]
    pub facts: Facts,
    /// Load average of the last minute, before the run.
    #[serde(deserialize_with = "tolerant")]
    pub load: String,
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
        Host::read_from(&Source::at("/"))
    }

    fn read_from(source: &Source) -> Host {
        let text = |path: &str| source.text(path).to_string();
        // First, while it is that of the others.
        let load = source.text("/proc/loadavg").map(facts::first).to_string();
        let cpuinfo = source.text("/proc/cpuinfo");
        let facts = facts::read(source, &cpuinfo);
        let flags = facts::field(&cpuinfo, "flags");
        let virtualised = flags.told().is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
        let nobody = || Fact::NotTold("nobody watched".into());
        Host {
            measured: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
            cpu: facts::field(&cpuinfo, "model name").to_string(),
            cpu_count: std::thread::available_parallelism().map_or(0, usize::from),
            caches: caches::read(source),
            kernel: text("/proc/sys/kernel/osrelease"),
            clock_source: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            virtualised,
            counters: counters::read(virtualised),
            facts,
            load,
            neighbours: Vec::new(),
            unnamed_share: nobody(),
            steal_share: nobody(),
            probes: Probes::default(),
        }
    }

    /// A fact by its name, such as `memory.thp`.
    pub fn fact(&self, name: &str) -> Fact<String> {
        self.facts.get(name).cloned().unwrap_or_default()
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

    fn cache_bytes(&self, level: u32) -> Option<u64> {
        let mut caches = self.caches.told()?.iter();
        caches.find(|cache| cache.level == level && cache.kind != "Instruction").map(|cache| cache.size_bytes)
    }

    /// Bytes of the level-2 cache.
    pub fn l2_bytes(&self) -> Option<u64> {
        self.cache_bytes(2)
    }

    /// Bytes of the level-3 cache.
    pub fn l3_bytes(&self) -> Option<u64> {
        self.cache_bytes(3)
    }

    /// Bytes of the three levels of caches for data, where they are known.
    pub fn caches_bytes(&self) -> [Option<u64>; 3] {
        [1, 2, 3].map(|level| self.cache_bytes(level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_survives_json() {
        let host = Host::read();
        let text = serde_json::to_string(&host).expect("a host is JSON");
        assert_eq!(serde_json::from_str::<Host>(&text).expect("and can be read"), host, "{text}");
    }

    #[test]
    fn results_of_other_versions_load() {
        let old = r#"{"cpu":"Old","cpu_count":4,"virtualised":false,"load":"0.10","memory":{"thp":"always"}}"#;
        let host: Host = serde_json::from_str(old).expect("an older layout");
        assert_eq!((host.cpu.as_str(), host.cpu_count), ("Old", 4));
        assert_eq!(host.fact("memory.thp").cause(), Some("this result does not have it"));
        let strange = r#"{"cpu":7,"counters":[],"caches":{"L1":1},"facts":"much","neighbours":{}}"#;
        let host: Host = serde_json::from_str(strange).expect("a later layout");
        assert_eq!((host.cpu.as_str(), host.caches.told()), ("", None));
    }

    #[test]
    fn where_nothing_can_be_read_everything_has_its_cause() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let host = Host::read_from(&Source::at(dir.path()));
        assert_eq!(host.kernel, "not told: the kernel has no /proc/sys/kernel/osrelease");
        assert_eq!(host.cpu, "not told: the kernel has no /proc/cpuinfo");
        for name in ["memory.thp", "processor.governor", "limits.cpu", "clock.tsc_constant", "processor.boost"] {
            assert!(host.fact(name).cause().is_some_and(|cause| !cause.is_empty()), "{name}");
        }
    }
}
