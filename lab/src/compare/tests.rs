use std::collections::BTreeMap;

use super::*;
use crate::Ratio;
use crate::host::{Availability, Cache, Clock, Fact, Kernel, Limits, Memory, Processor, Tracing};
use crate::neighbours::Neighbour;
use crate::probes::Probes;
use crate::statistics::measurement;

fn told<T>(value: T) -> Fact<T> {
    Fact::Told(value)
}

/// A desktop on which everything can be read.
fn host() -> Host {
    let cache = |level, size_bytes| Cache { level, kind: "Unified".into(), size_bytes, ..Cache::default() };
    Host {
        cpu: "Some Core 9".into(),
        cpu_count: 8,
        processor: Processor {
            microcode: told("0x10".into()),
            threads_per_core: told(2),
            boost: told(true),
            frequency_khz_max: told(5_000_000),
            isolated: told(vec![]),
            numa_nodes: told(1),
            ..Processor::default()
        },
        caches: told(vec![cache(1, 32 << 10), cache(2, 1 << 20)]),
        kernel: "6.12.1".into(),
        kernel_details: Kernel {
            options: told(vec![]),
            mitigations: told(BTreeMap::from([("meltdown".into(), "Not affected".into())])),
            libc: told("glibc 2.41".into()),
            ..Kernel::default()
        },
        clock_source: "tsc".into(),
        clock: Clock {
            tsc_constant: told(true),
            tsc_nonstop: told(true),
            tsc_hz: told(3_000_000_000),
            ..Clock::default()
        },
        governor: told("performance".into()),
        hypervisor: told("none".into()),
        fifo_scheduling: Availability::Available,
        memory: Memory {
            total_bytes: told(32 << 30),
            thp: told("madvise".into()),
            thp_process: told("allowed".into()),
            thp_shmem: told("never".into()),
            ..Memory::default()
        },
        limits: Limits { cpu: told("none".into()), ..Limits::default() },
        tracing: Tracing {
            patching: told("mprotect".into()),
            rseq: Availability::Available,
            glibc_tunables: told("not set".into()),
            ..Tracing::default()
        },
        dormouse_version: told("0.1.0".into()),
        dormouse_build: told("release".into()),
        load: "0.20".into(),
        uptime_s: told(1e5),
        unnamed_share: told(0.02),
        steal_share: told(0.0),
        ..Host::default()
    }
}

/// The same on another day: all that is never twice the same is otherwise, none of it considerably.
fn another_day() -> Host {
    let neighbour = Neighbour { command: "kworker/1:0".into(), share: 0.07, cpu: Some(1), ..Neighbour::default() };
    let mut host = host();
    host.load = "0.90".into();
    host.uptime_s = told(1.7e5);
    host.unnamed_share = told(0.11);
    host.steal_share = told(0.004);
    host.neighbours = vec![neighbour];
    host.clock.tsc_hz = told(3_000_100_000);
    host.memory.total_bytes = told((32 << 30) - (64 << 20));
    host
}

fn samples(center: f64) -> Vec<f64> {
    (0..30).map(|round| center * (1.0 + f64::from(round % 7) * 0.004)).collect()
}

fn figure(name: &str, center: f64, labels: &[(&str, &str)]) -> Measurement {
    Measurement {
        labels: labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        ..measurement(name, "ns", &samples(center))
    }
}

/// Costs of an empty loop, a dormant and an armed event, and one under pressure on memory.
fn report(host: Host, costs: [f64; 4]) -> Report {
    let [empty, dormant, armed, pressed] = costs;
    let measurements = vec![
        figure("empty_loop", empty, &[]),
        figure("dormant", dormant, &[("state", "dormant")]),
        figure("armed", armed, &[("state", "armed")]),
        figure("armed_l3", pressed, &[("state", "armed"), ("pressure", "L3")]),
    ];
    Report {
        schema: SCHEMA,
        host,
        experiments: vec![Experiment { name: "event".into(), measurements, ..Experiment::default() }],
    }
}

