//! What a machine's facts mean for measuring, and what to do about them. What tracing needs is judged by `dormouse_doctor`.
//!
//! ```text
//!   Host ──▶ diagnose ──▶ one finding for each fact: value, mark, meaning, remedy
//!                            ok        nothing to do
//!                            note      know it when you read figures
//!                            warning   figures suffer, or tracing does
//! ```

use std::time::Duration;

pub use dormouse_doctor::{Finding, Mark, tracing_works};
use dormouse_doctor::{Findings, Tracing};

use crate::host::{Fact, Host};
use crate::neighbours::Neighbours;
use Mark::{Note, Ok, Warning};

/// Reads the machine and watches its neighbours for a second.
pub fn examine() -> Host {
    let mut host = Host::read();
    let neighbours = Neighbours::watch(&[std::process::id()], &[]);
    // A second of what they do is what is asked for.
    std::thread::sleep(Duration::from_secs(1));
    host.absorb(&neighbours.stop());
    host
}

/// Reads the machine, watches its neighbours, and measures what [`crate::probes`] has.
pub fn examine_and_measure() -> Host {
    let mut host = examine();
    host.probes = crate::probes::measure(crate::cpus()[0], crate::probes::LOOKS, host.caches_bytes());
    host
}

/// How much a fact matters, what it means, and what to do.
type Say = (Mark, &'static str, &'static str);

/// One or the other.
fn either(is: bool, so: Say, not: Say) -> Say {
    if is { so } else { not }
}

/// Judges every fact, in groups.
pub fn diagnose(host: &Host) -> Vec<Finding> {
    let mut findings = Findings::default();
    processor(host, &mut findings);
    clock(host, &mut findings);
    kernel(host, &mut findings);
    memory(host, &mut findings);
    permissions(host, &mut findings);
    dormouse_doctor::diagnose(&Tracing::read(), &mut findings);
    findings.0
}

/// Adds findings of a group.
fn adder(findings: &mut Findings, group: &'static str) -> impl FnMut(&str, &dyn ToString, Say) {
    move |fact, value, (mark, meaning, remedy)| findings.add(group, fact, mark, value.to_string(), meaning, remedy)
}

fn processor(host: &Host, findings: &mut Findings) {
    let mut add = adder(findings, "processor");
    let fact = |name: &str| host.fact(&format!("processor.{name}"));
    add("model", &host.cpu, (Ok, "Figures in nanoseconds are of this processor alone; ratios travel further.", ""));
    let so =
        (Warning, "The measured program and the session owner take turns on one.", "Give the machine a second one.");
    let say = either(host.cpu_count < 2, so, (Ok, "The measured program can have a processor to itself.", ""));
    let [allowed, online, sockets] = ["allowed", "online", "sockets"].map(fact);
    let nodes = fact("numa_nodes");
    add("processors", &format!("{allowed} of {online}, {sockets} sockets, NUMA nodes {nodes}"), say);
    let caches = host.caches.clone().map(|caches| {
        let cache =
            |c: &crate::host::Cache| format!("L{} {} {} KiB", c.level, c.kind.to_lowercase(), c.size_bytes >> 10);
        caches.iter().map(cache).collect::<Vec<_>>().join(", ")
    });
    let mark = if caches.told().is_some() { Ok } else { Note };
    add("caches", &caches, (mark, "Cases under pressure on memory are cut to these sizes.", ""));
    let remedy = "For figures, keep the sibling idle, or: echo off | sudo tee /sys/devices/system/cpu/smt/control";
    let threads = fact("threads_per_core");
    let say = match threads.told().map(String::as_str) {
        Some("1") => (Ok, "No sibling takes part of a core.", ""),
        Some(_) => (Note, "A busy sibling takes its part of the measured thread's core.", remedy),
        None => (Note, "Siblings may or may not share the measured core.", ""),
    };
    add("SMT", &format!("threads of a core: {threads}"), say);
    let governor = fact("governor");
    let spread = "The frequency follows the load, so the first rounds run slow and figures spread.";
    let say = match governor.told().map(String::as_str) {
        Some("performance") => (Ok, "The core does not wait for load before it runs at speed.", ""),
        Some(_) => (Warning, spread, "sudo cpupower frequency-set -g performance"),
        None => (Note, "Whether the frequency moved during a run cannot be seen; trust ratios more than times.", ""),
    };
    add("governor", &governor, say);
    let remedy = "For figures that repeat: echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost (intel_pstate: \
        echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo)";
    let on = (Note, "Where it is on, a core is faster while it is cool and its neighbours idle.", remedy);
    let [boost, no_turbo] = ["boost", "intel_no_turbo"].map(fact);
    let is = |fact: &Fact<String>, value: &str| fact.told().is_some_and(|told| told == value);
    let say = either(is(&boost, "0") || is(&no_turbo, "1"), (Ok, "The core keeps its nominal frequency.", ""), on);
    add("turbo", &format!("cpufreq/boost: {boost}; intel_pstate/no_turbo: {no_turbo}"), say);
    let remedy = "For figures to publish, use a machine without hypervisor; ratios are good here.";
    let so = (Note, "A page walk takes more steps, and other machines may take time that only steal shows.", remedy);
    add("hypervisor", &fact("hypervisor"), either(host.virtualised, so, (Ok, "The machine is its own.", "")));
    let so = (Ok, "Others may be scheduled on any processor. Medians bear that, extremes do not.", "");
    let not = (Ok, "Nobody else is scheduled on isolated ones: measure there with --cpu.", "");
    let isolated = fact("isolated");
    let say = either(isolated.told().is_none_or(|cpus| cpus == "none"), so, not);
    add("isolated", &format!("{isolated}; without tick: {}", fact("nohz_full")), say);
}

