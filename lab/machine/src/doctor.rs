//! What a machine's facts mean for tracing and for measuring, and what to do about them.
//!
//! ```text
//!   Host ──▶ diagnose ──▶ one finding for each fact: value, mark, meaning, remedy
//!                            ok        nothing to do
//!                            note      know it when you read figures
//!                            warning   figures suffer, or tracing does
//! ```
//! A finding that prevents tracing, or makes dormant events read a variable in place of being one instruction, says so:
//! [`Finding::prevents_tracing`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use dormouse_doctor::Findings;
pub use dormouse_doctor::{Finding, Mark, tracing_works};
use dormouse_lab_statistics::SCHEMA;
use serde::{Deserialize, Serialize};

use crate::host::{Availability, Fact, Host, list_text};
use crate::neighbours::Neighbours;

/// Reads the machine and watches its neighbours for a second.
pub fn examine() -> Host {
    let mut host = Host::read();
    let neighbours = Neighbours::watch(&[std::process::id()], &[]);
    std::thread::sleep(Duration::from_secs(1));
    host.absorb(&neighbours.stop());
    host
}

/// Why a host's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostFileError {
    /// It cannot be read, or written.
    #[error("{path}: {error}")]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is something else.
    #[error(
        "{path} is no host: {reason}; `dormouse lab doctor --save {path}` writes one, and `dormouse lab run --json {path}` too"
    )]
    NoHost {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing was measured of it.
    #[error(
        "{path} has facts of its host and no measurements; write it again with `dormouse lab doctor --save {path}` there"
    )]
    NotMeasured {
        /// Its path.
        path: PathBuf,
    },
}

/// A host in a file: as in a lab's result, which is read likewise.
#[derive(Serialize, Deserialize)]
struct HostFile {
    schema: u32,
    host: Host,
}

/// Writes a host's facts and measurements for a later [`load_host`].
///
/// # Errors
/// [`HostFileError::File`].
pub fn save_host(path: &Path, host: &Host) -> Result<(), HostFileError> {
    let file = HostFile { schema: SCHEMA, host: host.clone() };
    let text = serde_json::to_string_pretty(&file).map_err(std::io::Error::from);
    let written = text.and_then(|text| std::fs::write(path, text));
    written.map_err(|error| HostFileError::File { path: path.into(), error })
}

/// Reads a host that was measured: what [`save_host`] wrote, or a result of the lab.
///
/// # Errors
/// See [`HostFileError`].
pub fn load_host(path: &Path) -> Result<Host, HostFileError> {
    let text = std::fs::read(path).map_err(|error| HostFileError::File { path: path.into(), error })?;
    let file: HostFile = serde_json::from_slice(&text)
        .map_err(|error| HostFileError::NoHost { path: path.into(), reason: error.to_string() })?;
    if file.host.probes.figures.is_empty() {
        return Err(HostFileError::NotMeasured { path: path.into() });
    }
    Ok(file.host)
}

/// Reads the machine, watches its neighbours, and measures what [`crate::probes`] has.
pub fn examine_and_measure() -> Host {
    let mut host = examine();
    let cpu = crate::cpus().first().copied().unwrap_or(0);
    host.probes = crate::probes::measure(cpu, false, host.caches_bytes());
    host
}

/// Judges every fact, in groups.
pub fn diagnose(host: &Host) -> Vec<Finding> {
    let mut findings = Findings::default();
    processor(host, &mut findings);
    clock(host, &mut findings);
    kernel(host, &mut findings);
    memory(host, &mut findings);
    permissions(host, &mut findings);
    dormouse_doctor::diagnose(&host.tracing.to_judge(), &mut findings);
    findings.0
}