const COSTS: [f64; 4] = [1.0, 0.4, 30.0, 60.0];

/// Which costs a fault in B multiplies.
const NOTHING: [f64; 4] = [1.0, 1.0, 1.0, 1.0];
const SLOW: [f64; 4] = [1.5, 1.5, 1.5, 1.3];
const ONLY_ARMED: [f64; 4] = [1.0, 1.0, 2.5, 1.6];
const ONLY_DORMANT: [f64; 4] = [1.0, 4.0, 1.0, 1.0];
const ONLY_MEMORY: [f64; 4] = [1.0, 1.0, 1.03, 1.7];

fn compared(plant: impl FnOnce(&mut Host), factors: [f64; 4]) -> Comparison {
    let mut other = another_day();
    plant(&mut other);
    let mut costs = COSTS;
    costs.iter_mut().zip(factors).for_each(|(cost, factor)| *cost *= factor);
    compare(&report(host(), COSTS), &report(other, costs))
}

/// A difference planted among the noise of another day is named first, whether the figures fit it or show nothing.
#[track_caller]
fn named_first(fact: &str, factors: [f64; 4], plant: impl Fn(&mut Host)) {
    for factors in [factors, NOTHING] {
        let comparison = compared(&plant, factors);
        let first = comparison.suspects.first().unwrap_or_else(|| panic!("{fact}: nobody is suspected"));
        let list: Vec<_> = comparison.suspects.iter().map(|suspect| (&suspect.fact, suspect.score)).collect();
        assert_eq!(first.fact, fact, "{list:?}");
        assert!(!first.why.is_empty() && !first.test.is_empty());
    }
}

#[test]
fn planted_differences_are_named_first() {
    named_first("memory.thp", ONLY_MEMORY, |host| host.memory.thp = told("never".into()));
    named_first("memory.thp_process", ONLY_MEMORY, |host| host.memory.thp_process = told("disabled".into()));
    named_first("memory.thp_shmem", ONLY_MEMORY, |host| host.memory.thp_shmem = told("advise".into()));
    named_first("governor", SLOW, |host| host.governor = told("powersave".into()));
    named_first("processor.boost", SLOW, |host| host.processor.boost = told(false));
    named_first("processor.threads_per_core", SLOW, |host| host.processor.threads_per_core = told(1));
    named_first("tracing.patching", ONLY_DORMANT, |host| host.tracing.patching = told("none".into()));
    named_first("tracing.rseq", ONLY_ARMED, |host| {
        host.tracing.rseq = Availability::Not("switched off by GLIBC_TUNABLES=glibc.pthread.rseq=0".into());
        host.tracing.glibc_tunables = told("glibc.pthread.rseq=0".into());
    });
    named_first("clock_source", ONLY_ARMED, |host| {
        host.clock_source = "hpet".into();
    });
    named_first("kernel", ONLY_MEMORY, |host| host.kernel = "5.10.0".into());
    named_first("limits.cpu", SLOW, |host| host.limits.cpu = told("1.50 processors (150000 of 100000 µs)".into()));
    named_first("processor.microcode", ONLY_ARMED, |host| host.processor.microcode = told("0x11".into()));
    named_first("dormouse_build", ONLY_ARMED, |host| host.dormouse_build = told("debug".into()));
    named_first("processor.numa_nodes", ONLY_MEMORY, |host| host.processor.numa_nodes = told(2));
    named_first("kernel_details.mitigations", ONLY_MEMORY, |host| {
        let mitigations = BTreeMap::from([("meltdown".into(), "Mitigation: PTI".into())]);
        host.kernel_details.mitigations = told(mitigations);
    });
    named_first("cpu", SLOW, |host| {
        // Another processor has all of it otherwise.
        host.cpu = "Other Core 7".into();
        host.processor.microcode = told("0xb0".into());
        host.processor.frequency_khz_max = told(3_000_000);
        host.clock.tsc_hz = told(2_000_000_000);
    });
}

