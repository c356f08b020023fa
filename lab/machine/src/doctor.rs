//! Judges a machine's facts: their meaning for measurements, and remedies. `dormouse_doctor` judges the needs of
//! tracing.
//!
//! ```text
//!   Host ──▶ diagnose ──▶ one finding for each fact: value, mark, meaning, remedy
//!                            ok        nothing to do
//!                            note      to know when reading figures
//!                            warning   impairs figures or tracing
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

pub use dormouse_doctor::{Finding, Mark, tracing_works};
use dormouse_doctor::{Findings, Tracing};

use crate::host::{Cache, Host};
use crate::neighbours::{Neighbour, Neighbours};
use Mark::{Note, Ok, Warning};

/// Reads the machine and watches its neighbours for a second.
pub fn examine() -> Host {
    let mut host = Host::read();
    let neighbours = Neighbours::watch(&[std::process::id()], &[]);
    // The neighbours of one second are asked for.
    std::thread::sleep(Duration::from_secs(1));
    host.absorb(&neighbours.stop());
    host
}

/// Reads the machine, watches its neighbours, and measures all [`crate::probes`].
pub fn examine_and_measure() -> Host {
    let mut host = examine();
    host.probes = crate::probes::measure(crate::cpus()[0], crate::probes::LOOKS, host.caches_bytes());
    host
}

/// Adds findings from a table. Each entry has `in`, a group, a fact, its value and its meaning, and then lines
/// `condition => mark, remedy`. The first line whose condition holds decides; if none holds, the fact is ok.
macro_rules! judge {
    ($findings:ident: $(
        in $group:literal $fact:literal: $value:expr, $meaning:literal;
        $($is:expr => $mark:ident, $remedy:literal;)*
    )+) => {$(
        let says: &[(bool, Mark, &str)] = &[$(($is, $mark, $remedy),)* (true, Ok, "")];
        if let Some((_, mark, remedy)) = says.iter().find(|say| say.0) {
            $findings.add($group, $fact, *mark, $value, $meaning, remedy);
        }
    )+};
}