fn processor(host: &Host, findings: &mut Findings) {
    const PROCESSOR: &str = "processor";
    use Mark::{Note, Ok, Warning};
    findings.add(
        PROCESSOR,
        "model",
        Ok,
        &host.cpu,
        "Figures in nanoseconds are of this processor alone; ratios travel further.",
        "",
    );
    let processor = &host.processor;
    let cpus =
        |fact: &Fact<Vec<u32>>| fact.clone().map(|cpus| if cpus.is_empty() { "none".into() } else { list_text(&cpus) });
    let (allowed, online) = (cpus(&processor.allowed), cpus(&processor.online));
    let is_alone = host.cpu_count < 2;
    findings.add(
        PROCESSOR,
        "processors",
        if is_alone { Warning } else { Ok },
        format!("{allowed} of {online}, {} sockets, {} NUMA nodes", processor.sockets, processor.numa_nodes),
        if is_alone {
            "The measured program and the session owner take turns on one processor."
        } else {
            "The measured program can have a processor to itself."
        },
        if is_alone { "Give the machine or the container a second processor." } else { "" },
    );
    let caches = host.caches.clone().map(|caches| {
        let cache = |cache: &crate::host::Cache| {
            format!("L{} {} {} KiB", cache.level, cache.kind.to_lowercase(), cache.size_bytes >> 10)
        };
        caches.iter().map(cache).collect::<Vec<_>>().join(", ")
    });
    findings.add(
        PROCESSOR,
        "caches",
        if caches.told().is_some() { Ok } else { Note },
        &caches,
        "Cases under pressure on memory are cut to these sizes.",
        "",
    );
    match processor.threads_per_core {
        Fact::Told(1) => {
            findings.add(PROCESSOR, "SMT", Ok, "one thread for each core", "No sibling takes part of a core.", "")
        }
        Fact::Told(threads) => findings.add(
            PROCESSOR,
            "SMT",
            Note,
            format!("{threads} threads for each core"),
            "A busy sibling takes its part of the measured thread's core.",
            "For figures, keep the sibling idle, or: echo off | sudo tee /sys/devices/system/cpu/smt/control",
        ),
        Fact::NotTold(_) => findings.add(
            PROCESSOR,
            "SMT",
            Note,
            &processor.threads_per_core,
            "Siblings may or may not share the measured core.",
            "",
        ),
    }
    match &host.governor {
        Fact::Told(governor) if governor == "performance" => {
            findings.add(
                PROCESSOR,
                "governor",
                Ok,
                governor,
                "The core does not wait for load before it runs at \
                speed.",
                "",
            );
        }
        Fact::Told(governor) => findings.add(
            PROCESSOR,
            "governor",
            Warning,
            governor,
            "The frequency follows the load, so the first rounds run slow and figures spread.",
            "sudo cpupower frequency-set -g performance",
        ),
        hidden => findings.add(
            PROCESSOR,
            "governor",
            Note,
            hidden,
            "Whether the frequency moved during a run cannot be seen from here; trust ratios of one run more than \
                times.",
            "",
        ),
    }
    match processor.boost {
        Fact::Told(false) => findings.add(PROCESSOR, "turbo", Ok, "off", "The core keeps its nominal frequency.", ""),
        Fact::Told(true) => findings.add(
            PROCESSOR,
            "turbo",
            Note,
            "on",
            "A core runs faster while it is cool and its neighbours idle: figures depend on what went before.",
            "For figures that repeat: echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost (intel_pstate: echo 1 \
                | sudo \
             tee /sys/devices/system/cpu/intel_pstate/no_turbo)",
        ),
        Fact::NotTold(_) => findings.add(
            PROCESSOR,
            "turbo",
            Note,
            processor.boost.clone().map(|_| ""),
            "It may be on: figures may depend on \
                what went before.",
            "",
        ),
    }
    if host.virtualised {
        findings.add(
            PROCESSOR,
            "hypervisor",
            Note,
            &host.hypervisor,
            "A page walk takes more steps, and other machines may take time that no clock in here shows apart from \
                steal.",
            "For figures to publish, use a machine without hypervisor; ratios are good here.",
        );
    } else {
        findings.add(PROCESSOR, "hypervisor", Ok, &host.hypervisor, "The machine is its own.", "");
    }
    let isolated = processor.isolated.told().is_some_and(|cpus| !cpus.is_empty());
    findings.add(
        PROCESSOR,
        "isolated",
        Ok,
        format!("{}; without tick: {}", cpus(&processor.isolated), cpus(&processor.nohz_full)),
        if isolated {
            "Nobody else is scheduled on these: measure there with --cpu."
        } else {
            "Other processes may be scheduled on any processor. Medians bear that, extremes do not."
        },
        "",
    );
}

