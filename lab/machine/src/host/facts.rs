//! The facts that are text: a table of where each is read, and those that have no file of their own.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, chosen, cpu_list};
use super::{Fact, limits};

/// Facts by name, such as `memory.thp`.
pub type Facts = BTreeMap<String, Fact<String>>;

/// What is made of a file's text.
type Form = fn(String) -> String;

const FILES: &[(&str, &str, Form)] = &[
    ("clock.available", "/sys/devices/system/clocksource/clocksource0/available_clocksource", same),
    ("kernel.address_randomisation", "/proc/sys/kernel/randomize_va_space", same),
    ("kernel.numa_balancing", "/proc/sys/kernel/numa_balancing", same),
    ("kernel.options", "/proc/cmdline", known_options),
    ("kernel.perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid", same),
    ("kernel.version", "/proc/version", without_builder),
    ("memory.overcommit", "/proc/sys/vm/overcommit_memory", same),
    ("memory.swappiness", "/proc/sys/vm/swappiness", same),
    ("memory.thp", "/sys/kernel/mm/transparent_hugepage/enabled", one),
    ("memory.thp_defrag", "/sys/kernel/mm/transparent_hugepage/defrag", one),
    ("memory.thp_shmem", "/sys/kernel/mm/transparent_hugepage/shmem_enabled", one),
    ("memory.thp_zero_page", "/sys/kernel/mm/transparent_hugepage/use_zero_page", switch),
    ("processor.boost", "/sys/devices/system/cpu/cpufreq/boost", same),
    ("processor.frequency_driver", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", same),
    ("processor.frequency_khz_max", "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", same),
    ("processor.frequency_khz_min", "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_min_freq", same),
    ("processor.idle_driver", "/sys/devices/system/cpu/cpuidle/current_driver", same),
    ("processor.intel_no_turbo", "/sys/devices/system/cpu/intel_pstate/no_turbo", same),
    ("processor.isolated", "/sys/devices/system/cpu/isolated", list),
    ("processor.nohz_full", "/sys/devices/system/cpu/nohz_full", list),
    ("processor.numa_nodes", "/sys/devices/system/node/online", list),
    ("processor.online", "/sys/devices/system/cpu/online", list),
    ("uptime_s", "/proc/uptime", first),
];

fn same(text: String) -> String {
    text
}

fn one(text: String) -> String {
    chosen(&text)
}

pub(super) fn first(text: String) -> String {
    text.split_whitespace().next().unwrap_or_default().into()
}

fn switch(text: String) -> String {
    if text == "0" { "not in use" } else { "in use" }.into()
}

/// The kernel prints `(null)` for an empty nohz_full.
fn list(text: String) -> String {
    if text.is_empty() || text == "(null)" { "none".into() } else { text }
}

/// `/proc/version` without the person and machine that built the kernel.
fn without_builder(text: String) -> String {
    let mut parts = text.splitn(3, " (");
    match (parts.next(), parts.next(), parts.next()) {
        (Some(release), Some(builder), Some(rest)) if builder.contains('@') => format!("{release} ({rest}"),
        _ => text,
    }
}

/// Options of the kernel's command line that bear on figures; all others are left out, because results are handed on.
const OPTIONS: &str = "amd_pstate clocksource cpufreq.default_governor cpuidle.off cpuidle_haltpoll.force default_hugepagesz hugepages \
    hugepagesz idle intel_idle.max_cstate intel_pstate irqaffinity isolcpus l1tf lsm maxcpus mds mitigations nmi_watchdog no_stf_barrier \
    nohz nohz_full noibrs nopti nosmt nospectre_v1 nospectre_v2 notsc nowatchdog nr_cpus numa_balancing preempt processor.max_cstate pti \
    rcu_nocbs retbleed selinux skew_tick spec_store_bypass_disable spectre_v2 threadirqs transparent_hugepage tsc tsx";

fn known_options(command_line: String) -> String {
    let is_known = |word: &&str| OPTIONS.split(' ').any(|option| word.split('=').next() == Some(option));
    // What follows `--` is for the first process.
    let words = command_line.split_whitespace().take_while(|&word| word != "--").filter(is_known);
    let known = words.collect::<Vec<_>>().join(" ");
    if known.is_empty() { "none that bears on figures".into() } else { known }
}

/// The value of a line `name : value` of `/proc/cpuinfo` or `/proc/meminfo`.
pub(super) fn field(text: &Fact<String>, name: &str) -> Fact<String> {
    text.clone().and_then(|text| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        let field = fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_string());
        Fact::from_option(field, || format!("the kernel tells no `{name}`"))
    })
}