fn clock(host: &Host, findings: &mut Findings) {
    let mut add = adder(findings, "clock");
    let remedy = "If available_clocksource beside it names tsc: echo tsc | sudo tee \
        /sys/devices/system/clocksource/clocksource0/current_clocksource; else `dmesg | grep -i tsc` says why not.";
    let say = match host.clock_source.as_str() {
        "tsc" => (Ok, "Reading the time takes no system call.", ""),
        "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter" => {
            (Note, "The time is read without a system call, but not from the timestamp counter alone.", "")
        }
        source if source.starts_with("not told") => (Note, "What reading the time costs is not known.", ""),
        _ => (Warning, "Each reading of the time is a system call, with hpet and acpi_pm of a slow device.", remedy),
    };
    add("source", &host.clock_source, say);
    let [constant, nonstop, mhz] = ["constant", "nonstop", "mhz"].map(|name| host.fact(&format!("clock.tsc_{name}")));
    let remedy = "In a virtual machine, let the hypervisor show the invariant counter (QEMU: -cpu host,+invtsc).";
    let dear = "Events take their time from clock_gettime instead, which costs more.";
    let say = match (constant.told().map(String::as_str), nonstop.told().map(String::as_str)) {
        (Some("yes"), Some("yes")) => (Ok, "Events take their time from it, in one instruction.", ""),
        (None, _) => (Note, dear, ""),
        _ => (Warning, dear, remedy),
    };
    add("timestamp counter", &format!("constant: {constant}, nonstop: {nonstop}, MHz: {mhz}"), say);
}

