//! The kernel and its settings: options, mitigations, clock, memory, limits of the control group.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Fact;
use super::source::{Source, chosen, cpu_list};

/// Options of the kernel's command line that bear on figures; all others are left out, because results are handed on.
const OPTIONS: &[&str] = &[
    "amd_pstate",
    "clocksource",
    "cpufreq.default_governor",
    "cpuidle.off",
    "cpuidle_haltpoll.force",
    "default_hugepagesz",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle.max_cstate",
    "intel_pstate",
    "irqaffinity",
    "isolcpus",
    "l1tf",
    "lsm",
    "maxcpus",
    "mds",
    "mitigations",
    "nmi_watchdog",
    "no_stf_barrier",
    "nohz",
    "nohz_full",
    "noibrs",
    "nopti",
    "nosmt",
    "nospectre_v1",
    "nospectre_v2",
    "notsc",
    "nowatchdog",
    "nr_cpus",
    "numa_balancing",
    "preempt",
    "processor.max_cstate",
    "pti",
    "rcu_nocbs",
    "retbleed",
    "selinux",
    "skew_tick",
    "spec_store_bypass_disable",
    "spectre_v2",
    "threadirqs",
    "transparent_hugepage",
    "tsc",
    "tsx",
];

/// The kernel beyond its release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kernel {
    /// The kernel's own words on its version: compiler, preemption model.
    pub version: Fact<String>,
    /// Options of the command line that bear on figures (`isolcpus=…`, `mitigations=…`); no others.
    pub options: Fact<Vec<String>>,
    /// Weaknesses of the processor and what the kernel does about each.
    pub mitigations: Fact<BTreeMap<String, String>>,
    /// `kernel.randomize_va_space`.
    pub address_randomisation: Fact<u32>,
    /// `kernel.numa_balancing`.
    pub numa_balancing: Fact<u32>,
    /// Version of the C library.
    pub libc: Fact<String>,
}

impl Kernel {
    pub(super) fn read(source: &Source) -> Kernel {
        let vulnerabilities = "/sys/devices/system/cpu/vulnerabilities";
        let names = source.names(vulnerabilities);
        let mitigations = names.into_iter().filter_map(|name| {
            let text = source.text(&format!("{vulnerabilities}/{name}")).told().cloned()?;
            Some((name, text))
        });
        Kernel {
            version: source.text("/proc/version").map(|text| without_builder(&text)),
            options: source.text("/proc/cmdline").map(|text| known_options(&text)),
            mitigations: if source.exists(vulnerabilities) {
                Fact::Told(mitigations.collect())
            } else {
                Fact::NotTold(format!("the kernel has no {vulnerabilities}"))
            },
            address_randomisation: source.number("/proc/sys/kernel/randomize_va_space"),
            numa_balancing: source.number("/proc/sys/kernel/numa_balancing"),
            libc: libc_version(),
        }
    }
}

/// `/proc/version` without the person and machine that built the kernel.
fn without_builder(text: &str) -> String {
    let mut parts = text.splitn(3, " (");
    match (parts.next(), parts.next(), parts.next()) {
        (Some(release), Some(builder), Some(rest)) if builder.contains('@') => format!("{release} ({rest}"),
        _ => text.into(),
    }
}

fn known_options(command_line: &str) -> Vec<String> {
    // What follows `--` is for the first process.
    let words = command_line.split_whitespace().take_while(|&word| word != "--");
    let known = words.filter(|word| OPTIONS.contains(&word.split('=').next().unwrap_or_default()));
    known.map(String::from).collect()
}

#[cfg(target_env = "gnu")]
fn libc_version() -> Fact<String> {
    // SAFETY: gnu_get_libc_version(3) takes nothing and returns a constant string.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: that string is NUL-terminated and never freed.
    let version = unsafe { std::ffi::CStr::from_ptr(version) };
    Fact::Told(format!("glibc {}", version.to_string_lossy()))
}

#[cfg(not(target_env = "gnu"))]
fn libc_version() -> Fact<String> {
    Fact::NotTold("not glibc".into())
}

/// What time is read from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clock {
    /// The kernel's clock source.
    pub source: Fact<String>,
    /// Those that it could use.
    pub available: Fact<Vec<String>>,
    /// Whether the timestamp counter ticks at one rate whatever the core's frequency.
    pub tsc_constant: Fact<bool>,
    /// Whether it ticks in deep sleep.
    pub tsc_nonstop: Fact<bool>,
    /// Whether the hypervisor or the processor tells its frequency.
    pub tsc_known_freq: Fact<bool>,
    /// Its frequency, measured against the monotonic clock for 20 ms.
    pub tsc_hz: Fact<u64>,
}