fn flag(cpuinfo: &Fact<String>, name: &str) -> Fact<String> {
    let has = |flags: String| flags.split_whitespace().any(|flag| flag == name);
    field(cpuinfo, "flags").map(|flags| if has(flags) { "yes" } else { "no" }.into())
}

/// The different texts that a file has for the processors that are online.
fn of_each(source: &Source, file: &str) -> Option<BTreeSet<String>> {
    let online = cpu_list(source.text("/sys/devices/system/cpu/online").told()?)?;
    let text = |cpu: u32| source.text(&format!("/sys/devices/system/cpu/cpu{cpu}/{file}")).told().cloned();
    Some(online.into_iter().filter_map(text).collect::<BTreeSet<_>>()).filter(|texts| !texts.is_empty())
}

/// Reads all of them.
pub(super) fn read(source: &Source, cpuinfo: &Fact<String>) -> Facts {
    let meminfo = source.text("/proc/meminfo");
    let mut facts: Facts =
        FILES.iter().map(|(name, path, form)| (name.to_string(), source.text(path).map(form))).collect();
    let mut add = |name: &str, fact: Fact<String>| _ = facts.insert(name.into(), fact);
    for name in ["stepping", "microcode"] {
        add(&format!("processor.{name}"), field(cpuinfo, name));
    }
    add("processor.allowed", allowed());
    let joined = |texts: BTreeSet<String>| texts.into_iter().collect::<Vec<_>>().join(", ");
    let governor = of_each(source, "cpufreq/scaling_governor").map(joined);
    let cause = || "the kernel drives no frequency here (no cpufreq): the host or the firmware does".into();
    add("processor.governor", Fact::from_option(governor, cause));
    let no_topology = || "the kernel has no cpuN/topology".into();
    let siblings = of_each(source, "topology/thread_siblings_list");
    let threads = siblings.and_then(|all| all.iter().filter_map(|text| Some(cpu_list(text)?.len())).max());
    add("processor.threads_per_core", Fact::from_option(threads.map(|count| count.to_string()), no_topology));
    let sockets = of_each(source, "topology/physical_package_id").map(|ids| ids.len().to_string());
    add("processor.sockets", Fact::from_option(sockets, no_topology));
    let hypervisor = flag(cpuinfo, "hypervisor");
    add(
        "processor.hypervisor",
        hypervisor.and_then(|is| if is == "yes" { hypervisor_name() } else { Fact::Told("none".into()) }),
    );
    let constant = flag(cpuinfo, "constant_tsc");
    let hz = |constant| if constant == "yes" { tsc_mhz() } else { Fact::NotTold("the counter is not constant".into()) };
    add("clock.tsc_mhz", constant.clone().and_then(hz));
    add("clock.tsc_constant", constant);
    add("clock.tsc_nonstop", flag(cpuinfo, "nonstop_tsc"));
    let vulnerabilities = "/sys/devices/system/cpu/vulnerabilities";
    for name in source.names(vulnerabilities) {
        add(&format!("mitigations.{name}"), source.text(&format!("{vulnerabilities}/{name}")));
    }
    add("kernel.libc", libc_version());
    add("memory.total", field(&meminfo, "MemTotal"));
    add("memory.huge_pages", field(&meminfo, "HugePages_Total"));
    add("memory.os_page_bytes", Fact::Told(rustix::param::page_size().to_string()));
    add(
        "memory.thp_process",
        match rustix::thread::transparent_huge_pages_are_disabled() {
            Ok(is_disabled) => Fact::Told(if is_disabled { "disabled" } else { "allowed" }.into()),
            Err(errno) => Fact::NotTold(format!("prctl(PR_GET_THP_DISABLE): {errno}")),
        },
    );
    limits::read(source).into_iter().for_each(|(name, limit)| add(name, limit));
    let tracing = dormouse_doctor::Tracing::read();
    add("tracing.patching", tracing.patching.map_or_else(Fact::NotTold, |patching| Fact::Told(patching.writer)));
    add("tracing.rseq", tried(tracing.rseq));
    add("tracing.membarrier", tried(tracing.membarrier));
    add("tracing.pagemap_scan", tried(dormouse_backing::try_pagemap_scan().map_err(|error| error.to_string())));
    add("tracing.glibc_tunables", Fact::Told(std::env::var("GLIBC_TUNABLES").unwrap_or_else(|_| "not set".into())));
    add("fifo_scheduling", tried(fifo_scheduling()));
    add("dormouse.version", Fact::Told(env!("CARGO_PKG_VERSION").into()));
    add("dormouse.build", Fact::Told(if cfg!(debug_assertions) { "debug" } else { "release" }.into()));
    facts
}