fn kernel(host: &Host, findings: &mut Findings) {
    let mut add = adder(findings, "kernel");
    let release = format!("{}; options: {}", host.kernel, host.fact("kernel.options"));
    add("release", &release, (Ok, "Faults, scheduling and system calls cost what this kernel makes them cost.", ""));
    let mitigations = || host.facts.iter().filter(|(name, _)| name.starts_with("mitigations."));
    let counts = ["Mitigation", "Vulnerable", "Not affected"].map(|start| {
        let count = mitigations().filter(|(_, state)| state.to_string().starts_with(start)).count();
        format!("{start}: {count}")
    });
    let meaning = "They make system calls, faults and switches dearer. An event that is recorded does none of these.";
    add("mitigations", &counts.join(", "), (Note, meaning, ""));
    let remedy = "Wait until it is quiet; the lab names whoever disturbs a run.";
    let loaded = (Warning, "Others have been working here in the last minute.", remedy);
    let is_loaded = host.load.parse::<f64>().is_ok_and(|load| load > 0.5 * host.cpu_count as f64);
    let say = either(is_loaded, loaded, (Ok, "The machine has been quiet in the last minute.", ""));
    add("load", &format!("{} for {} processors", host.load, host.cpu_count), say);
    let name = |n: &crate::neighbours::Neighbour| format!("`{}` (pid {}) {:.0} %", n.command, n.pid, n.share * 100.0);
    let names = host.neighbours.iter().take(4).map(name).collect::<Vec<_>>().join(", ");
    let remedy = "Stop them for a measurement, or measure on a processor that they leave alone.";
    let (value, say) = match names.as_str() {
        "" => ("none above 5 % of a processor", (Ok, "For the last second nobody took much of a processor.", "")),
        names => (names, (Warning, "They take time and caches from what is measured.", remedy)),
    };
    add("neighbours", &value, say);
    let meaning = "The share of the last second in which the hypervisor ran other machines on these processors.";
    let stolen = (Warning, meaning, "Measure when the host is quiet, or on one of your own.");
    let is_stolen = host.steal_share.told().is_some_and(|share| *share >= 0.01);
    let share = host.steal_share.clone().map(|share| format!("{:.1} %", share * 100.0));
    add("steal", &share, either(is_stolen, stolen, (Ok, meaning, "")));
    let [cpu, memory, cpuset] = ["cpu", "memory", "cpuset"].map(|name| host.fact(&format!("limits.{name}")));
    let meaning = "A group that has used its quota stands still for the rest of each period.";
    let limited = (Warning, meaning, "Measure outside of the container, or without its limit (docker: no --cpus).");
    let is_limited = cpu.told().is_some_and(|limit| limit != "none");
    let say = either(is_limited, limited, (Ok, "No quota stops a run in between.", ""));
    add("control group", &format!("processor time {cpu}, memory {memory}, processors {cpuset}"), say);
}

fn memory(host: &Host, findings: &mut Findings) {
    let mut add = adder(findings, "memory");
    let fact = |name: &str| host.fact(&format!("memory.{name}"));
    add("size", &fact("total"), (Ok, "A session takes its --budget of it, 16 MiB unless said otherwise.", ""));
    let [thp, shmem, process] = ["thp", "thp_shmem", "thp_process"].map(fact);
    let meaning =
        "Somebody disabled huge pages for this process and all that it starts: memory-bound programs run slower.";
    let remedy = "Look for THP_enabled: 0 in /proc/PID/status of the parents, and start from another one.";
    let mark = if thp.told().is_none_or(|thp| thp == "always") { Note } else { Ok };
    let not = (mark, "They change what first touches and TLB misses cost: compare results of one setting.", "");
    let is_disabled = process.told().is_some_and(|state| state == "disabled");
    let value = format!("transparent: {thp}, shared memory: {shmem}, this process: {process}");
    add("huge pages", &value, either(is_disabled, (Note, meaning, remedy), not));
    let level = host.fact("kernel.address_randomisation").map(|level| format!("level {level}"));
    add(
        "address randomisation",
        &level,
        (Ok, "Code and data lie elsewhere in each run, which moves some figures.", ""),
    );
    let scan = host.fact("tracing.pagemap_scan");
    let so = (Ok, "Measurements on memory that nobody wrote, which is one page of zeroes, are found out.", "");
    let not =
        (Note, "A benchmark may read the one page of zeroes over and over unnoticed.", "Linux 6.7 or later has it.");
    add("PAGEMAP_SCAN", &scan, either(scan.told().is_some_and(|scan| scan == "available"), so, not));
}

