//! What differs between two hosts, ordered by how likely it explains that the figures differ.
//!
//! The method is that of a report of 2008 on a codec that ran 20 % slower on a new kernel: list what differs, strike it
//! out one by one, each by a measurement that would come out otherwise if it were the cause. What remains is the cause.
//!
//! ```text
//!   score = prior × (0.6 + 0.8 × fit) × size
//!     prior   how often such a difference explains such figures, on a scale of 1: the table below
//!     fit     how much of the differing figures are of a kind that this fact acts on; a half if none differs
//!     size    1 for a setting; for what is never twice the same (load, neighbours, steal), 0 up to a considerable
//!             difference and 1 for a large one
//! ```
//! What was measured on both sides and came out alike speaks for all that acts by it: a tenth of its score is left.
//!
//! Priors are judgement, not measurement. Those of what is never twice the same are below 0.3, so that the noise of a
//! shared machine does not outrank a setting that somebody has changed.

use serde::{Deserialize, Serialize};

use super::{Difference, Kind};
use crate::host::{Availability, Fact, Host, list_text};
use crate::probes::{Judged, SUSPECTS, Verdict};

/// A difference between the hosts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suspect {
    /// Path of the fact in `host`, such as `memory.thp`.
    pub fact: String,
    /// The same for people.
    pub title: String,
    /// Its value in A.
    pub a: String,
    /// Its value in B.
    pub b: String,
    /// Why it can matter.
    pub why: String,
    /// What would strike it out, or convict it.
    pub test: String,
    /// How likely, against the others of this list.
    pub score: f64,
    /// The measurement on both sides that speaks for it, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub struck_out: Option<String>,
}

/// What a host says of a fact.
enum Reading {
    Text(String),
    /// A quantity that is never twice the same.
    Number(f64, String),
    Hidden(String),
}

/// How much a fact acts on each kind of figure, from 0 to 1, in the order of [`Kind::ALL`]: empty loop, dormant, armed,
/// memory, wall time.
type Fit = [f64; 5];

struct Prior {
    fact: &'static str,
    title: &'static str,
    prior: f64,
    fit: Fit,
    read: fn(&Host) -> Reading,
    /// Size of a difference of two numbers.
    size: fn(f64, f64, &Host) -> f64,
    why: &'static str,
    test: &'static str,
}

fn told<T: ToString>(fact: &Fact<T>) -> Reading {
    match fact {
        Fact::Told(value) => Reading::Text(value.to_string()),
        Fact::NotTold(cause) => Reading::Hidden(cause.clone()),
    }
}

fn plain(text: &str) -> Reading {
    match text.strip_prefix("not told: ") {
        Some(cause) => Reading::Hidden(cause.into()),
        None if text.is_empty() => told(&Fact::<String>::default()),
        None => Reading::Text(text.into()),
    }
}

fn availability(availability: &Availability) -> Reading {
    if *availability == Availability::default() {
        return told(&Fact::<String>::default());
    }
    Reading::Text(availability.to_string())
}

fn cpus(fact: &Fact<Vec<u32>>) -> Reading {
    told(&fact.clone().map(|cpus| if cpus.is_empty() { "none".into() } else { list_text(&cpus) }))
}

fn number(fact: &Fact<f64>, text: impl FnOnce(f64) -> String) -> Reading {
    match fact {
        Fact::Told(value) => Reading::Number(*value, text(*value)),
        Fact::NotTold(cause) => Reading::Hidden(cause.clone()),
    }
}

fn yes_no(fact: &Fact<bool>) -> Reading {
    told(&fact.clone().map(|yes| if yes { "yes" } else { "no" }))
}

fn caches(host: &Host) -> Reading {
    told(&host.caches.clone().map(|caches| {
        let cache = |cache: &crate::host::Cache| {
            let kind = match cache.kind.as_str() {
                "Data" => "d",
                "Instruction" => "i",
                _ => "",
            };
            format!("L{}{kind} {} KiB", cache.level, cache.size_bytes >> 10)
        };
        caches.iter().map(cache).collect::<Vec<_>>().join(", ")
    }))
}

