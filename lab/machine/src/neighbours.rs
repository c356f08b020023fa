//! Other processes that use the CPUs while an experiment runs.
//!
//! A median tolerates a short disturbance, but not a neighbour that stays. A neighbour that is named can be stopped.
//!
//! ```text
//!   Neighbours::watch ──▶ /proc/stat, /proc/*/stat     before
//!   .stop() ────────────▶ both again                   after ──▶ time of each process: own (roots, descendants) │ others
//!                                                             └─▶ Findings: neighbours, unnamed share, steal ──▶ notes, Host::absorb
//! ```
//! The time of processes that have ended is known as a sum only: busy time of the CPUs, less that of all processes that
//! were seen. Many kernels count busy time by ticks, so small shares are not reported. Processes of other containers
//! cannot be named. A descendant of an own process that has lost its parent counts as a neighbour. Source: `proc(5)`.

use std::collections::HashMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::fact::Fact;

/// Minimum share of one CPU for a process to be named.
const NAMED_SHARE_MIN: f64 = 0.05;

/// A process that does not belong to the experiment and used a CPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    /// Process id.
    pub pid: u32,
    /// Name that the kernel has for it, at most 15 characters.
    pub command: String,
    /// Share of one CPU during the run; with several threads it may exceed 1.
    pub share: f64,
    /// CPU that it ran on last.
    pub cpu: Option<u32>,
    /// Whether that CPU is one of those measured on.
    pub is_on_measured_cpu: bool,
}

/// Disturbances that were seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Findings {
    /// Processes that took at least 5 % of a CPU, highest share first.
    pub neighbours: Vec<Neighbour>,
    /// Share of one CPU that was taken by processes that were never seen, or that are outside of this container.
    pub unnamed_share: Fact<f64>,
    /// Share of the measured CPUs' time (of all CPUs' if none is given) that the hypervisor gave to other machines.
    pub steal_share: Fact<f64>,
    /// Share of one CPU that interrupts took.
    pub interrupt_share: Fact<f64>,
}

impl Findings {
    /// Returns one line for each disturbance that a reader should know, with its remedy. Without disturbances there are
    /// no lines.
    pub fn notes(&self) -> Vec<String> {
        let measured = ", which is measured; stop it, or choose another with --cpu";
        let beside = "; it shares caches and memory with what is measured; stop it";
        let named = |Neighbour { pid, command, share, cpu, is_on_measured_cpu }: &Neighbour| {
            let end = if *is_on_measured_cpu { measured } else { beside };
            let end = cpu.map_or_else(|| "; stop it".into(), |cpu| format!(", on processor {cpu}{end}"));
            format!("noisy neighbour: `{command}` (pid {pid}) took {:.0} % of a processor{end}", share * 100.0)
        };
        // Five are enough.
        let mut notes: Vec<String> = self.neighbours.iter().take(5).map(named).collect();
        // Ticks make the sums of one CPU coarse.
        for (share, least, subject, rest) in [
            (&self.unnamed_share, 0.10, "noisy neighbours: processes too short-lived to name took", "of a processor"),
            (&self.steal_share, 0.01, "steal: the hypervisor gave", "of the processors' time to other machines"),
            (&self.interrupt_share, 0.10, "interrupts took", "of a processor; /proc/irq/*/smp_affinity moves them"),
        ] {
            let share = share.told().filter(|share| **share >= least);
            notes.extend(share.map(|share| format!("{subject} {:.1} % {rest}", share * 100.0)));
        }
        notes
    }
}

/// A watch on the neighbours, with the state at its start.
#[derive(Debug)]
pub struct Neighbours {
    roots: Vec<u32>,
    measured_cpus: Vec<u32>,
    before: Snapshot,
    begun: Instant,
}

impl Neighbours {
    /// Takes the first snapshot. `own` are the processes that are not neighbours, with all their descendants, usually
    /// `&[std::process::id()]`. `measured_cpus` are the CPUs that the experiment measures on.
    pub fn watch(own: &[u32], measured_cpus: &[u32]) -> Neighbours {
        let (roots, measured_cpus) = (own.to_vec(), measured_cpus.to_vec());
        Neighbours { roots, measured_cpus, before: Snapshot::take(), begun: Instant::now() }
    }

