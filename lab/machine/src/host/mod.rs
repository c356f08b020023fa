//! The machine that figures were measured on: the member `host` of every result.
//!
//! Two results that differ cannot be explained without their machines. So every result carries whatever may bear on it, and what could not
//! be read says why: a zero or an empty text would pass for a fact.
//!
//! ```text
//!   /proc, /sys, CPUID; counters, rseq, patching: tried ──▶ Host::read (before the run) ──▶ JSON ──▶ `lab compare`, the HTML report
//!                                                              ▲
//!                                                              └── Neighbours' findings (after the run)
//! ```
//! Caches and the range of frequency are processor 0's. What is tried is tried in the process that calls, whose environment, limits and
//! `prctl` settings the engines inherit. Source: the kernel's `Documentation/ABI/testing/sysfs-devices-system-cpu`,
//! `admin-guide/mm/transhuge.rst`, `admin-guide/cgroup-v2.rst`; `proc(5)`, `perf_event_open(2)`, `membarrier(2)`.

mod facts;

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use crate::fact::Fact;
use crate::neighbours::{Findings, Neighbour};
use crate::probes::Probes;
pub use facts::Facts;
use facts::{field, flag, names, text};

/// A cache of processor 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    /// 1, 2, 3.
    pub level: u32,
    /// `Data`, `Instruction`, `Unified`.
    pub kind: String,
    /// All of it.
    pub size_bytes: u64,
    /// Processors that share it, as the kernel lists them; empty where it does not.
    pub shared_cpus: String,
}

/// What a reader needs to place a figure. Every member may be missing in a result that is read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// When it was read, in UTC: `2026-11-21 22:17:00 UTC`.
    pub measured: String,
    /// Model name of the processor.
    pub cpu: String,
    /// Processors that this process may use at once: affinity and the control group's quota count.
    pub cpu_count: usize,
    /// The caches of processor 0.
    pub caches: Fact<Vec<Cache>>,
    /// Kernel release.
    pub kernel: String,
    /// The kernel's clock source.
    pub clock_source: String,
    /// Whether the processor says that it runs under a hypervisor.
    pub virtualised: bool,
    /// Counters of the processor and the kernel: `available`, or why not.
    pub counters: Facts,
    /// All else that may bear on figures.
    pub facts: Facts,
    /// Load average of the last minute, before the run.
    pub load: String,
    /// Processes that took much of a processor while the run lasted.
    pub neighbours: Vec<Neighbour>,
    /// Share of one processor that processes too short-lived to name took.
    pub unnamed_share: Fact<f64>,
    /// Share of the processors' time that the hypervisor gave to others while the run lasted.
    pub steal_share: Fact<f64>,
    /// What was measured of it on the spot, before the run.
    pub probes: Probes,
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
        Host::read_from(Path::new("/"))
    }

    fn read_from(root: &Path) -> Host {
        let told = |path: &str| Fact::from(text(root, path)).to_string();
        // First, while it is that of the others.
        let load = text(root, "/proc/loadavg").map(|text| text.split(' ').take(1).collect::<String>());
        let cpuinfo = text(root, "/proc/cpuinfo");
        let virtualised = flag(&cpuinfo, "hypervisor").is_ok_and(|is| is == "yes");
        let nobody = || Fact::NotTold("nobody watched".into());
        Host {
            measured: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            cpu: Fact::from(field(&cpuinfo, "model name")).to_string(),
            cpu_count: std::thread::available_parallelism().map_or(0, usize::from),
            caches: caches(root),
            kernel: told("/proc/sys/kernel/osrelease"),
            clock_source: told("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            virtualised,
            counters: facts::counters(virtualised),
            facts: facts::read(root, &cpuinfo),
            load: Fact::from(load).to_string(),
            unnamed_share: nobody(),
            steal_share: nobody(),
            ..Host::default()
        }
    }

    /// A fact by its name, such as `memory.thp`.
    pub fn fact(&self, name: &str) -> Fact<String> {
        self.facts.get(name).cloned().unwrap_or_default()
    }

    /// Keeps what was seen of the neighbours while an experiment ran; of several experiments, the worst of each.
    pub fn absorb(&mut self, findings: &Findings) {
        self.neighbours.extend(findings.neighbours.iter().cloned());
        self.neighbours.sort_by(|a, b| b.share.total_cmp(&a.share));
        let mut known = HashSet::new();
        self.neighbours.retain(|one| known.insert((one.pid, one.command.clone())));
        for (worst, new) in
            [(&mut self.unnamed_share, &findings.unnamed_share), (&mut self.steal_share, &findings.steal_share)]
        {
            // What is not told is less than any share.
            if new.told() >= worst.told() {
                *worst = new.clone();
            }
        }
    }

    /// Bytes of the three levels of caches for data, where they are known.
    pub fn caches_bytes(&self) -> [Option<u64>; 3] {
        [1, 2, 3].map(|level| {
            let mut caches = self.caches.told()?.iter();
            caches.find(|cache| cache.level == level && cache.kind != "Instruction").map(|cache| cache.size_bytes)
        })
    }
}

/// The caches of processor 0, as the kernel has them.
fn caches(root: &Path) -> Fact<Vec<Cache>> {
    let dir = "/sys/devices/system/cpu/cpu0/cache";
    let cache = |index: String| {
        let file = |name: &str| text(root, &format!("{dir}/{index}/{name}")).ok();
        Some(Cache {
            level: file("level")?.parse().ok()?,
            kind: file("type")?,
            size_bytes: file("size")?.strip_suffix('K')?.parse::<u64>().ok()? << 10,
            shared_cpus: file("shared_cpu_list").unwrap_or_default(),
        })
    };
    let caches: Vec<Cache> = names(root, dir, "index").into_iter().filter_map(cache).collect();
    if caches.is_empty() {
        return Fact::NotTold(format!("the kernel has no {dir} (a hypervisor hides it)"));
    }
    Fact::Told(caches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_survives_json_and_results_of_other_versions_load() {
        let host = Host::read();
        let text = serde_json::to_string(&host).expect("a host is JSON");
        assert_eq!(serde_json::from_str::<Host>(&text).expect("and can be read"), host, "{text}");
        let other =
            r#"{"cpu":"Old","governor":"a","caches":{"L1":1},"steal_share":"much","facts":{"a":{"not_told":"b"}}}"#;
        let host: Host = serde_json::from_str(other).expect("another layout");
        assert_eq!((host.cpu.as_str(), host.caches.told()), ("Old", None));
        assert_eq!(host.steal_share.cause(), Some("another version wrote it as \"much\""));
        let causes = ["a", "memory.thp"].map(|name| host.fact(name).to_string());
        assert_eq!(causes, ["not told: b", "not told: this result does not have it"]);
    }

    #[test]
    fn where_nothing_can_be_read_everything_has_its_cause() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let host = Host::read_from(dir.path());
        assert_eq!(host.kernel, "not told: the kernel has no /proc/sys/kernel/osrelease");
        assert_eq!(host.cpu, "not told: the kernel has no /proc/cpuinfo");
        for name in ["memory.thp", "processor.governor", "limits.cpu", "clock.tsc_constant", "processor.sockets"] {
            assert!(host.fact(name).cause().is_some_and(|cause| !cause.is_empty()), "{name}");
        }
    }
}
