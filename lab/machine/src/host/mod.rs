//! The machine that figures were measured on: the member `host` of every result.
//!
//! A difference between two results cannot be explained without their machines. So every result carries all facts that
//! may affect it. A fact that could not be read has a cause: a zero or an empty text would pass for a value.
//!
//! ```text
//!   /proc, /sys, CPUID; counters, rseq, patching: tried ──▶ Host::read (before the run) ──▶ JSON ──▶ `lab compare`, the HTML report
//!                                                              ▲
//!                                                              └── Neighbours' findings (after the run)
//! ```
//! Caches and the frequency range are those of CPU 0. Facilities are tried in the calling process, whose environment,
//! limits and `prctl` settings the engines inherit. Source: the kernel's
//! `Documentation/ABI/testing/sysfs-devices-system-cpu`, `admin-guide/mm/transhuge.rst`, `admin-guide/cgroup-v2.rst`;
//! `proc(5)`, `perf_event_open(2)`, `membarrier(2)`.

mod facts;

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use crate::fact::Fact;
use crate::neighbours::{Findings, Neighbour};
use crate::probes::Probes;
pub use facts::Facts;
use facts::{field, flag, names, text};

/// A cache of CPU 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    /// Level: 1, 2 or 3.
    pub level: u32,
    /// `Data`, `Instruction`, `Unified`.
    pub kind: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// CPUs that share it, as the kernel lists them; empty if the kernel does not.
    pub shared_cpus: String,
}

/// Facts that a reader needs to place a figure. Every member may be missing in a result that is read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Time of reading, in UTC: `2026-11-21 22:17:00 UTC`.
    pub measured: String,
    /// Model name of the CPU.
    pub cpu: String,
    /// Number of CPUs that this process may use at once, according to its affinity and its control group's quota.
    pub cpu_count: usize,
    /// Caches of CPU 0.
    pub caches: Fact<Vec<Cache>>,
    /// Kernel release.
    pub kernel: String,
    /// The kernel's clock source.
    pub clock_source: String,
    /// Whether the CPU reports that it runs under a hypervisor.
    pub virtualised: bool,
    /// Counters of the CPU and the kernel: `available`, or the cause.
    pub counters: Facts,
    /// All other facts that may affect figures.
    pub facts: Facts,
    /// Load average of the last minute, before the run.
    pub load: String,
    /// Processes that took much of a CPU during the run.
    pub neighbours: Vec<Neighbour>,
    /// Share of one CPU that was taken by processes too short-lived to name.
    pub unnamed_share: Fact<f64>,
    /// Share of the CPUs' time that the hypervisor gave to other machines during the run.
    pub steal_share: Fact<f64>,
    /// Results of the probes, before the run.
    pub probes: Probes,
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let virtualised = if self.virtualised { ", virtualised" } else { "" };
        write!(f, "{} × {}{virtualised}, Linux {}, load {}", self.cpu_count, self.cpu, self.kernel, self.load)
    }
}

impl Host {
    /// Reads and tries everything, which takes some tens of milliseconds. It must be called before the run, so that the
    /// load is that of other processes.
    pub fn read() -> Host {
        Host::read_from(Path::new("/"))
    }

    fn read_from(root: &Path) -> Host {
        let told = |path: &str| Fact::from(text(root, path)).to_string();
        // Read first, while the load is that of other processes only.
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

    /// Adds the findings on neighbours during an experiment. Over several experiments, the highest share of each is
    /// kept.
    pub fn absorb(&mut self, findings: &Findings) {
        self.neighbours.extend(findings.neighbours.iter().cloned());
        self.neighbours.sort_by(|a, b| b.share.total_cmp(&a.share));
        let mut known = HashSet::new();
        self.neighbours.retain(|one| known.insert((one.pid, one.command.clone())));
        for (worst, new) in
            [(&mut self.unnamed_share, &findings.unnamed_share), (&mut self.steal_share, &findings.steal_share)]
        {
            // An unknown share counts as less than any share.
            if new.told() >= worst.told() {
                *worst = new.clone();
            }
        }
    }

    /// Returns the sizes of the data caches of levels 1 to 3 in bytes, if they are known.
    pub fn caches_bytes(&self) -> [Option<u64>; 3] {
        [1, 2, 3].map(|level| {
            let mut caches = self.caches.told()?.iter();
            caches.find(|cache| cache.level == level && cache.kind != "Instruction").map(|cache| cache.size_bytes)
        })
    }
}

/// Reads the caches of CPU 0 from the kernel.
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
    fn unreadable_facts_have_a_cause() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let host = Host::read_from(dir.path());
        assert_eq!(host.kernel, "not told: the kernel has no /proc/sys/kernel/osrelease");
        assert_eq!(host.cpu, "not told: the kernel has no /proc/cpuinfo");
        for name in ["memory.thp", "processor.governor", "limits.cpu", "clock.tsc_constant", "processor.sockets"] {
            assert!(host.fact(name).cause().is_some_and(|cause| !cause.is_empty()), "{name}");
        }
    }
}