    /// Takes the second snapshot. A share that could not be determined has its cause in the findings.
    pub fn stop(self) -> Findings {
        let elapsed = self.begun.elapsed();
        self.findings(&Snapshot::take(), elapsed.as_secs_f64() * rustix::param::clock_ticks_per_second() as f64)
    }

    fn findings(&self, after: &Snapshot, elapsed_ticks: f64) -> Findings {
        let share = |ticks: u64| ticks as f64 / elapsed_ticks.max(1.0);
        let parents: HashMap<u32, u32> = after.processes.iter().map(|(&(pid, _), one)| (pid, one.parent)).collect();
        let is_own = |pid: u32| {
            let ancestors = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
            // Process ids that are reused during the reading may seem to be their own ancestors.
            ancestors.take(parents.len() + 1).any(|pid| self.roots.contains(&pid))
        };
        let (mut neighbours, mut seen) = (Vec::new(), 0);
        for (&(pid, started), process) in &after.processes {
            // A process that was there at the start has an earlier time; all time of a later one counts. The same holds
            // for its children that ended.
            let earlier = self.before.processes.get(&(pid, started));
            let since = |of: fn(&Process) -> u64| of(process).saturating_sub(earlier.map_or(0, of));
            let time = since(|process| process.time);
            seen += time;
            if is_own(pid) {
                seen += since(|process| process.children_time);
            } else if share(time) >= NAMED_SHARE_MIN {
                let Process { command, cpu, .. } = process.clone();
                let is_on_measured_cpu = cpu.is_some_and(|cpu| self.measured_cpus.contains(&cpu));
                neighbours.push(Neighbour { pid, command, share: share(time), cpu, is_on_measured_cpu });
            }
        }
        neighbours.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.pid.cmp(&b.pid)));
        let since = |cpu: &str| -> Option<CpuTimes> {
            let (first, last) = (self.before.cpus.get(cpu)?, after.cpus.get(cpu)?);
            Some(std::array::from_fn(|kind| last[kind].saturating_sub(first[kind])))
        };
        let all = since("cpu").ok_or_else(|| "/proc/stat could not be read".to_string());
        let unnamed = |[user, nice, system, ..]: CpuTimes| share((user + nice + system).saturating_sub(seen));
        let measured = self.measured_cpus.iter().filter_map(|cpu| since(&format!("cpu{cpu}")));
        let watched = measured.reduce(|a, b| std::array::from_fn(|kind| a[kind] + b[kind]));
        let steal = |times: CpuTimes| times[7] as f64 / times.iter().sum::<u64>().max(1) as f64;
        Findings {
            neighbours,
            unnamed_share: all.clone().map(unnamed).into(),
            steal_share: all.clone().map(|all| steal(watched.unwrap_or(all))).into(),
            interrupt_share: all.map(|[.., irq, softirq, _]| share(irq + softirq)).into(),
        }
    }
}

/// Fields of `/proc/PID/stat` that are needed. Times are in ticks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    command: String,
    parent: u32,
    time: u64,
    children_time: u64,
    cpu: Option<u32>,
}

/// Identity of a process: its id and its start time, since ids are reused.
type Key = (u32, u64);

fn parse_process(text: &str) -> Option<(Key, Process)> {
    // The name may contain anything, including parentheses.
    let (pid, rest) = text.split_once(" (")?;
    let (command, rest) = rest.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Fields are numbered from 1 in proc(5); the first of this list is the third. The kernel prints times of children
    // as signed numbers.
    let field = |number: usize| Some(fields.get(number - 3)?.parse::<i64>().ok()?.max(0) as u64);
    let process = Process {
        command: command.into(),
        parent: field(4)? as u32,
        time: field(14)? + field(15)?,
        children_time: field(16)? + field(17)?,
        cpu: field(39).map(|cpu| cpu as u32),
    };
    Some(((pid.trim().parse().ok()?, field(22)?), process))
}

/// Ticks of a CPU by kind: user, nice, system, idle, iowait, irq, softirq, steal. Time of guests is part of user.
type CpuTimes = [u64; 8];