#[test]
fn what_is_never_twice_the_same_counts_when_it_is_considerable() {
    named_first("neighbours", SLOW, |host| {
        let yes = Neighbour {
            command: "yes".into(),
            share: 0.97,
            cpu: Some(1),
            is_on_measured_cpu: true,
            ..Neighbour::default()
        };
        host.neighbours.push(yes);
    });
    named_first("steal_share", SLOW, |host| host.steal_share = told(0.2));
    named_first("load", SLOW, |host| host.load = "31.00".into());
    named_first("unnamed_share", SLOW, |host| host.unnamed_share = told(1.4));
}

#[test]
fn noise_of_a_shared_machine_does_not_outrank_a_setting() {
    let loud = |host: &mut Host| {
        let yes = Neighbour {
            command: "cc1".into(),
            share: 1.9,
            cpu: Some(1),
            is_on_measured_cpu: true,
            ..Neighbour::default()
        };
        host.neighbours.push(yes);
        host.load = "40.00".into();
        host.steal_share = told(0.3);
        host.unnamed_share = told(2.0);
    };
    for factors in [NOTHING, SLOW, ONLY_MEMORY, ONLY_ARMED] {
        for plant in [
            |host: &mut Host| host.memory.thp_process = told("disabled".into()),
            |host: &mut Host| host.tracing.rseq = Availability::Not("no".into()),
        ] {
            let comparison = compared(
                |host| {
                    loud(host);
                    plant(host)
                },
                factors,
            );
            let first = comparison.suspects.first().map(|suspect| suspect.fact.as_str());
            assert!(matches!(first, Some("memory.thp_process" | "tracing.rseq")), "{:?}", comparison.suspects);
        }
    }
}

/// Of two planted differences, the one that acts on what differs comes first.
#[test]
fn the_figures_decide_between_two_suspects() {
    let plant = |host: &mut Host| {
        host.memory.thp = told("never".into());
        host.governor = told("powersave".into());
    };
    let first = |factors| compared(plant, factors).suspects.first().map(|suspect| suspect.fact.clone());
    assert_eq!(first(ONLY_MEMORY).as_deref(), Some("memory.thp"));
    assert_eq!(first(SLOW).as_deref(), Some("governor"));
}

#[test]
fn another_day_is_no_difference() {
    let comparison = compared(|_| (), NOTHING);
    assert_eq!(comparison.suspects, []);
    assert!(comparison.differences.iter().all(|difference| !difference.verdict.is_difference()));
    assert!(comparison.notes.iter().any(|note| note.starts_with("nothing differs")), "{:?}", comparison.notes);
}

/// Neighbours that both runs had are no difference between them, and are told of all the same.
#[test]
fn a_disturbed_run_is_said_to_be() {
    let mut loud = host();
    loud.neighbours = vec![Neighbour { command: "rustc".into(), share: 0.8, ..Neighbour::default() }];
    let comparison = compare(&report(loud.clone(), COSTS), &report(loud, COSTS));
    assert_eq!(comparison.suspects, []);
    for side in ["A", "B"] {
        let start = format!("{side} was disturbed: `rustc` took 80 % of a processor");
        assert!(comparison.notes.iter().any(|note| note.starts_with(&start)), "{:?}", comparison.notes);
    }
    assert!(!compared(|_| (), NOTHING).notes.iter().any(|note| note.contains("was disturbed")));
}

