//! The facts that are text: a table of their files, facts without a file of their own, and the counters that are
//! available.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;

use dormouse_lab_harness::Counters;

use super::Fact;

/// Facts by name, such as `memory.thp`.
pub type Facts = BTreeMap<String, Fact<String>>;

/// A text, or the reason why there is none.
type Text = Result<String, String>;

/// Facts with a file of their own.
const FILES: &[(&str, &str)] = &[
    ("clock.available", "/sys/devices/system/clocksource/clocksource0/available_clocksource"),
    ("kernel.address_randomisation", "/proc/sys/kernel/randomize_va_space"),
    ("kernel.numa_balancing", "/proc/sys/kernel/numa_balancing"),
    ("kernel.options", "/proc/cmdline"),
    ("kernel.perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid"),
    ("kernel.version", "/proc/sys/kernel/version"),
    ("memory.overcommit", "/proc/sys/vm/overcommit_memory"),
    ("memory.swappiness", "/proc/sys/vm/swappiness"),
    ("memory.thp", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("memory.thp_defrag", "/sys/kernel/mm/transparent_hugepage/defrag"),
    ("memory.thp_shmem", "/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    ("memory.thp_zero_page", "/sys/kernel/mm/transparent_hugepage/use_zero_page"),
    ("processor.boost", "/sys/devices/system/cpu/cpufreq/boost"),
    ("processor.frequency_driver", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"),
    ("processor.frequency_khz_max", "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"),
    ("processor.frequency_khz_min", "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_min_freq"),
    ("processor.idle_driver", "/sys/devices/system/cpu/cpuidle/current_driver"),
    ("processor.intel_no_turbo", "/sys/devices/system/cpu/intel_pstate/no_turbo"),
    ("processor.isolated", "/sys/devices/system/cpu/isolated"),
    ("processor.nohz_full", "/sys/devices/system/cpu/nohz_full"),
    ("processor.numa_nodes", "/sys/devices/system/node/online"),
    ("processor.online", "/sys/devices/system/cpu/online"),
    ("uptime_s", "/proc/uptime"),
];

/// Converts a file's text to the value of a fact.
fn form(name: &str, text: String) -> String {
    match name {
        "kernel.options" => known_options(&text),
        "memory.thp_zero_page" => if text == "0" { "not in use" } else { "in use" }.into(),
        "uptime_s" => text.split(' ').take(1).collect(),
        // The kernel prints `(null)` for an empty nohz_full.
        _ if text.is_empty() || text == "(null)" => "none".into(),
        // The choice in brackets of a text such as `always [madvise] never`.
        _ => match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
            Some((inside, _)) => inside.into(),
            None => text,
        },
    }
}

/// Returns a file's text without surrounding white space. `root` is the running machine's root, or that of a copy of
/// its files.
pub(super) fn text(root: &Path, path: &str) -> Text {
    let text = std::fs::read_to_string(root.join(path.trim_start_matches('/')));
    text.map(|text| text.trim().into()).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("the kernel has no {path}"),
        ErrorKind::PermissionDenied => format!("{path} may not be read by this user"),
        _ => format!("{path}: {error}"),
    })
}

/// Returns the names in a directory that start with `start`; none if the directory does not exist.
pub(super) fn names(root: &Path, dir: &str, start: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(root.join(dir.trim_start_matches('/'))).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.starts_with(start)).collect()
}

/// Kernel options that affect figures. Other options are left out, because users pass results on.
const OPTIONS: &str = "amd_pstate clocksource cpufreq.default_governor cpuidle.off cpuidle_haltpoll.force default_hugepagesz hugepages \
    hugepagesz idle intel_idle.max_cstate intel_pstate irqaffinity isolcpus l1tf lsm maxcpus mds mitigations nmi_watchdog no_stf_barrier \
    nohz nohz_full noibrs nopti nosmt nospectre_v1 nospectre_v2 notsc nowatchdog nr_cpus numa_balancing preempt processor.max_cstate pti \
    rcu_nocbs retbleed selinux skew_tick spec_store_bypass_disable spectre_v2 threadirqs transparent_hugepage tsc tsx";

