//! The processor: what it is, its caches, how its processors share cores, how fast it may run.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::source::{Source, cpu_list, size_bytes};
use super::{Fact, tolerant};

/// What the processor says of itself, and how the kernel drives it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Processor {
    /// `GenuineIntel`, `AuthenticAMD` …
    pub vendor: Fact<String>,
    /// Family.
    pub family: Fact<u32>,
    /// Model number.
    pub model: Fact<u32>,
    /// Stepping.
    pub stepping: Fact<u32>,
    /// Revision of the microcode, as the kernel prints it.
    pub microcode: Fact<String>,
    /// Processors that are online.
    pub online: Fact<Vec<u32>>,
    /// Processors that there could be.
    pub possible: Fact<Vec<u32>>,
    /// Processors that this process may use.
    pub allowed: Fact<Vec<u32>>,
    /// Processors that the scheduler leaves alone.
    pub isolated: Fact<Vec<u32>>,
    /// Processors without a timer tick while one thread runs.
    pub nohz_full: Fact<Vec<u32>>,
    /// Hardware threads of a core.
    pub threads_per_core: Fact<u32>,
    /// For each processor online, those that share its core.
    pub siblings: Fact<Vec<Vec<u32>>>,
    /// Sockets.
    pub sockets: Fact<u32>,
    /// NUMA nodes.
    pub numa_nodes: Fact<u32>,
    /// The frequency driver of the kernel.
    pub frequency_driver: Fact<String>,
    /// Lowest frequency, kHz.
    pub frequency_khz_min: Fact<u64>,
    /// Highest frequency, kHz.
    pub frequency_khz_max: Fact<u64>,
    /// Whether a core may exceed its nominal frequency.
    pub boost: Fact<bool>,
    /// Driver of idle states.
    pub idle_driver: Fact<String>,
}

/// One cache of processor 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    /// 1, 2, 3.
    pub level: u32,
    /// `Data`, `Instruction`, `Unified`.
    pub kind: String,
    /// All of it.
    pub size_bytes: u64,
    /// One line.
    #[serde(deserialize_with = "tolerant")]
    pub line_bytes: Option<u32>,
    /// Lines that an address may be in.
    #[serde(deserialize_with = "tolerant")]
    pub ways: Option<u32>,
    /// Processors that share it.
    pub shared_cpus: Vec<u32>,
}

/// The value of a line `name : value` of `/proc/cpuinfo`.
pub(super) fn cpuinfo_field(cpuinfo: &Fact<String>, name: &str) -> Fact<String> {
    cpuinfo.clone().and_then(|text| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        let field = fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_string());
        Fact::from_option(field, || format!("/proc/cpuinfo has no `{name}`"))
    })
}

fn number(text: Fact<String>) -> Fact<u32> {
    text.and_then(|text| Fact::from_option(text.parse().ok(), || format!("`{text}` is no number")))
}

fn list(text: Fact<String>) -> Fact<Vec<u32>> {
    // The kernel prints `(null)` for an empty nohz_full.
    text.map(|text| if text == "(null)" { String::new() } else { text })
        .and_then(|text| Fact::from_option(cpu_list(&text), || format!("`{text}` is no list of processors")))
}