/// Time that neighbours took, of processors that are measured where that is known.
fn neighbours(host: &Host) -> Reading {
    // Without a watch there is no steal share either.
    if let Fact::NotTold(cause) = &host.steal_share {
        return Reading::Hidden(cause.clone());
    }
    let weight = |neighbour: &crate::neighbours::Neighbour| if neighbour.is_on_measured_cpu { 1.0 } else { 0.4 };
    let sum: f64 = host.neighbours.iter().map(|neighbour| neighbour.share * weight(neighbour)).sum();
    let names = host.neighbours.iter().take(3).map(|n| format!("`{}` {:.0} %", n.command, n.share * 100.0));
    let names = names.collect::<Vec<_>>().join(", ");
    Reading::Number(sum, if names.is_empty() { "none".into() } else { names })
}

/// A setting differs or does not.
fn setting(_: f64, _: f64, _: &Host) -> f64 {
    1.0
}

/// Nothing below `from`, all of it from `to` on.
fn ramp(difference: f64, from: f64, to: f64) -> f64 {
    if difference < from { 0.0 } else { (difference / to).min(1.0) }
}

fn relative(a: f64, b: f64) -> f64 {
    (a - b).abs() / a.abs().max(b.abs()).max(f64::MIN_POSITIVE)
}

const EVERYWHERE: Fit = [1.0, 1.0, 1.0, 1.0, 1.0];
const SPEED: Fit = [1.0, 0.9, 0.9, 0.4, 0.7];
const MEMORY: Fit = [0.0, 0.1, 0.3, 1.0, 0.5];
const KERNEL: Fit = [0.0, 0.2, 0.4, 0.6, 1.0];
const ARMED: Fit = [0.0, 0.0, 1.0, 0.6, 0.6];
const PLACES: Fit = [0.5, 0.5, 0.6, 0.5, 1.0];