fn known_options(command_line: &str) -> String {
    let is_known = |word: &&str| OPTIONS.split(' ').any(|option| word.split('=').next() == Some(option));
    // Words after `--` belong to the first process.
    let words = command_line.split_whitespace().take_while(|&word| word != "--").filter(is_known);
    let known = words.collect::<Vec<_>>().join(" ");
    if known.is_empty() { "none that bears on figures".into() } else { known }
}

/// Returns the value of a line `name : value` of `/proc/cpuinfo` or `/proc/meminfo`.
pub(super) fn field(text: &Text, name: &str) -> Text {
    let mut fields = text.as_ref()?.lines().filter_map(|line| line.split_once(':'));
    let field = fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_string());
    field.ok_or_else(|| format!("the kernel tells no `{name}`"))
}

/// Returns `yes` or `no`: whether a flag is in `/proc/cpuinfo`.
pub(super) fn flag(cpuinfo: &Text, name: &str) -> Text {
    let flags = field(cpuinfo, "flags")?;
    Ok(if flags.split_whitespace().any(|flag| flag == name) { "yes" } else { "no" }.into())
}

/// Returns the distinct texts of a file that each CPU has.
fn of_each(root: &Path, file: &str) -> Option<BTreeSet<String>> {
    let cpus = names(root, "/sys/devices/system/cpu", "cpu");
    let text = |cpu: String| text(root, &format!("/sys/devices/system/cpu/{cpu}/{file}")).ok();
    Some(cpus.into_iter().filter_map(text).collect::<BTreeSet<_>>()).filter(|texts| !texts.is_empty())
}

/// Returns the limit that this process's control group imposes (version 2): the tightest one from its group up to the
/// root, or `none`. `size` converts a limit to a number; the smallest is the tightest.
fn limit(root: &Path, file: &str, size: fn(&str) -> Option<f64>, shown: fn(f64, String) -> String) -> Text {
    let texts = group_dirs(root)?.into_iter().filter_map(|dir| text(root, &format!("{dir}/{file}")).ok());
    let limits = texts.filter_map(|text| Some((size(&text)?, text)));
    let tightest = limits.min_by(|a, b| a.0.total_cmp(&b.0));
    Ok(tightest.map_or_else(|| "none".into(), |(size, text)| shown(size, text)))
}

/// Returns the directories of the process's group and its ancestors, innermost first.
fn group_dirs(root: &Path) -> Result<Vec<String>, String> {
    let mut mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter();
    let mount = mounts.find(|mount| text(root, &format!("{mount}/cgroup.controllers")).is_ok());
    let mount = mount.ok_or("no control groups of version 2 are mounted at /sys/fs/cgroup")?;
    let groups = text(root, "/proc/self/cgroup")?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let path = path.ok_or("/proc/self/cgroup names no group of version 2")?;
    // In a container the path may be that of the host, of which only the end is mounted.
    let ancestors = Path::new(path).ancestors();
    Ok(ancestors.map(|dir| format!("{mount}{}", dir.display())).collect())
}