#[test]
fn verdicts_go_by_the_unit() {
    let comparison = compared(|_| (), [1.0, 0.5, 2.0, 1.0]);
    let verdicts: Vec<Verdict> = comparison.differences.iter().map(|difference| difference.verdict).collect();
    assert_eq!(verdicts, [Verdict::NoDifferenceSeen, Verdict::Faster, Verdict::Slower, Verdict::NoDifferenceSeen]);
    let armed = comparison.differences.iter().find(|difference| difference.name == "armed").expect("in both");
    assert!(armed.ratio.is_some_and(|ratio| (ratio - 2.0).abs() < 1e-9), "{armed:?}");
    assert!(armed.difference_ci95[0] > 25.0 && armed.difference_ci95[1] < 35.0, "{armed:?}");
    assert_eq!(Verdict::of("events/s", 1.0), Verdict::Faster);
    assert_eq!(Verdict::of("count", 1.0), Verdict::Higher);
}

#[test]
fn what_only_one_has_is_said() {
    let (a, mut b) = (report(host(), COSTS), report(host(), COSTS));
    if let Some(experiment) = b.experiments.first_mut() {
        experiment.measurements.remove(2);
        experiment.ratios.push(Ratio { name: "armed_vs_lttng_ust".into(), ..Ratio::default() });
        experiment.notes.push("the thread could not be pinned".into());
        experiment.measurements.iter_mut().for_each(|m| m.n = 20);
        if let Some(m) = experiment.measurements.first_mut() {
            m.labels.insert("policy".into(), "fifo".into());
        }
    }
    let comparison = compare(&a, &b);
    assert_eq!(comparison.only_in_a, ["event: armed (ns)"]);
    assert_eq!(comparison.only_in_b, ["event: armed_vs_lttng_ust"]);
    assert!(comparison.notes.contains(&"only B says, of event: the thread could not be pinned".to_string()));
    let facts: Vec<&str> = comparison.suspects.iter().map(|suspect| suspect.fact.as_str()).collect();
    assert_eq!(facts, ["labels.policy", "n"]);
}

#[test]
fn what_is_no_result_is_refused_with_its_cause() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("a.json");
    assert!(load(&path).is_err_and(|error| error.to_string().contains("cannot read")));
    for text in ["", "[]", "{\"schema\": 1}", "\u{0}"] {
        std::fs::write(&path, text).expect("written");
        let error = load(&path).map(|_| ()).expect_err("no result").to_string();
        assert!(error.contains("a.json is no result") && error.contains("dormouse lab run"), "{error}");
    }
    let text = r#"{"schema": 1, "host": {"cpu": "Old", "cpu_count": 1, "kernel": "5", "virtualised": false},
        "experiments": [{"name": "event", "measurements": [], "notes": [],
        "ratios": [{"name": "r", "value": null, "ci95": [0, 1]}]}]}"#;
    let loaded = parse(text.as_bytes()).expect("an old result");
    assert_eq!(loaded.notes.len(), 1, "{:?}", loaded.notes);
    assert!(compare(&loaded.report, &report(host(), COSTS)).only_in_b.len() == 4);
}

/// Figures of a machine whose core is so many times as slow.
fn clocked(factor: f64) -> Probes {
    let samples: Vec<f64> = (0..9).map(|number| factor * (1.0 + 0.001 * f64::from(number))).collect();
    Probes { figures: vec![measurement("core clock.addition", "ns", &samples)], ..Probes::default() }
}

#[test]
fn facts_that_act_by_what_is_alike_are_struck_out() {
    let (mut a, mut b) = (Host::default(), Host::default());
    (a.governor, b.governor) = (Fact::Told("powersave".into()), Fact::Told("performance".into()));
    let alike = judge(&clocked(1.0), &clocked(1.0));
    let differ = judge(&clocked(1.0), &clocked(2.0));
    let score = |judged: &[Judged]| {
        let suspects = suspects_of_hosts(&a, &b, judged);
        let [suspect] = suspects.as_slice() else { panic!("{suspects:#?}") };
        (suspect.score, suspect.struck_out.is_some())
    };
    let (open, struck) = (score(&differ), score(&alike));
    assert!(!open.1 && struck.1 && struck.0 < 0.2 * open.0, "{open:?} {struck:?}");
}