impl Clock {
    pub(super) fn read(source: &Source, flags: &Fact<String>) -> Clock {
        let dir = "/sys/devices/system/clocksource/clocksource0";
        let flag = |name: &str| flags.clone().map(|flags| flags.split_whitespace().any(|flag| flag == name));
        Clock {
            source: source.text(&format!("{dir}/current_clocksource")),
            available: source
                .text(&format!("{dir}/available_clocksource"))
                .map(|text| text.split_whitespace().map(String::from).collect()),
            tsc_constant: flag("constant_tsc"),
            tsc_nonstop: flag("nonstop_tsc"),
            tsc_known_freq: flag("tsc_known_freq"),
            tsc_hz: match flag("constant_tsc") {
                Fact::Told(true) => tsc_hz(),
                Fact::Told(false) => Fact::NotTold("the counter is not constant".into()),
                Fact::NotTold(cause) => Fact::NotTold(cause),
            },
        }
    }
}

/// The counter, and the time in between two readings of which it lies; the closest of a few.
/// As the engines measure it.
#[cfg(target_arch = "x86_64")]
fn tsc_hz() -> Fact<u64> {
    Fact::Told((dormouse_lab_harness::cycles_per_ns() * 1e9).round() as u64)
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc_hz() -> Fact<u64> {
    Fact::NotTold("no timestamp counter on this architecture".into())
}

/// Memory and the kernel's policy for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// All of it, as the kernel counts it.
    pub total_bytes: Fact<u64>,
    /// Bytes of a page of the operating system.
    pub os_page_bytes: Fact<u64>,
    /// Transparent huge pages for anonymous memory: `always`, `madvise`, `never`.
    pub thp: Fact<String>,
    /// What a fault does to get one.
    pub thp_defrag: Fact<String>,
    /// The same for shared memory, which sessions are made of.
    pub thp_shmem: Fact<String>,
    /// Whether reads of memory that nobody wrote get the huge zero page.
    pub thp_zero_page: Fact<bool>,
    /// Whether this process may have them: `PR_GET_THP_DISABLE` says no for a process tree.
    pub thp_process: Fact<String>,
    /// Huge pages set aside.
    pub huge_pages: Fact<u64>,
    /// `vm.swappiness`.
    pub swappiness: Fact<u32>,
    /// `vm.overcommit_memory`.
    pub overcommit: Fact<u32>,
}

impl Memory {
    pub(super) fn read(source: &Source) -> Memory {
        let meminfo = source.text("/proc/meminfo");
        let field = |name: &str| {
            meminfo.clone().and_then(|text| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(String::from));
                let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
                Fact::from_option(number, || format!("/proc/meminfo has no {name}"))
            })
        };
        let thp = |file: &str| {
            let file = source.text(&format!("/sys/kernel/mm/transparent_hugepage/{file}")).map(|text| chosen(&text));
            match file {
                Fact::NotTold(cause) => Fact::NotTold(format!("{cause}: built without transparent huge pages")),
                told => told,
            }
        };
        Memory {
            total_bytes: field("MemTotal").map(|kib| kib << 10),
            os_page_bytes: Fact::Told(rustix::param::page_size() as u64),
            thp: thp("enabled"),
            thp_defrag: thp("defrag"),
            thp_shmem: thp("shmem_enabled"),
            thp_zero_page: thp("use_zero_page").map(|text| text == "1"),
            thp_process: match rustix::thread::transparent_huge_pages_are_disabled() {
                Ok(false) => Fact::Told("allowed".into()),
                Ok(true) => Fact::Told("disabled".into()),
                Err(errno) => Fact::NotTold(format!("prctl(PR_GET_THP_DISABLE): {errno}")),
            },
            huge_pages: field("HugePages_Total"),
            swappiness: source.number("/proc/sys/vm/swappiness"),
            overcommit: source.number("/proc/sys/vm/overcommit_memory"),
        }
    }
}

/// What the control group of this process allows. `none` is said where there is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Processor time: `none`, or `1.50 processors (150000 of 100000 µs)`.
    pub cpu: Fact<String>,
    /// Memory: `none`, or bytes.
    pub memory: Fact<String>,
    /// Processors of the cpuset.
    pub cpuset: Fact<String>,
}