/// Reads all text facts.
pub(super) fn read(root: &Path, cpuinfo: &Text) -> Facts {
    let mut facts = Facts::new();
    let mut add = |name: &str, text: Text| _ = facts.insert(name.into(), text.into());
    for (name, path) in FILES {
        add(name, text(root, path).map(|text| form(name, text)));
    }
    let meminfo = text(root, "/proc/meminfo");
    for (name, text, key) in [
        ("memory.huge_pages", &meminfo, "HugePages_Total"),
        ("memory.total", &meminfo, "MemTotal"),
        ("processor.microcode", cpuinfo, "microcode"),
        ("processor.stepping", cpuinfo, "stepping"),
    ] {
        add(name, field(text, key));
    }
    let mhz = |is: String| match is.as_str() {
        "yes" => Ok(format!("{:.1}", dormouse_lab_harness::cycles_per_ns() * 1e3)),
        _ => Err("the counter is not constant".into()),
    };
    add("clock.tsc_mhz", flag(cpuinfo, "constant_tsc").and_then(mhz));
    add("clock.tsc_constant", flag(cpuinfo, "constant_tsc"));
    add("clock.tsc_nonstop", flag(cpuinfo, "nonstop_tsc"));
    add("processor.hypervisor", flag(cpuinfo, "hypervisor").and_then(hypervisor));
    let allowed = crate::allowed_cpus().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let allowed = Some(allowed).filter(|allowed| !allowed.is_empty());
    add("processor.allowed", allowed.ok_or_else(|| "sched_getaffinity fails".into()));
    let governors = of_each(root, "cpufreq/scaling_governor").map(|all| Vec::from_iter(all).join(", "));
    let cause = || "the kernel drives no frequency here (no cpufreq): the host or the firmware does".to_string();
    add("processor.governor", governors.ok_or_else(cause));
    let siblings = of_each(root, "topology/thread_siblings");
    let ones = |mask: &String| mask.chars().filter_map(|digit| digit.to_digit(16)).map(u32::count_ones).sum::<u32>();
    let threads = siblings.and_then(|masks| masks.iter().map(ones).max());
    let sockets = of_each(root, "topology/physical_package_id").map(|ids| ids.len() as u32);
    for (name, count) in [("processor.threads_per_core", threads), ("processor.sockets", sockets)] {
        add(name, count.map(|count| count.to_string()).ok_or_else(|| "the kernel has no cpuN/topology".into()));
    }
    let vulnerabilities = "/sys/devices/system/cpu/vulnerabilities";
    for name in names(root, vulnerabilities, "") {
        add(&format!("mitigations.{name}"), text(root, &format!("{vulnerabilities}/{name}")));
    }
    let share = |text: &str| {
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    };
    let processors = |share: f64, text: String| format!("{share:.2} processors ({} µs)", text.replace(' ', " of "));
    add("limits.cpu", limit(root, "cpu.max", share, processors));
    let bytes = |text: &str| text.parse::<f64>().ok();
    add("limits.memory", limit(root, "memory.max", bytes, |_, text| format!("{text} bytes")));
    let is_some = |text: &str| (!text.is_empty()).then_some(0.0);
    add("limits.cpuset", limit(root, "cpuset.cpus.effective", is_some, |_, text| text));
    let is_disabled = rustix::thread::transparent_huge_pages_are_disabled();
    let thp_process = is_disabled.map(|is_disabled| if is_disabled { "disabled" } else { "allowed" }.to_string());
    add("memory.thp_process", thp_process.map_err(|errno| format!("prctl(PR_GET_THP_DISABLE): {errno}")));
    let tracing = dormouse_doctor::Tracing::read();
    let pagemap_scan = dormouse_backing::try_pagemap_scan().map_err(|error| error.to_string());
    for (name, tried) in [
        ("tracing.rseq", tracing.rseq),
        ("tracing.membarrier", tracing.membarrier),
        ("tracing.pagemap_scan", pagemap_scan),
        ("fifo_scheduling", fifo_scheduling()),
    ] {
        add(name, Ok(tried.map_or_else(|cause| format!("not available: {cause}"), |()| "available".into())));
    }
    add("tracing.patching", tracing.patching.map(|patching| patching.writer));
    add("tracing.glibc_tunables", Ok(std::env::var("GLIBC_TUNABLES").unwrap_or_else(|_| "not set".into())));
    add("kernel.libc", libc_version());
    add("memory.os_page_bytes", Ok(dormouse_backing::os_page_size().to_string()));
    add("dormouse.version", Ok(env!("CARGO_PKG_VERSION").into()));
    add("dormouse.build", Ok(if cfg!(debug_assertions) { "debug" } else { "release" }.into()));
    facts
}

/// Tries the policy on a thread that ends at once, because the limit, the capability and the control group all decide.
fn fifo_scheduling() -> Result<(), String> {
    let tried = std::thread::spawn(|| dormouse_lab_harness::set_scheduler(libc::SCHED_FIFO, 1)).join();
    let tried = tried.map_err(|_| "the thread that tried it failed")?;
    tried.map_err(|error| {
        format!("{error} (it takes RLIMIT_RTPRIO or CAP_SYS_NICE, and a control group that gives such time)")
    })
}