/// Judges every fact, in groups.
pub fn diagnose(host: &Host) -> Vec<Finding> {
    let mut findings = Findings::default();
    let fact = |name: &str| host.fact(name);
    let is = |name: &str, value: &str| fact(name).told().is_some_and(|told| told == value);
    let is_told = |name: &str| fact(name).told().is_some();
    let cache = |one: &Cache| format!("L{} {} {} KiB", one.level, one.kind, one.size_bytes >> 10);
    let caches = host.caches.clone().map(|caches| caches.iter().map(cache).collect::<Vec<_>>().join(", "));
    let mitigations = host.facts.iter().filter(|(name, _)| name.starts_with("mitigations."));
    let mitigations = mitigations.filter(|(_, state)| state.to_string().starts_with("Mitigation")).count();
    let is_loaded = host.load.parse::<f64>().is_ok_and(|load| load > 0.5 * host.cpu_count as f64);
    let name = |one: &Neighbour| format!("`{}` (pid {}) {:.0} %", one.command, one.pid, one.share * 100.0);
    let neighbours = host.neighbours.iter().take(4).map(name).collect::<Vec<_>>().join(", ");
    let steal = host.steal_share.clone().map(|share| format!("{:.1} %", share * 100.0));
    let clock = host.clock_source.as_str();
    judge! { findings:
        in "processor" "model": format!("{}; caches: {caches}", host.cpu),
            "Figures in nanoseconds are of this processor and its caches alone; ratios travel further.";
        in "processor" "processors": format!("{} of {}, sockets: {}, NUMA nodes: {}, isolated: {}, without tick: {}",
            fact("processor.allowed"), fact("processor.online"), fact("processor.sockets"),
            fact("processor.numa_nodes"), fact("processor.isolated"), fact("processor.nohz_full")),
            "With one, the measured program and the session owner take turns. Nobody else runs on isolated ones.";
            host.cpu_count < 2 => Warning, "Give the machine a second one.";
        in "processor" "SMT": format!("threads of a core: {}", fact("processor.threads_per_core")),
            "A busy sibling takes its part of the measured thread's core.";
            !is("processor.threads_per_core", "1") => Note,
                "For figures, keep the sibling idle, or: echo off | sudo tee /sys/devices/system/cpu/smt/control";
        in "processor" "governor": fact("processor.governor"),
            "Unless it is `performance`, the frequency follows the load: first rounds are slow, and figures spread.";
            !is_told("processor.governor") => Note, "Ratios can be trusted more than times.";
            !is("processor.governor", "performance") => Warning, "sudo cpupower frequency-set -g performance";
        in "processor" "turbo": format!("cpufreq/boost: {}; intel_pstate/no_turbo: {}", fact("processor.boost"),
            fact("processor.intel_no_turbo")), "With it a core is faster while it is cool and its neighbours idle.";
            !is("processor.boost", "0") && !is("processor.intel_no_turbo", "1") => Note,
                "For figures that repeat: echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost (intel_pstate: \
                 echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo)";
        in "processor" "hypervisor": fact("processor.hypervisor"),
            "Under one, a page walk takes more steps, and other machines may take time that only steal shows.";
            host.virtualised => Note, "For figures to publish, use a machine without hypervisor; ratios are good here.";
        in "clock" "source": clock,
            "With tsc, or a page that the hypervisor shares, reading the time takes no system call; else it does.";
            clock.starts_with("not told") => Note, "";
            ["kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"].contains(&clock) => Note, "";
            clock != "tsc" => Warning,
                "If available_clocksource beside it names tsc: echo tsc | sudo tee /sys/devices/system/clocksource/\
                 clocksource0/current_clocksource; else `dmesg | grep -i tsc` says why not.";
        in "clock" "timestamp counter": format!("constant: {}, nonstop: {}, MHz: {}", fact("clock.tsc_constant"),
            fact("clock.tsc_nonstop"), fact("clock.tsc_mhz")),
            "If it is both, events take their time from it in one instruction; else by clock_gettime, which is slower.";
            !is_told("clock.tsc_constant") => Note, "";
            !is("clock.tsc_constant", "yes") || !is("clock.tsc_nonstop", "yes") => Warning,
                "In a virtual machine, let the hypervisor show the invariant counter (QEMU: -cpu host,+invtsc).";
        in "kernel" "release": format!("{}; options: {}; mitigations: {mitigations}", host.kernel,
            fact("kernel.options")), "Faults, scheduling and system calls cost what it makes them cost.";
        in "kernel" "load": format!("{} for {} processors", host.load, host.cpu_count),
            "How busy others have kept the machine in the last minute.";
            is_loaded => Warning, "Wait until it is quiet; the lab names whoever disturbs a run.";
        in "kernel" "neighbours": if neighbours.is_empty() { "none above 5 %" } else { neighbours.as_str() },
            "Shares of a processor in the last second. They take time and caches from what is measured.";
            !neighbours.is_empty() => Warning, "Stop them, or measure on a processor that they leave alone.";
        in "kernel" "steal": steal,
            "The share of the last second in which the hypervisor ran other machines on these processors.";
            host.steal_share.told().is_some_and(|share| *share >= 0.01) => Warning, "Measure when the host is quiet.";
        in "kernel" "control group": format!("processor time {}, memory {}, processors {}", fact("limits.cpu"),
            fact("limits.memory"), fact("limits.cpuset")),
            "A group that has used its quota of time stands still for the rest of each period.";
            is_told("limits.cpu") && !is("limits.cpu", "none") => Warning,
                "Measure outside of the container, or without its limit (docker: no --cpus).";
        in "memory" "huge pages": format!("transparent: {}, shared memory: {}, this process: {}", fact("memory.thp"),
            fact("memory.thp_shmem"), fact("memory.thp_process")),
            "They change what first touches and TLB misses cost: compare results of one setting.";
            is("memory.thp_process", "disabled") => Note,
                "Look for THP_enabled: 0 in /proc/PID/status of the parents, and start from another one.";
            !is_told("memory.thp") || is("memory.thp", "always") => Note, "";
        in "memory" "PAGEMAP_SCAN": fact("tracing.pagemap_scan"),
            "By it, measurements on memory that nobody wrote are found out: such memory is one page of zeroes.";
            !is("tracing.pagemap_scan", "available") => Note, "Linux 6.7 or later has it.";
        in "permissions" "real-time scheduling": fact("fifo_scheduling"),
            "With it a measured thread may run before all others (SCHED_FIFO), else it takes its turn.";
            !is("fifo_scheduling", "available") => Note,
                "Raise the limit (ulimit -r 1; /etc/security/limits.conf: rtprio), or add CAP_SYS_NICE.";
    }
    counters(host, &mut findings);
    dormouse_doctor::diagnose(&Tracing::read(), &mut findings);
    findings.0
}