fn permissions(host: &Host, findings: &mut Findings) {
    let mut add = adder(findings, "permissions");
    // Those with one cause in one finding.
    let with = |cause: Option<&str>| {
        let names =
            host.counters.iter().filter(|(_, state)| state.cause() == cause).map(|(name, _)| name.replace('_', " "));
        names.collect::<Vec<_>>().join(", ")
    };
    let mut causes: Vec<&str> = host.counters.values().filter_map(Fact::cause).collect();
    causes.sort_unstable();
    causes.dedup();
    let mark = if causes.is_empty() { Ok } else { Note };
    let meaning = "The lab shows what an iteration takes in these, beside its time.";
    add("counters", &format!("available: {}", with(None)), (mark, meaning, ""));
    let remedies = [
        (
            "perf_event_paranoid",
            "sudo sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON; in a container, allow perf_event_open too.",
        ),
        ("virtual machine", "Let the hypervisor give it a PMU (libvirt: <pmu state='on'/>; clouds: a metal instance)."),
        ("NMI watchdog", "sudo sysctl kernel.nmi_watchdog=0, and stop other profilers."),
    ];
    for cause in causes {
        let remedy = remedies.iter().find(|(word, _)| cause.contains(word)).map_or("", |(_, remedy)| remedy);
        let say = (Note, "Without them, causes have to be guessed from times.", remedy);
        add("counters that are missing", &format!("{}: {cause}", with(Some(cause))), say);
    }
    let fifo = host.fact("fifo_scheduling");
    let remedy = "Raise the limit (ulimit -r 1; /etc/security/limits.conf: rtprio), or add CAP_SYS_NICE.";
    let so = (Ok, "A measured thread may run before all others (SCHED_FIFO).", "");
    let not = (Note, "A measured thread takes its turn with all others.", remedy);
    add("real-time scheduling", &fifo, either(fifo.told().is_some_and(|fifo| fifo == "available"), so, not));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(findings: &'a [Finding], fact: &str) -> &'a Finding {
        findings.iter().find(|finding| finding.fact == fact).unwrap_or_else(|| panic!("no finding on {fact}"))
    }

    #[test]
    fn settings_are_judged() {
        let mut host = Host { cpu_count: 4, clock_source: "tsc".into(), load: "0.10".into(), ..Host::default() };
        let told = |text: &str| Fact::Told(text.to_string());
        host.facts.insert("processor.governor".into(), told("performance"));
        host.facts.insert("limits.cpu".into(), told("none"));
        let facts = ["governor", "source", "load", "control group", "steal", "neighbours"];
        let findings = diagnose(&host);
        facts.iter().for_each(|fact| assert_eq!(find(&findings, fact).mark, Ok, "{fact}"));
        host.facts.insert("processor.governor".into(), told("powersave"));
        host.facts.insert("limits.cpu".into(), told("0.50 processors (50000 of 100000 µs)"));
        (host.clock_source, host.load, host.steal_share) = ("hpet".into(), "9.00".into(), Fact::Told(0.2));
        host.neighbours.push(crate::neighbours::Neighbour { command: "yes".into(), share: 0.9, ..Default::default() });
        let cause = "not permitted: kernel.perf_event_paranoid is 4, or a sandbox forbids it";
        host.counters.insert("cycles".into(), Fact::NotTold(cause.into()));
        let findings = diagnose(&host);
        for fact in facts {
            assert!(find(&findings, fact).mark == Warning && find(&findings, fact).remedy.is_some(), "{fact}");
        }
        let missing = find(&findings, "counters that are missing");
        assert!(missing.remedy.as_ref().is_some_and(|remedy| remedy.contains("perf_event_paranoid=1")), "{missing:?}");
    }

    #[test]
    fn every_warning_has_a_remedy_here_too() {
        for finding in diagnose(&Host::read()) {
            assert!(finding.mark != Warning || finding.remedy.is_some(), "{finding:?}");
            assert!(!finding.value.is_empty() && !finding.meaning.is_empty(), "{finding:?}");
        }
    }
}