impl Processor {
    pub(super) fn read(source: &Source, cpuinfo: &Fact<String>) -> Processor {
        let field = |name: &str| cpuinfo_field(cpuinfo, name);
        let cpu = |rest: &str| format!("/sys/devices/system/cpu/{rest}");
        let online = list(source.text(&cpu("online")));
        let each = |file: &str| -> Vec<Fact<String>> {
            let online = online.told().cloned().unwrap_or_default();
            online.iter().map(|number| source.text(&cpu(&format!("cpu{number}/{file}")))).collect()
        };
        let siblings: Fact<Vec<Vec<u32>>> = each("topology/thread_siblings_list").into_iter().map(list).fold(
            if online.told().is_some() {
                Fact::Told(Vec::new())
            } else {
                Fact::NotTold("no list of processors".into())
            },
            |all, one| all.and_then(|mut all| one.map(|one| all.push(one)).map(|()| all)),
        );
        let sockets: BTreeSet<String> =
            each("topology/physical_package_id").iter().filter_map(Fact::told).cloned().collect();
        let frequency = |file: &str| source.text(&cpu(&format!("cpu0/cpufreq/{file}")));
        let khz = |file: &str| source.number::<u64>(&cpu(&format!("cpu0/cpufreq/{file}")));
        Processor {
            vendor: field("vendor_id"),
            family: number(field("cpu family")),
            model: number(field("model")),
            stepping: number(field("stepping")),
            microcode: field("microcode"),
            possible: list(source.text(&cpu("possible"))),
            allowed: allowed(),
            isolated: list(source.text(&cpu("isolated"))),
            nohz_full: list(source.text(&cpu("nohz_full"))),
            threads_per_core: siblings.clone().and_then(|siblings| {
                let most = siblings.iter().map(Vec::len).max();
                Fact::from_option(most.map(|most| most as u32), || "no processor is listed".into())
            }),
            siblings,
            sockets: if sockets.is_empty() {
                Fact::NotTold("the kernel has no topology/physical_package_id".into())
            } else {
                Fact::Told(sockets.len() as u32)
            },
            numa_nodes: list(source.text("/sys/devices/system/node/online")).map(|nodes| nodes.len() as u32),
            frequency_driver: frequency("scaling_driver"),
            frequency_khz_min: khz("cpuinfo_min_freq"),
            frequency_khz_max: khz("cpuinfo_max_freq"),
            boost: boost(source),
            idle_driver: source.text(&cpu("cpuidle/current_driver")),
            online,
        }
    }
}

/// The processors of this process's affinity.
fn allowed() -> Fact<Vec<u32>> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => Fact::Told(
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect(),
        ),
        Err(errno) => Fact::NotTold(format!("sched_getaffinity: {errno}")),
    }
}

/// Turbo of either driver: `intel_pstate/no_turbo` says no, `cpufreq/boost` says yes.
fn boost(source: &Source) -> Fact<bool> {
    let no_turbo = source.number::<u8>("/sys/devices/system/cpu/intel_pstate/no_turbo").map(|no| no == 0);
    let boost = || source.number::<u8>("/sys/devices/system/cpu/cpufreq/boost").map(|yes| yes != 0);
    match no_turbo.or_else(boost) {
        Fact::NotTold(_) => Fact::NotTold(
            "neither intel_pstate/no_turbo nor cpufreq/boost is there: the host or the firmware decides".into(),
        ),
        told => told,
    }
}

/// The governor of processor 0, and of the others where they differ.
pub(super) fn governor(source: &Source, online: &Fact<Vec<u32>>) -> Fact<String> {
    let path = |cpu: u32| format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
    let cpus = online.told().cloned().unwrap_or_else(|| vec![0]);
    let all: BTreeSet<String> = cpus.iter().filter_map(|&cpu| source.text(&path(cpu)).told().cloned()).collect();
    if all.is_empty() {
        return Fact::NotTold("the kernel drives no frequency here (no cpufreq): the host or the firmware does".into());
    }
    Fact::Told(all.into_iter().collect::<Vec<_>>().join(", "))
}

/// The caches of processor 0, from `/sys`, else from the processor itself.
pub(super) fn caches(source: &Source) -> Fact<Vec<Cache>> {
    let dir = "/sys/devices/system/cpu/cpu0/cache";
    let names = source.names(dir);
    let indices = names.iter().filter(|name| name.strip_prefix("index").is_some_and(|n| n.parse::<u32>().is_ok()));
    let caches: Vec<Cache> = indices
        .filter_map(|index| {
            let file = |name: &str| source.text(&format!("{dir}/{index}/{name}"));
            let number = |name: &str| source.number::<u32>(&format!("{dir}/{index}/{name}")).told().copied();
            Some(Cache {
                level: number("level")?,
                kind: file("type").told()?.clone(),
                size_bytes: size_bytes(file("size").told()?)?,
                line_bytes: number("coherency_line_size"),
                ways: number("ways_of_associativity"),
                shared_cpus: file("shared_cpu_list").told().and_then(|text| cpu_list(text)).unwrap_or_default(),
            })
        })
        .collect();
    if caches.is_empty() { caches_by_cpuid(dir) } else { Fact::Told(caches) }
}