fn clock(host: &Host, findings: &mut Findings) {
    const CLOCK: &str = "clock";
    use Mark::{Note, Ok, Warning};
    match host.clock_source.as_str() {
        "tsc" => findings.add(CLOCK, "source", Ok, "tsc", "Reading the time takes no system call.", ""),
        source @ ("kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter") => findings.add(
            CLOCK,
            "source",
            Note,
            source,
            "The time is read without a system call, a little slower than from the timestamp counter alone.",
            "",
        ),
        source if source.starts_with("not told") => {
            findings.add(CLOCK, "source", Note, source, "What reading the time costs is not known.", "");
        }
        source => findings.add(
            CLOCK,
            "source",
            Warning,
            source,
            "Each reading of the time is a system call, which with hpet and acpi_pm asks a slow device.",
            "If available_clocksource beside it names tsc: echo tsc | sudo tee \
             /sys/devices/system/clocksource/clocksource0/current_clocksource; else `dmesg | grep -i tsc` says why \
             not.",
        ),
    }
    let hz = host.clock.tsc_hz.clone().map(|hz| format!("{:.1} MHz", hz as f64 / 1e6));
    match (&host.clock.tsc_constant, &host.clock.tsc_nonstop) {
        (Fact::Told(true), Fact::Told(true)) => findings.add(
            CLOCK,
            "timestamp counter",
            Ok,
            format!("constant, nonstop, {hz}"),
            "Events take their time from it, in one instruction.",
            "",
        ),
        (Fact::Told(constant), Fact::Told(nonstop)) => findings.add(
            CLOCK,
            "timestamp counter",
            Warning,
            format!("constant: {constant}, nonstop: {nonstop}"),
            "Events take their time from clock_gettime instead, which costs more.",
            "In a virtual machine, let the hypervisor show the invariant counter (QEMU: -cpu host,+invtsc).",
        ),
        (constant, _) => findings.add(
            CLOCK,
            "timestamp counter",
            Note,
            constant.clone().map(|_| ""),
            "Events take their time from clock_gettime instead, which costs more.",
            "",
        ),
    }
}

fn kernel(host: &Host, findings: &mut Findings) {
    const KERNEL: &str = "kernel";
    use Mark::{Note, Ok, Warning};
    let details = &host.kernel_details;
    let options = details
        .options
        .clone()
        .map(|all| if all.is_empty() { "no options that bear on figures".into() } else { all.join(" ") });
    findings.add(
        KERNEL,
        "release",
        Ok,
        format!("{}; {options}", host.kernel),
        "Faults, scheduling and system calls cost what this kernel makes them cost.",
        "",
    );
    let mitigations = details.mitigations.clone().map(|all| {
        let count = |start: &str| all.values().filter(|state| state.starts_with(start)).count();
        format!(
            "{} mitigated, {} vulnerable, {} not affected",
            count("Mitigation"),
            count("Vulnerable"),
            count("Not affected")
        )
    });
    findings.add(
        KERNEL,
        "mitigations",
        Note,
        mitigations,
        "They make system calls, faults and switches dearer. An event that is recorded does none of these.",
        "",
    );
    let load = host.load.parse::<f64>().ok();
    let is_loaded = load.is_some_and(|load| load > 0.5 * host.cpu_count as f64);
    findings.add(
        KERNEL,
        "load",
        if is_loaded { Warning } else { Ok },
        format!("{} for {} processors", host.load, host.cpu_count),
        if is_loaded {
            "Others have been working here in the last minute."
        } else {
            "The machine has been quiet in the last minute."
        },
        if is_loaded { "Wait until it is quiet; the lab names whoever disturbs a run." } else { "" },
    );
    let names =
        host.neighbours.iter().take(4).map(|n| format!("`{}` (pid {}) {:.0} %", n.command, n.pid, n.share * 100.0));
    let names = names.collect::<Vec<_>>().join(", ");
    let is_quiet = host.neighbours.is_empty();
    findings.add(
        KERNEL,
        "neighbours",
        if is_quiet { Ok } else { Warning },
        if is_quiet { "none above 5 % of a processor".into() } else { names },
        if is_quiet {
            "For the last second nobody took much of a processor."
        } else {
            "They take time and caches from what is measured."
        },
        if is_quiet { "" } else { "Stop them for a measurement, or measure on a processor that they leave alone." },
    );
    let is_stolen = host.steal_share.told().is_some_and(|share| *share >= 0.01);
    findings.add(
        KERNEL,
        "steal",
        if is_stolen { Warning } else { Ok },
        host.steal_share.clone().map(|share| format!("{:.1} %", share * 100.0)),
        "The share of the last second in which the hypervisor ran other machines on these processors.",
        if is_stolen { "Measure when the host is quiet, or on one of your own." } else { "" },
    );
    let limits = &host.limits;
    let is_limited = limits.cpu.told().is_some_and(|limit| limit != "none");
    findings.add(
        KERNEL,
        "control group",
        if is_limited { Warning } else { Ok },
        format!("processor time {}, memory {}, processors {}", limits.cpu, limits.memory, limits.cpuset),
        if is_limited {
            "A group that has used its quota stands still for the rest of each period: figures get a second hump."
        } else {
            "No quota stops a run in between."
        },
        if is_limited {
            "Measure outside of the container, or without its processor limit (docker: no --cpus)."
        } else {
            ""
        },
    );
}