impl Limits {
    /// Each limit is the tightest from the process's group up to the root.
    pub(super) fn read(source: &Source) -> Limits {
        let groups = match source.text("/proc/self/cgroup") {
            Fact::Told(groups) => groups,
            Fact::NotTold(cause) => {
                let no = |cause: &str| Fact::NotTold(cause.to_string());
                return Limits { cpu: no(&cause), memory: no(&cause), cpuset: no(&cause) };
            }
        };
        let group = |controller: &str| group_dirs(source, &groups, controller);
        let cpu = group("cpu").map(|dirs| {
            let all = dirs.iter().filter_map(|dir| {
                let max = source.text(&format!("{dir}/cpu.max")).told().cloned();
                let (quota, period) = match max {
                    Some(max) => {
                        let (quota, period) = max.split_once(' ')?;
                        (quota.parse::<i64>().ok()?, period.parse::<i64>().ok()?)
                    }
                    None => (
                        *source.number::<i64>(&format!("{dir}/cpu.cfs_quota_us")).told()?,
                        *source.number::<i64>(&format!("{dir}/cpu.cfs_period_us")).told()?,
                    ),
                };
                (quota > 0 && period > 0).then_some((quota, period))
            });
            let tightest = all.min_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)));
            tightest.map_or("none".into(), |(quota, period)| {
                format!("{:.2} processors ({quota} of {period} µs)", quota as f64 / period as f64)
            })
        });
        let memory = group("memory").map(|dirs| {
            let limits = dirs.iter().filter_map(|dir| {
                let v2 = source.number::<u64>(&format!("{dir}/memory.max"));
                let limit = v2.or_else(|| source.number::<u64>(&format!("{dir}/memory.limit_in_bytes")));
                // Version 1 says "none" by the largest multiple of a page.
                limit.told().copied().filter(|&limit| limit < 1 << 60)
            });
            limits.min().map_or("none".into(), |bytes| format!("{bytes} bytes"))
        });
        let cpuset = group("cpuset").map(|dirs| {
            let found = dirs.iter().find_map(|dir| {
                let files = ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"];
                files.iter().find_map(|file| source.text(&format!("{dir}/{file}")).told().cloned())
            });
            found.filter(|text| cpu_list(text).is_some_and(|cpus| !cpus.is_empty())).unwrap_or_else(|| "none".into())
        });
        Limits { cpu, memory, cpuset }
    }
}

/// Directories of the process's group for a controller, innermost first: that of version 1 if it is mounted, else of 2.
fn group_dirs(source: &Source, groups: &str, controller: &str) -> Fact<Vec<String>> {
    let lines = || groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let v1 = lines().find(|(names, _)| names.split(',').any(|name| name == controller)).and_then(|(names, path)| {
        let mounts = [names, controller].map(|name| format!("/sys/fs/cgroup/{name}"));
        mounts.into_iter().find(|mount| source.exists(mount)).map(|mount| (mount, path))
    });
    let v2 = || {
        let (_, path) = lines().find(|(names, _)| names.is_empty())?;
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let mount = mounts.into_iter().find(|mount| source.exists(&format!("{mount}/cgroup.controllers")))?;
        Some((mount.to_string(), path))
    };
    let Some((mount, path)) = v1.or_else(v2) else {
        return Fact::NotTold("no control group file system is mounted at /sys/fs/cgroup".into());
    };
    let mut dirs = Vec::new();
    let mut path = path.trim_end_matches('/');
    loop {
        // In a container the path may be that of the host, of which only the end is mounted.
        dirs.push(format!("{mount}{path}"));
        match path.rfind('/') {
            Some(end) => path = &path[..end],
            None => break,
        }
    }
    Fact::Told(dirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_options_that_bear_on_figures_are_told() {
        let line = "root=UUID=secret isolcpus=1 mitigations=off password=x -- nosmt";
        assert_eq!(known_options(line), ["isolcpus=1", "mitigations=off"]);
        let version = "Linux version 6.1.0 (someone@somewhere) (gcc 12) #1 SMP PREEMPT_DYNAMIC";
        assert_eq!(without_builder(version), "Linux version 6.1.0 (gcc 12) #1 SMP PREEMPT_DYNAMIC");
    }

    #[test]
    fn the_tightest_limit_counts() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("proc/self/cgroup", "0::/outer/inner\n");
        write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
        write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
        write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
        write("sys/fs/cgroup/outer/memory.max", "max\n");
        write("sys/fs/cgroup/cpuset.cpus.effective", "0-1\n");
        let limits = Limits::read(&Source::at(dir.path()));
        assert_eq!(limits.cpu, Fact::Told("1.50 processors (150000 of 100000 µs)".into()));
        assert_eq!(limits.memory, Fact::Told("none".into()));
        assert_eq!(limits.cpuset, Fact::Told("0-1".into()));

        write("proc/self/cgroup", "4:memory:/box\n2:cpu,cpuacct:/box\n");
        write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
        write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
        write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1048576\n");
        let limits = Limits::read(&Source::at(dir.path()));
        assert_eq!(limits.cpu, Fact::Told("none".into()));
        assert_eq!(limits.memory, Fact::Told("1048576 bytes".into()));
        assert!(limits.cpuset.cause().is_some(), "{:?}", limits.cpuset);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_counter_has_a_frequency() {
        // No machine that this runs on ticks slower than 100 kHz; the figure itself is the lab's affair.
        assert!(tsc_hz().told().is_some_and(|&hz| hz > 100_000));
    }
}