/// Adds findings on counters: one for all that are available, and one for each cause.
fn counters(host: &Host, findings: &mut Findings) {
    let remedy = "Where they are not permitted: sudo sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON; in a \
        container, allow perf_event_open. Where the hypervisor hides them: let it show a PMU (libvirt: \
        <pmu state='on'/>; clouds: a metal instance). Where others hold them: sudo sysctl kernel.nmi_watchdog=0.";
    let mut by_cause: BTreeMap<Option<&str>, Vec<String>> = BTreeMap::new();
    for (name, state) in &host.counters {
        by_cause.entry(state.cause()).or_default().push(name.replace('_', " "));
    }
    for (cause, names) in by_cause {
        let names = names.join(", ");
        let (fact, mark, value, remedy) = match cause {
            None => ("counters", Ok, format!("available: {names}"), ""),
            Some(cause) => ("counters that are missing", Note, format!("{names}: {cause}"), remedy),
        };
        let meaning = "The lab shows what an iteration takes in these; without them, causes are guessed from times.";
        findings.add("permissions", fact, mark, value, meaning, remedy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Fact;

    #[test]
    fn settings_are_judged() {
        let told = |text: &str| Fact::Told(text.to_string());
        let mut host = Host { cpu_count: 4, clock_source: "tsc".into(), load: "0.10".into(), ..Host::default() };
        host.facts.insert("processor.governor".into(), told("performance"));
        host.facts.insert("limits.cpu".into(), told("none"));
        let find = |host: &Host, fact: &str| {
            let found = diagnose(host).into_iter().find(|finding| finding.fact == fact);
            found.unwrap_or_else(|| panic!("no finding on {fact}"))
        };
        let facts = ["governor", "source", "load", "control group", "steal", "neighbours"];
        facts.iter().for_each(|fact| assert_eq!(find(&host, fact).mark, Ok, "{fact}"));
        host.facts.insert("processor.governor".into(), told("powersave"));
        host.facts.insert("limits.cpu".into(), told("0.50 processors (50000 of 100000 µs)"));
        (host.clock_source, host.load, host.steal_share) = ("hpet".into(), "9.00".into(), Fact::Told(0.2));
        host.neighbours.push(Neighbour { command: "yes".into(), share: 0.9, ..Neighbour::default() });
        facts.iter().for_each(|fact| assert_eq!(find(&host, fact).mark, Warning, "{fact}"));
        let cause = "not permitted: kernel.perf_event_paranoid is 4, or a sandbox forbids it";
        host.counters.insert("cycles".into(), Fact::NotTold(cause.into()));
        let missing = find(&host, "counters that are missing");
        assert!(missing.remedy.is_some_and(|remedy| remedy.contains("perf_event_paranoid=1")));
        for finding in [diagnose(&host), diagnose(&Host::read())].concat() {
            assert!(finding.mark != Warning || finding.remedy.is_some(), "{finding:?}");
            assert!(!finding.value.is_empty() && !finding.meaning.is_empty(), "{finding:?}");
        }
    }
}