/// Returns the name of the hypervisor, from CPUID leaf 0x4000_0000.
fn hypervisor(is_there: String) -> Text {
    if is_there == "no" {
        return Ok("none".into());
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(info) = raw_cpuid::CpuId::new().get_hypervisor_info() {
        return Ok(format!("{:?}", info.identify()));
    }
    Err("the hypervisor gives no name".into())
}

fn libc_version() -> Text {
    let output = std::process::Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let output = output.map_err(|error| format!("getconf: {error}"))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if version.is_empty() { Err("not glibc".into()) } else { Ok(version) }
}

/// Returns the reason why a counter that opens is useless, judged by the counts of all counters.
fn cause_of(name: &str, counts: &BTreeMap<String, f64>, is_virtualised: bool) -> Option<&'static str> {
    let is_zero = |name: &str| counts.get(name).is_none_or(|count| *count == 0.0);
    // Zero may be true of events that the kernel counts, and of misses if the CPU counts at all. It cannot be true of
    // cycles.
    let is_dead = is_zero(name) && is_zero("cycles") && !["page_faults", "context_switches"].contains(&name);
    match (counts.contains_key(name), is_virtualised) {
        (false, _) => Some("it opens but never runs: other counters (the NMI watchdog, a profiler) hold the hardware"),
        (true, _) if !is_dead => None,
        (true, true) => Some("it opens but stays at zero: the hypervisor of this virtual machine does not count"),
        (true, false) => Some("it opens but stays at zero"),
    }
}

/// Tries each counter of the CPU and the kernel on the calling thread. A counter that opens may still not count: under
/// some hypervisors it stays at zero, and if all hardware counters are in use it never gets its turn.
pub(super) fn counters(is_virtualised: bool) -> Facts {
    let mut opened = Counters::open();
    opened.start();
    let mut memory = vec![0_u8; 1 << 20];
    memory.iter_mut().step_by(64).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
    let counts = opened.stop();
    let refused: BTreeMap<&str, &str> = opened.refused().iter().map(|(name, cause)| (*name, cause.as_str())).collect();
    let fact = |name: &str| {
        let cause = refused.get(name).copied().or_else(|| cause_of(name, &counts, is_virtualised));
        cause.map_or_else(|| Fact::Told("available".into()), |cause| Fact::NotTold(cause.into()))
    };
    dormouse_lab_harness::counters().iter().map(|(name, _)| (name.to_string(), fact(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_files() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (file, text) in [
            ("proc/self/cgroup", "0::/outer/inner"),
            ("proc/cmdline", "root=UUID=secret isolcpus=1 mitigations=off password=x -- nosmt"),
            ("sys/devices/system/cpu/nohz_full", "(null)"),
            ("sys/devices/system/cpu/cpu0/topology/thread_siblings", "1,00000003"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory"),
            ("sys/fs/cgroup/outer/cpu.max", "150000 100000"),
            ("sys/fs/cgroup/outer/inner/cpu.max", "max 100000"),
            ("sys/fs/cgroup/outer/memory.max", "max"),
            ("sys/fs/cgroup/cpuset.cpus.effective", "0-1"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
        ] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, format!("{text}\n")).expect("written");
        }
        let facts = read(dir.path(), &Ok("microcode : 0x1d\nflags : constant_tsc fpu".into()));
        for (name, value) in [
            ("clock.tsc_nonstop", "no"),
            ("kernel.options", "isolcpus=1 mitigations=off"),
            ("limits.cpu", "1.50 processors (150000 of 100000 µs)"),
            ("limits.cpuset", "0-1"),
            ("limits.memory", "none"),
            ("memory.thp", "madvise"),
            ("processor.governor", "performance, powersave"),
            ("processor.hypervisor", "none"),
            ("processor.microcode", "0x1d"),
            ("processor.nohz_full", "none"),
            ("processor.stepping", "not told: the kernel tells no `stepping`"),
            ("processor.threads_per_core", "3"),
        ] {
            assert_eq!(facts[name].to_string(), value, "{name}");
        }
    }

    #[test]
    fn causes_name_their_source() {
        for (name, count, cycles, is_virtualised, cause) in [
            ("llc_loads", None, 0.0, true, "it opens but never runs: other counters (the NMI watchdog"),
            ("llc_loads", Some(0.0), 0.0, true, "it opens but stays at zero: the hypervisor"),
            ("llc_loads", Some(0.0), 0.0, false, "it opens but stays at zero"),
            ("llc_loads", Some(0.0), 9.0, true, "available"),
            ("page_faults", Some(0.0), 0.0, true, "available"),
        ] {
            let counted = count.map(|count| (name.to_string(), count));
            let counts = counted.into_iter().chain([("cycles".to_string(), cycles)]).collect();
            let found = cause_of(name, &counts, is_virtualised).unwrap_or("available");
            assert!(found.starts_with(cause), "{name}: {found}");
        }
    }
}