/// What was tried: `available`, or why it is not.
fn tried(tried: Result<(), String>) -> Fact<String> {
    Fact::Told(tried.map_or_else(|cause| format!("not available: {cause}"), |()| "available".into()))
}

/// The processors of this process's affinity.
fn allowed() -> Fact<String> {
    let cpus = crate::allowed_cpus().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    Fact::from_option(Some(cpus).filter(|cpus| !cpus.is_empty()), || "sched_getaffinity fails".into())
}

/// Tried by a thread that ends at once: the limit, the capability and the control group all have their say.
fn fifo_scheduling() -> Result<(), String> {
    let tried = std::thread::spawn(|| dormouse_lab_harness::set_scheduler(libc::SCHED_FIFO, 1)).join();
    let error = match tried {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error,
        Err(_) => return Err("the thread that tried it failed".into()),
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Rtprio).current;
    let limit = limit.map_or("unlimited".into(), |limit| limit.to_string());
    Err(match error.raw_os_error() {
        Some(libc::EPERM) => format!(
            "not permitted: RLIMIT_RTPRIO is {limit}, and there is no CAP_SYS_NICE (or the control group gives no real-time share)"
        ),
        _ => error.to_string(),
    })
}

/// Who virtualises, by CPUID leaf 0x4000_0000.
#[cfg(target_arch = "x86_64")]
fn hypervisor_name() -> Fact<String> {
    let name = raw_cpuid::CpuId::new().get_hypervisor_info().map(|info| format!("{:?}", info.identify()));
    Fact::from_option(name, || "the hypervisor gives no name".into())
}

#[cfg(not(target_arch = "x86_64"))]
fn hypervisor_name() -> Fact<String> {
    Fact::NotTold("only known on x86-64".into())
}

/// As the engines measure it.
#[cfg(target_arch = "x86_64")]
fn tsc_mhz() -> Fact<String> {
    Fact::Told(format!("{:.1}", dormouse_lab_harness::cycles_per_ns() * 1e3))
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc_mhz() -> Fact<String> {
    Fact::NotTold("no timestamp counter on this architecture".into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_files() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let cpu = "sys/devices/system/cpu";
        for (file, text) in [
            ("online", "0-1\n"),
            ("nohz_full", "(null)\n"),
            ("cpu0/topology/thread_siblings_list", "0-1\n"),
            ("cpu1/topology/thread_siblings_list", "0-1\n"),
            ("cpu1/topology/physical_package_id", "0\n"),
            ("cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("cpu1/cpufreq/scaling_governor", "performance\n"),
            ("intel_pstate/no_turbo", "1\n"),
            ("vulnerabilities/meltdown", "Mitigation: PTI\n"),
        ] {
            let path = dir.path().join(cpu).join(file);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        let facts = read(&Source::at(dir.path()), &Fact::Told("microcode : 0x1d\nflags : constant_tsc fpu".into()));
        for (name, value) in [
            ("processor.threads_per_core", "2"),
            ("processor.sockets", "1"),
            ("processor.nohz_full", "none"),
            ("processor.intel_no_turbo", "1"),
            ("processor.microcode", "0x1d"),
            ("processor.stepping", "not told: the kernel tells no `stepping`"),
            ("processor.governor", "performance, powersave"),
            ("processor.hypervisor", "none"),
            ("clock.tsc_nonstop", "no"),
            ("mitigations.meltdown", "Mitigation: PTI"),
            ("memory.thp", "not told: the kernel has no /sys/kernel/mm/transparent_hugepage/enabled"),
        ] {
            assert_eq!(facts[name].to_string(), value, "{name}");
        }
    }

    #[test]
    fn only_options_that_bear_on_figures_are_told() {
        let line = "root=UUID=secret isolcpus=1 mitigations=off password=x -- nosmt";
        assert_eq!(known_options(line.into()), "isolcpus=1 mitigations=off");
        let version = "Linux version 6.1.0 (someone@somewhere) (gcc 12) #1 SMP PREEMPT_DYNAMIC";
        assert_eq!(without_builder(version.into()), "Linux version 6.1.0 (gcc 12) #1 SMP PREEMPT_DYNAMIC");
    }
}