/// Parses the lines of `/proc/stat`: `cpu`, the sum of all CPUs, and `cpu0` and so on.
fn parse_cpus(text: &str) -> HashMap<String, CpuTimes> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next().filter(|name| name.starts_with("cpu"))?;
        // Old kernels print fewer fields.
        Some((name.to_string(), std::array::from_fn(|_| words.next().and_then(|time| time.parse().ok()).unwrap_or(0))))
    };
    text.lines().filter_map(line).collect()
}

/// CPUs and processes at one moment.
#[derive(Debug, Clone, Default)]
struct Snapshot {
    cpus: HashMap<String, CpuTimes>,
    processes: HashMap<Key, Process>,
}

impl Snapshot {
    fn take() -> Snapshot {
        let text = |path: &str| std::fs::read_to_string(path).ok();
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        // A process that ends between the two reads is left out.
        let processes = pids.filter_map(|pid| parse_process(&text(&format!("/proc/{pid}/stat"))?)).collect();
        Snapshot { cpus: parse_cpus(&text("/proc/stat").unwrap_or_default()), processes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_parsed() {
        let stat = "4711 (a (b) c) R 1 4711 4711 0 -1 4194304 117 0 0 0 250 50 7 3 20 0 1 0 1154246 3133440 382 \
            18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 1 1 1 1 1 1 1 0";
        let process = Process { command: "a (b) c".into(), parent: 1, time: 300, children_time: 10, cpu: Some(1) };
        assert_eq!(parse_process(stat), Some(((4711, 1154246), process)));
        assert_eq!([parse_process("4711 (cut"), parse_process("")], [None, None]);
        let cpus = parse_cpus("cpu  10 1 2 30 4 5 6 7 9 0\ncpu0 1 0 0 3\nintr 99 1\n");
        assert_eq!((cpus.len(), cpus["cpu"], cpus["cpu0"][3]), (2, [10, 1, 2, 30, 4, 5, 6, 7], 3));
    }

    /// Returns the notes for 200 ticks, in which CPUs and processes took time: id, parent, own time, time of children
    /// that ended, CPU. Process 10 is the root of the own processes, CPU 1 is measured.
    fn notes(cpus: &str, processes: &[(u32, u32, u64, u64, u32)]) -> Vec<String> {
        let snapshot = |cpus: &str, share: u64| {
            let process = |&(pid, parent, time, children_time, cpu): &(u32, u32, u64, u64, u32)| {
                let (time, children_time) = (1000 + share * time, 1000 + share * children_time);
                ((pid, 1), Process { command: format!("p{pid}"), parent, time, children_time, cpu: Some(cpu) })
            };
            Snapshot { cpus: parse_cpus(cpus), processes: processes.iter().map(process).collect() }
        };
        let (before, begun) = (snapshot("cpu 0\ncpu1 0", 0), Instant::now());
        let watch = Neighbours { roots: vec![10], measured_cpus: vec![1], before, begun };
        watch.findings(&snapshot(cpus, 1), 200.0).notes()
    }

    #[test]
    fn others_are_named_or_summed_up_and_ours_are_not() {
        let processes = [(10, 1, 0, 0, 1), (11, 10, 200, 0, 1), (20, 1, 194, 0, 1), (21, 1, 20, 0, 0), (1, 0, 0, 0, 0)];
        let found = [
            "noisy neighbour: `p20` (pid 20) took 97 % of a processor, on processor 1, which is measured; \
                stop it, or choose another with --cpu",
            "noisy neighbour: `p21` (pid 21) took 10 % of a processor, on processor 0; it shares caches and memory \
                with what is measured; stop it",
        ];
        assert_eq!(notes("cpu 415 0 0 180 0 0 0 5\ncpu1 395 0 0 200", &processes), found);
        assert_eq!(notes("nothing", &processes), found, "without /proc/stat");
        // The own process took 60 ticks and its ended children 40, of 190: 45 % of a CPU belong to unseen processes.
        let found = notes("cpu 190 0 0 180 0 0 30\ncpu1 90 0 0 100 0 0 0 10", &[(10, 1, 60, 40, 1)]);
        assert!(
            found.iter().zip([" 45.0 % ", " 5.0 % ", " 15.0 % "]).all(|(note, share)| note.contains(share)),
            "{found:?}"
        );
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