#[rustfmt::skip]
const PRIORS: &[Prior] = &[
    Prior {
        fact: "dormouse_build", title: "build of Dormouse", prior: 0.95, fit: [0.3, 0.8, 1.0, 0.8, 0.8],
        read: |host| told(&host.dormouse_build), size: setting,
        why: "a debug build does not inline the path of an event, and checks what a release build does not",
        test: "measure both with `cargo xtask lab`",
    },
    Prior {
        fact: "tracing.rseq", title: "restartable sequences", prior: 0.95, fit: ARMED,
        read: |host| availability(&host.tracing.rseq), size: setting,
        why: "without them an event is committed by locked instructions on a claimed stream, which cost more",
        test: "run the one that has them again with GLIBC_TUNABLES=glibc.pthread.rseq=0: do its figures become the \
            other's?",
    },
    Prior {
        fact: "tracing.patching", title: "how sites are patched", prior: 0.9, fit: [0.0, 1.0, 0.4, 0.3, 0.5],
        read: |host| told(&host.tracing.patching), size: setting,
        why: "an unpatched site jumps, reads its key and returns, where a patched one is one instruction",
        test: "run the patched one again with DORMOUSE_IMV_WRITER=none: do its figures become the other's?",
    },
    Prior {
        fact: "cpu", title: "processor", prior: 0.9, fit: EVERYWHERE, read: |host| plain(&host.cpu), size: setting,
        why: "another core has other latencies, caches and frequencies",
        test: "compare ratios and cycles in place of times; or measure both on the same kind of machine",
    },
    Prior {
        fact: "memory.thp_process", title: "transparent huge pages of the process", prior: 0.85, fit: MEMORY,
        read: |host| told(&host.memory.thp_process), size: setting,
        why: "without huge pages each 4 KiB costs a fault and an entry of the TLB; PR_SET_THP_DISABLE is inherited \
            by all \
              that a process starts",
        test: "disable them for the other one too: python3 -c \"import ctypes,os; ctypes.CDLL(None).prctl(41,1,0,0,0); \
               os.execvp('dormouse',['dormouse','lab','run','EXPERIMENT'])\"",
    },
    Prior {
        fact: "memory.thp", title: "transparent huge pages", prior: 0.8, fit: MEMORY,
        read: |host| told(&host.memory.thp), size: setting,
        why: "with huge pages one fault and one entry of the TLB serve 512 times as much memory, and the first touch \
              clears 2 MiB at once",
        test: "set both alike (echo VALUE | sudo tee /sys/kernel/mm/transparent_hugepage/enabled) and run again",
    },
    Prior {
        fact: "governor", title: "frequency governor", prior: 0.8, fit: SPEED,
        read: |host| told(&host.governor), size: setting,
        why: "`powersave` and `schedutil` raise the frequency only after a while of work; short rounds run slow",
        test: "sudo cpupower frequency-set -g performance on both, and run again",
    },
    Prior {
        fact: "limits.cpu", title: "processor limit of the control group", prior: 0.8, fit: [0.5, 0.5, 0.5, 0.5, 1.0],
        read: |host| told(&host.limits.cpu), size: setting,
        why: "a group that has used its quota stands still for the rest of each period",
        test: "run both outside of the group, or with the same quota (systemd-run --scope -p CPUQuota=150% …)",
    },
    Prior {
        fact: "memory.thp_shmem", title: "transparent huge pages of shared memory", prior: 0.78, fit: MEMORY,
        read: |host| told(&host.memory.thp_shmem), size: setting,
        why: "a session's buffers are shared memory: huge pages change what their first touch and their TLB misses \
            cost",
        test: "set both alike (echo VALUE | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled) and run again",
    },
    Prior {
        fact: "processor.boost", title: "turbo", prior: 0.75, fit: SPEED,
        read: |host| yes_no(&host.processor.boost), size: setting,
        why: "a boosted core runs faster, until it is warm or its neighbours work",
        test: "switch it off on both (echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost, or echo 1 | sudo tee \
               /sys/devices/system/cpu/intel_pstate/no_turbo) and run again",
    },
    Prior {
        fact: "hypervisor", title: "virtualisation", prior: 0.75, fit: [0.6, 0.6, 0.8, 0.9, 0.9],
        read: |host| match host.hypervisor.cause() {
            Some(_) if host.hypervisor != Fact::default() && host.virtualised => Reading::Text("unnamed \
                hypervisor".into()),
            _ => told(&host.hypervisor),
        },
        size: setting,
        why: "under a hypervisor a page walk takes more steps, interrupts and timers leave the machine, and other \
            machines take time",
        test: "measure both on bare metal, or both in the same kind of virtual machine",
    },
    Prior {
        fact: "clock_source", title: "clock source", prior: 0.7, fit: [0.2, 0.1, 1.0, 0.5, 0.6],
        read: |host| plain(&host.clock_source), size: setting,
        why: "an event reads the clock: the timestamp counter is one instruction, hpet and acpi_pm a system call \
            and a slow device",
        test: "set both alike (echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource)",
    },
    Prior {
        fact: "dormouse_version", title: "version of Dormouse", prior: 0.7, fit: [0.1, 0.8, 1.0, 0.9, 0.9],
        read: |host| told(&host.dormouse_version), size: setting,
        why: "the mechanism measured may itself have changed",
        test: "measure both machines with one version, or one machine with both",
    },
    Prior {
        fact: "caches", title: "caches", prior: 0.65, fit: [0.0, 0.1, 0.3, 1.0, 0.6], read: caches, size: setting,
        why: "a working set that fits one cache and not the other costs a trip to the next level at each miss",
        test: "run with a pressure that fits both, and look whether the difference goes",
    },
    Prior {
        fact: "processor.threads_per_core", title: "SMT", prior: 0.6, fit: SPEED,
        read: |host| told(&host.processor.threads_per_core), size: setting,
        why: "a busy sibling takes its part of the core",
        test: "echo off | sudo tee /sys/devices/system/cpu/smt/control on both, and run again",
    },
    Prior {
        fact: "kernel_details.mitigations", title: "mitigations of the processor's weaknesses", prior: 0.6, fit: KERNEL,
        read: |host| told(&host.kernel_details.mitigations.clone().map(|all| {
            all.iter().map(|(name, state)| format!("{name}: {state}")).collect::<Vec<_>>().join("; ")
        })),
        size: setting,
        why: "each entry of the kernel may flush buffers or predictors: faults, system calls and switches cost more",
        test: "boot both with the same mitigations= (on a machine that runs nobody else's code)",
    },
    Prior {
        fact: "kernel_details.options", title: "options of the kernel", prior: 0.6, fit: PLACES,
        read: |host| told(&host.kernel_details.options.clone().map(|all| {
            if all.is_empty() { "none".into() } else { all.join(" ") }
        })),
        size: setting,
        why: "they decide who is scheduled where, which idle states and mitigations there are",
        test: "boot both with the same options",
    },
    Prior {
        fact: "processor.frequency_khz_max", title: "highest frequency", prior: 0.6, fit: SPEED,
        read: |host| told(&host.processor.frequency_khz_max), size: setting,
        why: "all that does not wait for memory is as fast as the core",
        test: "sudo cpupower frequency-set -u FREQUENCY, the lower of the two, on both",
    },
    Prior {
        fact: "cpu_count", title: "processors that may be used", prior: 0.55, fit: [0.0, 0.0, 0.1, 0.3, 1.0],
        read: |host| match host.cpu_count {
            0 => told(&Fact::<String>::default()),
            count => Reading::Text(count.to_string()),
        },
        size: setting,
        why: "parallel work takes as long as there are processors for it, and events of several threads meet",
        test: "give both as many: taskset -c 0-1 dormouse lab run …",
    },
    Prior {
        fact: "kernel", title: "kernel", prior: 0.5, fit: KERNEL, read: |host| plain(&host.kernel), size: setting,
        why: "faults, scheduling and accounting are the kernel's, and change from release to release",
        test: "boot the same kernel on both",
    },
    Prior {
        fact: "processor.numa_nodes", title: "NUMA nodes", prior: 0.5, fit: MEMORY,
        read: |host| told(&host.processor.numa_nodes), size: setting,
        why: "memory of another node is farther away",
        test: "numactl --cpunodebind=0 --membind=0 dormouse lab run … on both",
    },
    Prior {
        fact: "limits.memory", title: "memory limit of the control group", prior: 0.5, fit: [0.0, 0.0, 0.1, 1.0, 0.7],
        read: |host| told(&host.limits.memory), size: setting,
        why: "near its limit a group reclaims memory, its own files first",
        test: "run both outside of the group, or with the same limit",
    },
    Prior {
        fact: "clock.tsc", title: "timestamp counter", prior: 0.5, fit: [0.2, 0.1, 1.0, 0.4, 0.3],
        read: |host| match (&host.clock.tsc_constant, &host.clock.tsc_nonstop) {
            (Fact::Told(constant), Fact::Told(nonstop)) => {
                let not = |yes: &bool| if *yes { "" } else { "not " };
                Reading::Text(format!("{}constant, {}nonstop", not(constant), not(nonstop)))
            }
            (constant, _) => yes_no(constant),
        },
        size: setting,
        why: "events take their time from the counter only where it is constant and nonstop, else from a call",
        test: "look at the case that reads the clock alone: does it differ as much?",
    },
    Prior {
        fact: "clock.tsc_hz", title: "frequency of the timestamp counter", prior: 0.3, fit: SPEED,
        read: |host| number(&host.clock.tsc_hz.clone().map(|hz| hz as f64), |hz| format!("{:.1} MHz", hz / 1e6)),
        size: |a, b, _| if relative(a, b) < 0.002 { 0.0 } else { 1.0 },
        why: "it is the nominal frequency of the core: another one, another processor",
        test: "compare ratios in place of times",
    },
    Prior {
        fact: "processor.isolated", title: "isolated processors", prior: 0.45, fit: PLACES,
        read: |host| cpus(&host.processor.isolated), size: setting,
        why: "nobody else is scheduled on an isolated processor",
        test: "measure both on a processor that is not isolated: dormouse lab run --cpu N",
    },
    Prior {
        fact: "processor.frequency_driver", title: "frequency driver", prior: 0.45, fit: SPEED,
        read: |host| told(&host.processor.frequency_driver), size: setting,
        why: "the driver decides how fast a core follows its load",
        test: "boot both with the same driver (intel_pstate=passive, amd_pstate=active …)",
    },
    Prior {
        fact: "memory.thp_defrag", title: "defragmentation for huge pages", prior: 0.4, fit: MEMORY,
        read: |host| told(&host.memory.thp_defrag), size: setting,
        why: "a fault that has to make room for a huge page stands still meanwhile",
        test: "set both alike (echo VALUE | sudo tee /sys/kernel/mm/transparent_hugepage/defrag) and run again",
    },
    Prior {
        fact: "processor.nohz_full", title: "processors without tick", prior: 0.4, fit: PLACES,
        read: |host| cpus(&host.processor.nohz_full), size: setting,
        why: "without the tick a lone thread is not interrupted, but each entry of the kernel costs more",
        test: "measure both on a processor with tick: dormouse lab run --cpu N",
    },
    Prior {
        fact: "kernel_details.libc", title: "C library", prior: 0.4, fit: [0.0, 0.1, 0.6, 0.4, 0.7],
        read: |host| told(&host.kernel_details.libc), size: setting,
        why: "it registers restartable sequences from 2.35 on, and brings malloc and clock_gettime",
        test: "measure both in one container image",
    },
    Prior {
        fact: "kernel_details.numa_balancing", title: "automatic NUMA balancing", prior: 0.4, fit: MEMORY,
        read: |host| told(&host.kernel_details.numa_balancing), size: setting,
        why: "it unmaps memory to see who uses it, which costs faults",
        test: "sudo sysctl kernel.numa_balancing=0 on both, and run again",
    },
    Prior {
        fact: "memory.thp_zero_page", title: "huge zero page", prior: 0.35, fit: MEMORY,
        read: |host| yes_no(&host.memory.thp_zero_page), size: setting,
        why: "reading memory that nobody wrote reads one page over and over, from the cache",
        test: "write the memory before it is read, or set both alike \
            (/sys/kernel/mm/transparent_hugepage/use_zero_page)",
    },
    Prior {
        fact: "fifo_scheduling", title: "real-time scheduling", prior: 0.35, fit: PLACES,
        read: |host| match &host.fifo_scheduling {
            Availability::Not(_) if host.fifo_scheduling != Availability::default() => Reading::Text("not \
                permitted".into()),
            other => availability(other),
        },
        size: setting,
        why: "a thread that runs before all others is not disturbed by them",
        test: "permit it on both (ulimit -r 1, or CAP_SYS_NICE) or on neither",
    },
    Prior {
        fact: "limits.cpuset", title: "processors of the control group", prior: 0.35, fit: PLACES,
        read: |host| told(&host.limits.cpuset), size: setting,
        why: "another processor has another sibling, another cache, other neighbours",
        test: "choose the same one on both: dormouse lab run --cpu N",
    },
    Prior {
        fact: "processor.allowed", title: "affinity of the process", prior: 0.35, fit: PLACES,
        read: |host| cpus(&host.processor.allowed), size: setting,
        why: "another processor has another sibling, another cache, other neighbours",
        test: "taskset -c 0-1 dormouse lab run … on both",
    },
    Prior {
        fact: "processor.microcode", title: "microcode", prior: 0.32, fit: [0.2, 0.3, 0.5, 0.5, 0.8],
        read: |host| told(&host.processor.microcode), size: setting,
        why: "a new microcode may close a weakness at the cost of speed",
        test: "update both to the same revision",
    },
    Prior {
        fact: "processor.idle_driver", title: "driver of idle states", prior: 0.3, fit: [0.1, 0.1, 0.2, 0.3, 0.8],
        read: |host| told(&host.processor.idle_driver), size: setting,
        why: "the deeper a state, the longer a core takes to wake from it",
        test: "sudo cpupower idle-set -D 0 on both (no state deeper than polling), and run again",
    },
    Prior {
        fact: "memory.huge_pages", title: "huge pages set aside", prior: 0.25, fit: MEMORY,
        read: |host| told(&host.memory.huge_pages), size: setting,
        why: "what is set aside is missing for all that does not ask for it",
        test: "sudo sysctl vm.nr_hugepages=0 on both, and run again",
    },
    Prior {
        fact: "memory.total_bytes", title: "memory", prior: 0.25, fit: [0.0, 0.0, 0.0, 0.6, 1.0],
        read: |host| number(&host.memory.total_bytes.clone().map(|bytes| bytes as f64), |bytes| {
            format!("{:.1} GiB", bytes / f64::from(1 << 30))
        }),
        size: |a, b, _| ramp(relative(a, b), 0.05, 0.5),
        why: "files that do not fit are read again",
        test: "run twice in a row, so that files are in memory",
    },
    Prior {
        fact: "kernel_details.version", title: "build of the kernel", prior: 0.25, fit: KERNEL,
        read: |host| told(&host.kernel_details.version), size: setting,
        why: "compiler and preemption model are chosen as the kernel is built",
        test: "boot the same kernel on both",
    },
    Prior {
        fact: "tracing.glibc_tunables", title: "GLIBC_TUNABLES", prior: 0.25, fit: [0.0, 0.0, 0.6, 0.5, 0.8],
        read: |host| told(&host.tracing.glibc_tunables), size: setting,
        why: "it changes malloc, restartable sequences and string functions",
        test: "unset it on both",
    },
    Prior {
        fact: "kernel_details.address_randomisation", title: "address randomisation", prior: 0.2, fit: EVERYWHERE,
        read: |host| told(&host.kernel_details.address_randomisation), size: setting,
        why: "where code and data lie decides which of them share sets of a cache or of the branch predictor",
        test: "setarch $(uname -m) -R dormouse lab run … on both",
    },
    Prior {
        fact: "memory.swappiness", title: "swappiness", prior: 0.1, fit: MEMORY,
        read: |host| told(&host.memory.swappiness), size: setting,
        why: "it matters only where memory is short",
        test: "sudo sysctl vm.swappiness=VALUE, the same on both",
    },
    // What is never twice the same.
    Prior {
        fact: "neighbours", title: "neighbours", prior: 0.28, fit: SPEED, read: neighbours,
        size: |a, b, _| ramp((a - b).abs(), 0.15, 0.8),
        why: "whoever shares the processor takes its time, and leaves its caches cold",
        test: "stop them, or choose another processor (dormouse lab run --cpu N), and run again",
    },
    Prior {
        fact: "steal_share", title: "steal", prior: 0.28, fit: SPEED,
        read: |host| number(&host.steal_share, |share| format!("{:.1} %", share * 100.0)),
        size: |a, b, _| ramp((a - b).abs(), 0.02, 0.1),
        why: "the hypervisor gave the processor to another machine meanwhile",
        test: "run again when the host is quiet, or on one of your own",
    },
    Prior {
        fact: "unnamed_share", title: "short-lived neighbours", prior: 0.22, fit: SPEED,
        read: |host| number(&host.unnamed_share, |share| format!("{:.0} % of a processor", share * 100.0)),
        size: |a, b, _| ramp((a - b).abs(), 0.25, 1.0),
        why: "processes too short-lived to name took time of the processors",
        test: "stop what starts them (builds, monitoring, cron), and run again",
    },
    Prior {
        fact: "load", title: "load before the run", prior: 0.2, fit: [0.5, 0.5, 0.5, 0.6, 1.0],
        read: |host| match host.load.parse::<f64>() {
            Ok(load) => Reading::Number(load, host.load.clone()),
            Err(_) => plain(&host.load),
        },
        size: |a, b, host| ramp((a - b).abs() / host.cpu_count.max(1) as f64, 0.5, 2.0),
        why: "what ran in the minute before may have gone on",
        test: "wait until the machine is quiet, and run again",
    },
    Prior {
        fact: "uptime_s", title: "time since the machine started", prior: 0.06, fit: [0.0, 0.0, 0.1, 1.0, 0.5],
        read: |host| number(&host.uptime_s, |s| format!("{:.1} days", s / 86_400.0)),
        size: |a, b, _| if (a - b).abs() > 86_400.0 && relative(a, b) > 0.9 { 1.0 } else { 0.0 },
        why: "memory gets fragmented with time, and huge pages rare",
        test: "echo 1 | sudo tee /proc/sys/vm/compact_memory on both, and run again",
    },
];