fn memory(host: &Host, findings: &mut Findings) {
    const MEMORY: &str = "memory";
    use Mark::{Note, Ok};
    let memory = &host.memory;
    findings.add(
        MEMORY,
        "size",
        Ok,
        memory.total_bytes.clone().map(|bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))),
        "A session takes its --budget of it, 16 MiB unless said otherwise, before it starts.",
        "",
    );
    let is_disabled = memory.thp_process.told().is_some_and(|state| state == "disabled");
    findings.add(
        MEMORY,
        "huge pages",
        if is_disabled || memory.thp.told().is_none_or(|thp| thp == "always") { Note } else { Ok },
        format!(
            "transparent: {}, shared memory: {}, this process: \
            {}",
            memory.thp, memory.thp_shmem, memory.thp_process
        ),
        if is_disabled {
            "Somebody disabled huge pages for this process and all that it starts (PR_SET_THP_DISABLE): memory-bound \
             programs run slower here than elsewhere."
        } else {
            "Where they are used, the first touch clears 2 MiB at once and later accesses miss the TLB less. \
                Compare only \
             results with the same setting."
        },
        if is_disabled {
            "Look for THP_enabled: 0 in /proc/PID/status of the parents, and start from another \
            one."
        } else {
            ""
        },
    );
    findings.add(
        MEMORY,
        "address randomisation",
        Ok,
        host.kernel_details.address_randomisation.clone().map(|level| format!("level {level}")),
        "Where code and data lie differs from run to run, and with it some figures.",
        "",
    );
    findings.add(
        MEMORY,
        "PAGEMAP_SCAN",
        if host.tracing.pagemap_scan.is_available() { Ok } else { Note },
        &host.tracing.pagemap_scan,
        if host.tracing.pagemap_scan.is_available() {
            "Measurements on memory that nobody wrote, which is one page of zeroes, are found out."
        } else {
            "The zero page counts as memory that is there: a benchmark may read one page over and over unnoticed."
        },
        if host.tracing.pagemap_scan.is_available() { "" } else { "Linux 6.7 or later has it." },
    );
}