#[cfg(target_arch = "x86_64")]
fn caches_by_cpuid(dir: &str) -> Fact<Vec<Cache>> {
    use raw_cpuid::CacheType;
    let parameters = raw_cpuid::CpuId::new().get_cache_parameters();
    let caches: Vec<Cache> = parameters
        .into_iter()
        .flatten()
        .map(|cache| Cache {
            level: cache.level().into(),
            kind: match cache.cache_type() {
                CacheType::Data => "Data",
                CacheType::Instruction => "Instruction",
                _ => "Unified",
            }
            .into(),
            size_bytes: [
                cache.associativity(),
                cache.physical_line_partitions(),
                cache.coherency_line_size(),
                cache.sets(),
            ]
            .into_iter()
            .map(|factor| factor as u64)
            .product(),
            line_bytes: Some(cache.coherency_line_size() as u32),
            ways: Some(cache.associativity() as u32),
            shared_cpus: Vec::new(),
        })
        .filter(|cache| cache.size_bytes > 0)
        .collect();
    if caches.is_empty() {
        return Fact::NotTold(format!("the kernel has no {dir}, and CPUID names no cache (a hypervisor hides them)"));
    }
    Fact::Told(caches)
}

#[cfg(not(target_arch = "x86_64"))]
fn caches_by_cpuid(dir: &str) -> Fact<Vec<Cache>> {
    Fact::NotTold(format!("the kernel has no {dir}"))
}

/// Who virtualises, by CPUID leaf 0x4000_0000.
#[cfg(target_arch = "x86_64")]
pub(super) fn hypervisor_name() -> Fact<String> {
    use raw_cpuid::Hypervisor;
    let name = match raw_cpuid::CpuId::new().get_hypervisor_info().map(|info| info.identify()) {
        Some(Hypervisor::KVM) => "KVM",
        Some(Hypervisor::Xen) => "Xen",
        Some(Hypervisor::VMware) => "VMware",
        Some(Hypervisor::HyperV) => "Hyper-V",
        Some(Hypervisor::Bhyve) => "bhyve",
        Some(Hypervisor::QEMU) => "QEMU without hardware help (TCG)",
        Some(_) => return Fact::NotTold("a hypervisor that this version does not know".into()),
        None => return Fact::NotTold("the hypervisor gives no name".into()),
    };
    Fact::Told(name.into())
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn hypervisor_name() -> Fact<String> {
    Fact::NotTold("only known on x86-64".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plant(root: &std::path::Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, text).expect("written");
        }
    }

    #[test]
    fn a_machine_of_files() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cpu = "sys/devices/system/cpu";
        plant(
            dir.path(),
            &[
                (&format!("{cpu}/online"), "0-1\n"),
                (&format!("{cpu}/nohz_full"), "(null)\n"),
                (&format!("{cpu}/cpu0/topology/thread_siblings_list"), "0-1\n"),
                (&format!("{cpu}/cpu1/topology/thread_siblings_list"), "0-1\n"),
                (&format!("{cpu}/cpu0/topology/physical_package_id"), "0\n"),
                (&format!("{cpu}/cpu1/topology/physical_package_id"), "0\n"),
                (&format!("{cpu}/cpu0/cpufreq/scaling_governor"), "powersave\n"),
                (&format!("{cpu}/cpu1/cpufreq/scaling_governor"), "performance\n"),
                (&format!("{cpu}/intel_pstate/no_turbo"), "1\n"),
                (&format!("{cpu}/cpu0/cache/index0/level"), "1\n"),
                (&format!("{cpu}/cpu0/cache/index0/type"), "Data\n"),
                (&format!("{cpu}/cpu0/cache/index0/size"), "48K\n"),
                (&format!("{cpu}/cpu0/cache/index0/coherency_line_size"), "64\n"),
                (&format!("{cpu}/cpu0/cache/index0/shared_cpu_list"), "0-1\n"),
            ],
        );
        let source = Source::at(dir.path());
        let cpuinfo = Fact::Told("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmicrocode : 0x1d\n".to_string());
        let processor = Processor::read(&source, &cpuinfo);
        assert_eq!(processor.threads_per_core, Fact::Told(2));
        assert_eq!(processor.sockets, Fact::Told(1));
        assert_eq!(processor.nohz_full, Fact::Told(vec![]));
        assert_eq!(processor.boost, Fact::Told(false));
        assert_eq!(processor.family, Fact::Told(6));
        assert_eq!(processor.stepping.cause(), Some("/proc/cpuinfo has no `stepping`"));
        assert_eq!(governor(&source, &processor.online), Fact::Told("performance, powersave".into()));
        let caches = caches(&source);
        let cache = caches.told().and_then(|caches| caches.first()).expect("one cache");
        assert_eq!((cache.size_bytes, cache.line_bytes, cache.ways), (48 << 10, Some(64), None));
    }
}