/// How much of the differing figures is of each kind, in the order of [`Kind::ALL`]; `None` if none differs.
pub(super) fn evidence(differences: &[Difference]) -> Option<Fit> {
    // The mean over a kind's figures, so that many cases of one kind do not outvote few of another.
    let effect = Kind::ALL.map(|kind| {
        let of_kind: Vec<&Difference> =
            differences.iter().filter(|difference| difference.kind == kind && !difference.is_ratio).collect();
        let sum: f64 = of_kind.iter().filter(|d| d.verdict.is_difference()).map(|d| d.effect()).sum();
        sum / of_kind.len().max(1) as f64
    });
    let sum: f64 = effect.iter().sum();
    (sum > 0.0).then(|| effect.map(|effect| effect / sum))
}

/// How well a fact explains differences of those kinds.
pub(super) fn fit(fit: &Fit, evidence: Option<Fit>) -> f64 {
    0.6 + 0.8 * evidence.map_or(0.5, |shares| shares.iter().zip(fit).map(|(share, fit)| share * fit).sum())
}

fn suspect(prior: &Prior, a: &Host, b: &Host, evidence: Option<Fit>) -> Option<Suspect> {
    let missing = Fact::<String>::default();
    let is_missing = |cause: &str| missing.cause() == Some(cause);
    let (size, a, b) = match ((prior.read)(a), (prior.read)(b)) {
        (Reading::Text(a), Reading::Text(b)) => (if a == b { 0.0 } else { 1.0 }, a, b),
        (Reading::Number(x, text_a), Reading::Number(y, text_b)) => ((prior.size)(x, y, a), text_a, text_b),
        // A result of an older version does not have it: no difference of the hosts.
        (Reading::Hidden(cause), _) | (_, Reading::Hidden(cause)) if is_missing(&cause) => return None,
        (Reading::Hidden(_), Reading::Hidden(_)) => return None,
        // Told here and hidden there: the kernel or the hypervisor is another one, the value may be the same.
        (Reading::Hidden(cause), Reading::Text(told) | Reading::Number(_, told)) => {
            (0.3, format!("not told: {cause}"), told)
        }
        (Reading::Text(told) | Reading::Number(_, told), Reading::Hidden(cause)) => {
            (0.3, told, format!("not told: {cause}"))
        }
        (Reading::Text(a), Reading::Number(_, b)) | (Reading::Number(_, a), Reading::Text(b)) => (1.0, a, b),
    };
    (size > 0.0).then(|| Suspect {
        fact: prior.fact.into(),
        title: prior.title.into(),
        why: prior.why.into(),
        test: prior.test.into(),
        score: prior.prior * fit(&prior.fit, evidence) * size,
        struck_out: None,
        a,
        b,
    })
}