fn permissions(host: &Host, findings: &mut Findings) {
    const PERMISSIONS: &str = "permissions";
    use Mark::{Note, Ok};
    let (available, missing): (Vec<_>, Vec<_>) = host.counters.iter().partition(|(_, state)| state.is_available());
    let names = |counters: &[(&String, &Availability)]| {
        let names: Vec<String> = counters.iter().map(|(name, _)| name.replace('_', " ")).collect();
        if names.is_empty() { "none".to_string() } else { names.join(", ") }
    };
    findings.add(
        PERMISSIONS,
        "counters",
        if missing.is_empty() { Ok } else { Note },
        names(&available),
        "The lab shows what an iteration takes in these, beside its time.",
        "",
    );
    // Those with one cause in one finding.
    let mut causes: Vec<&str> = missing.iter().filter_map(|(_, state)| state.cause()).collect();
    causes.sort_unstable();
    causes.dedup();
    for cause in causes {
        let of: Vec<_> = missing.iter().filter(|(_, state)| state.cause() == Some(cause)).copied().collect();
        let remedy = if cause.contains("perf_event_paranoid") {
            "sudo sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON; in a container, allow perf_event_open as well."
        } else if cause.contains("hypervisor") {
            "Let the hypervisor give it a PMU (libvirt: <pmu state='on'/>; clouds: a metal instance)."
        } else if cause.contains("NMI watchdog") {
            "sudo sysctl kernel.nmi_watchdog=0, and stop other profilers."
        } else {
            ""
        };
        findings.add(
            PERMISSIONS,
            "counters that are missing",
            Note,
            format!("{}: {cause}", names(&of)),
            "Without them, causes have to be guessed from times.",
            remedy,
        );
    }
    let is_allowed = host.fifo_scheduling.is_available();
    findings.add(
        PERMISSIONS,
        "real-time scheduling",
        if is_allowed { Ok } else { Note },
        &host.fifo_scheduling,
        if is_allowed {
            "A measured thread may run before all others (SCHED_FIFO)."
        } else {
            "A measured thread takes its turn with all others."
        },
        if is_allowed {
            ""
        } else {
            "Raise the limit (ulimit -r 1; /etc/security/limits.conf: rtprio), or add CAP_SYS_NICE."
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(findings: &'a [Finding], fact: &str) -> &'a Finding {
        findings.iter().find(|finding| finding.fact == fact).unwrap_or_else(|| panic!("no finding on {fact}"))
    }

    fn capable() -> Host {
        let mut host = Host { cpu_count: 4, clock_source: "tsc".into(), load: "0.10".into(), ..Host::default() };
        host.tracing.patching = Fact::Told("mprotect".into());
        host.tracing.membarrier = Availability::Available;
        host.tracing.rseq = Availability::Available;
        host.tracing.sockets = Availability::Available;
        host.governor = Fact::Told("performance".into());
        host
    }

    #[test]
    fn what_prevents_tracing_is_said() {
        let findings = diagnose(&capable());
        assert!(tracing_works(&findings), "{findings:?}");
        type Plant = fn(&mut Host);
        let plants: [(&str, bool, Plant); 4] = [
            ("patching", false, |host| host.tracing.patching = Fact::Told("none".into())),
            ("membarrier", false, |host| host.tracing.membarrier = Availability::Not("no".into())),
            ("socket directory", false, |host| host.tracing.sockets = Availability::Not("no".into())),
            // Slower, but it works.
            ("restartable sequences", true, |host| host.tracing.rseq = Availability::Not("no".into())),
        ];
        for (fact, works, plant) in plants {
            let mut host = capable();
            plant(&mut host);
            let findings = diagnose(&host);
            assert_eq!(tracing_works(&findings), works, "{fact}");
            let finding = find(&findings, fact);
            assert!(finding.mark == Mark::Warning && finding.remedy.is_some(), "{finding:?}");
        }
    }

    #[test]
    fn settings_are_judged() {
        let mut host = capable();
        assert_eq!(find(&diagnose(&host), "governor").mark, Mark::Ok);
        host.governor = Fact::Told("powersave".into());
        host.clock_source = "hpet".into();
        host.load = "9.00".into();
        host.limits.cpu = Fact::Told("0.50 processors (50000 of 100000 µs)".into());
        let cause = "not permitted: kernel.perf_event_paranoid is 4, or a sandbox forbids it";
        host.counters.insert("cycles".into(), Availability::Not(cause.into()));
        let findings = diagnose(&host);
        for fact in ["governor", "source", "load", "control group"] {
            assert_eq!(find(&findings, fact).mark, Mark::Warning, "{fact}");
            assert!(find(&findings, fact).remedy.is_some(), "{fact}");
        }
        let missing = find(&findings, "counters that are missing");
        assert!(missing.remedy.as_ref().is_some_and(|remedy| remedy.contains("perf_event_paranoid=1")), "{missing:?}");
    }

    #[test]
    fn every_warning_has_a_remedy_here_too() {
        for finding in diagnose(&Host::read()) {
            assert!(finding.mark != Mark::Warning || finding.remedy.is_some(), "{finding:?}");
            assert!(!finding.value.is_empty() && !finding.meaning.is_empty(), "{finding:?}");
        }
    }
}