/// What is left of a suspicion when what it acts by came out alike.
const STRUCK_OUT: f64 = 0.1;

/// Of a fact that acts by what was measured: what was measured, if it came out alike.
fn struck_out(fact: &str, judged: &[Judged]) -> Option<String> {
    let suspect = SUSPECTS.iter().find(|suspect| suspect.facts.contains(&fact))?;
    let judged = judged.iter().find(|judged| judged.suspect == suspect.name)?;
    (judged.verdict == Verdict::StruckOut).then(|| format!("{}: {}", judged.suspect, judged.text()))
}

/// All that differs between two hosts, likeliest first.
pub(super) fn suspects(a: &Host, b: &Host, evidence: Option<Fit>, judged: &[Judged]) -> Vec<Suspect> {
    let mut suspects: Vec<Suspect> = PRIORS.iter().filter_map(|prior| suspect(prior, a, b, evidence)).collect();
    for suspect in &mut suspects {
        suspect.struck_out = struck_out(&suspect.fact, judged);
        suspect.score *= if suspect.struck_out.is_some() { STRUCK_OUT } else { 1.0 };
    }
    sort(&mut suspects);
    suspects
}

pub(super) fn sort(suspects: &mut [Suspect]) {
    suspects.sort_by(|x, y| y.score.total_cmp(&x.score).then_with(|| x.fact.cmp(&y.fact)));
}
