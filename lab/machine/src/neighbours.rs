//! Who else uses the CPUs while an experiment runs.
//!
//! A median bears a short disturbance, and not a neighbour that stays. One that is named can be stopped.
//!
//! ```text
//!   Neighbours::watch ──▶ /proc/stat, /proc/*/stat     before
//!   .stop() ────────────▶ the same                     after ──▶ what each process took: ours (roots, descendants) │ others
//!                                                             └─▶ Findings: neighbours, unnamed share, steal ──▶ notes, Host::absorb
//! ```
//! What processes took that are not there at the end is seen in sums alone: busy time of the CPUs, less ours, less that of the others that
//! were seen. The parent to whose account the kernel adds most of it is named.
//!
//! # Limits
//! The kernel counts busy time by ticks on many machines, so shares below a few per cent mean nothing and are not told. Other containers'
//! processes cannot be named. A descendant of ours that has lost its parent counts as a neighbour. A process is said to be on the CPU on
//! which it was last.
//!
//! # Source
//! `proc(5)`: `/proc/PID/stat`, `/proc/stat`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::fact::{Fact, tolerant};

/// Share of one processor from which on a process is told of.
const NAMED_SHARE_MIN: f64 = 0.05;
/// The same for sums, which ticks make coarse.
const UNNAMED_SHARE_MIN: f64 = 0.10;
/// So many neighbours have a note of their own.
const NOTE_COUNT_MAX: usize = 5;
/// Share of the processors' time from which on a hypervisor's taking is told of.
const STEAL_SHARE_MIN: f64 = 0.01;

/// A process that is none of ours.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    /// Its id.
    pub pid: u32,
    /// The name that the kernel has for it, at most 15 characters.
    pub command: String,
    /// Share of one processor while the run lasted; with several threads it may exceed 1.
    pub share: f64,
    /// The processor that it ran on last.
    #[serde(deserialize_with = "tolerant")]
    pub cpu: Option<u32>,
    /// Whether that is one of those measured on.
    pub is_on_measured_cpu: bool,
}

/// What was seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Findings {
    /// Processes that took at least 5 % of a processor, greediest first.
    pub neighbours: Vec<Neighbour>,
    /// Share of one processor that processes took that were never seen, or outside of this container.
    pub unnamed_share: Fact<f64>,
    /// The process whose short-lived children took most of that.
    pub unnamed_parent: Option<String>,
    /// Share of the measured processors' time (of all, if none is given) that the hypervisor gave to others.
    pub steal_share: Fact<f64>,
    /// Share of one processor that interrupts took.
    pub interrupt_share: Fact<f64>,
    /// Processors that would be free.
    pub quiet_cpus: Vec<u32>,
}

impl Findings {
    fn without(cause: &str) -> Findings {
        let [unnamed_share, steal_share, interrupt_share] = [(); 3].map(|()| Fact::NotTold(cause.into()));
        Findings { unnamed_share, steal_share, interrupt_share, ..Findings::default() }
    }

    /// One line for each thing that a reader has to know, with its remedy. Nothing to tell, no lines.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.neighbours.iter().take(NOTE_COUNT_MAX).map(|one| self.note(one)).collect();
        let rest: f64 = self.neighbours.iter().skip(NOTE_COUNT_MAX).map(|neighbour| neighbour.share).sum();
        if rest > 0.0 {
            let count = self.neighbours.len() - NOTE_COUNT_MAX;
            notes.push(format!("noisy neighbours: {count} more took {:.0} % of a processor together", rest * 100.0));
        }
        let parent = self.unnamed_parent.as_ref().map(|parent| format!(", mostly children of {parent}"));
        let mut add = |share: &Fact<f64>, least: f64, text: &dyn Fn(f64) -> String| {
            notes.extend(share.told().filter(|share| **share >= least).map(|share| text(share * 100.0)));
        };
        add(&self.unnamed_share, UNNAMED_SHARE_MIN, &|percent| {
            let parent = parent.as_deref().unwrap_or_default();
            format!(
                "noisy neighbours: {percent:.0} % of a processor was used by processes too short-lived to name{parent}"
            )
        });
        add(&self.steal_share, STEAL_SHARE_MIN, &|percent| {
            format!("steal: the hypervisor gave {percent:.1} % of the processors' time to other machines")
        });
        add(&self.interrupt_share, UNNAMED_SHARE_MIN, &|percent| {
            format!("interrupts took {percent:.0} % of a processor; /proc/irq/NUMBER/smp_affinity_list moves them")
        });
        notes
    }

    fn note(&self, neighbour: &Neighbour) -> String {
        let Neighbour { pid, command, share, cpu, is_on_measured_cpu } = neighbour;
        let place = match cpu {
            Some(cpu) if *is_on_measured_cpu => format!(", on processor {cpu}, which is measured"),
            Some(cpu) => format!(", on processor {cpu}; it shares caches and memory with what is measured"),
            None => String::new(),
        };
        let choice = self.quiet_cpus.first().filter(|_| *is_on_measured_cpu);
        let choice = choice.map(|cpu| format!(" or choose another with --cpu {cpu}")).unwrap_or_default();
        let percent = share * 100.0;
        format!("noisy neighbour: `{command}` (pid {pid}) took {percent:.0} % of a processor{place}; stop it{choice}")
    }
}

/// What was there before.
#[derive(Debug)]
pub struct Neighbours {
    roots: Vec<u32>,
    measured_cpus: Vec<u32>,
    before: Snapshot,
    begun: Instant,
}

impl Neighbours {
    /// Looks for the first time. `own` are the processes that are no neighbours, with all their descendants: as a rule
    /// `&[std::process::id()]`. `measured_cpus` are the CPUs that the experiment measures on.
    pub fn watch(own: &[u32], measured_cpus: &[u32]) -> Neighbours {
        let (roots, measured_cpus) = (own.to_vec(), measured_cpus.to_vec());
        Neighbours { roots, measured_cpus, before: Snapshot::take(), begun: Instant::now() }
    }

    /// Looks again. What could not be seen has its cause in the findings.
    pub fn stop(self) -> Findings {
        let elapsed = self.begun.elapsed();
        self.findings(&Snapshot::take(), elapsed, rustix::param::clock_ticks_per_second() as f64)
    }

    /// Ids of ours: the roots and their descendants.
    fn own(&self, processes: &[Process]) -> HashSet<u32> {
        let mut own: HashSet<u32> = self.roots.iter().copied().collect();
        // As many rounds as there are generations.
        loop {
            let count = own.len();
            let children = processes.iter().filter(|process| own.contains(&process.parent)).map(|process| process.pid);
            own.extend(children.collect::<Vec<_>>());
            if own.len() == count {
                return own;
            }
        }
    }

    fn findings(&self, after: &Snapshot, elapsed: Duration, ticks_per_s: f64) -> Findings {
        let share = |ticks: u64| ticks as f64 / ticks_per_s / elapsed.as_secs_f64().max(1e-3);
        // By id and start: ids are used again.
        let before: HashMap<(u32, u64), &Process> =
            self.before.processes.iter().map(|process| ((process.pid, process.started), process)).collect();
        // Who was there at first has a past; who came later has all its time in ours. Of children that ended, likewise.
        let taken = |process: &Process| {
            let earlier = before.get(&(process.pid, process.started));
            [
                process.time.saturating_sub(earlier.map_or(0, |earlier| earlier.time)),
                process.children_time.saturating_sub(earlier.map_or(0, |earlier| earlier.children_time)),
            ]
        };
        let own = self.own(&after.processes);
        let (ours, others): (Vec<&Process>, Vec<&Process>) =
            after.processes.iter().partition(|process| own.contains(&process.pid));
        let neighbour = |process: &&Process| {
            let is_on_measured_cpu = process.cpu.is_some_and(|cpu| self.measured_cpus.contains(&cpu));
            let Process { pid, command, cpu, .. } = (*process).clone();
            Neighbour { pid, command, share: share(taken(process)[0]), cpu, is_on_measured_cpu }
        };
        let mut neighbours: Vec<Neighbour> =
            others.iter().map(neighbour).filter(|neighbour| neighbour.share >= NAMED_SHARE_MIN).collect();
        neighbours.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.pid.cmp(&b.pid)));
        let is_free = |cpu: &u32| {
            !self.measured_cpus.contains(cpu) && neighbours.iter().all(|neighbour| neighbour.cpu != Some(*cpu))
        };
        let quiet_cpus = crate::allowed_cpus().into_iter().filter(is_free).collect();
        let (Some(first), Some(last)) = (&self.before.machine, &after.machine) else {
            return Findings { neighbours, quiet_cpus, ..Findings::without("/proc/stat could not be read") };
        };
        let since = |cpu: Option<u32>| Some(last.get(&cpu)?.since(*first.get(&cpu)?));
        let all = since(None).unwrap_or_default();
        let own_ticks: u64 = ours.iter().flat_map(|process| taken(process)).sum();
        let others_ticks: u64 = others.iter().map(|process| taken(process)[0]).sum();
        let unnamed = all.busy.saturating_sub(own_ticks).saturating_sub(others_ticks);
        let parent = others.iter().map(|process| (taken(process)[1], process)).max_by_key(|(ticks, _)| *ticks);
        let parent = parent.filter(|(ticks, _)| ticks * 2 >= unnamed.max(1));
        let measured = self.measured_cpus.iter().filter_map(|cpu| since(Some(*cpu)));
        let measured = measured.reduce(|a, b| CpuTimes { steal: a.steal + b.steal, total: a.total + b.total, ..a });
        let watched = measured.unwrap_or(all);
        Findings {
            neighbours,
            unnamed_share: Fact::Told(share(unnamed)),
            unnamed_parent: parent.map(|(_, process)| format!("`{}` (pid {})", process.command, process.pid)),
            steal_share: Fact::Told(watched.steal as f64 / watched.total.max(1) as f64),
            interrupt_share: Fact::Told(share(all.interrupts)),
            quiet_cpus,
        }
    }
}

/// The fields of `/proc/PID/stat` that are needed. Times in ticks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: u32,
    command: String,
    parent: u32,
    time: u64,
    children_time: u64,
    started: u64,
    cpu: Option<u32>,
}

impl Process {
    fn parse(text: &str) -> Option<Process> {
        // The name may hold anything, parentheses too.
        let (pid, rest) = text.split_once(" (")?;
        let (command, rest) = rest.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Fields are numbered from 1 in proc(5); here the third is the first.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        // Of children that have ended: signed in the kernel's print.
        let signed = |number: usize| Some(fields.get(number - 3)?.parse::<i64>().ok()?.max(0) as u64);
        Some(Process {
            pid: pid.trim().parse().ok()?,
            command: command.into(),
            parent: field(4)? as u32,
            time: field(14)? + field(15)?,
            children_time: signed(16)? + signed(17)?,
            started: field(22)?,
            cpu: field(39).map(|cpu| cpu as u32),
        })
    }
}

/// A line `cpu…` of `/proc/stat`, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CpuTimes {
    busy: u64,
    interrupts: u64,
    steal: u64,
    total: u64,
}

impl CpuTimes {
    fn since(self, earlier: CpuTimes) -> CpuTimes {
        let since = |of: fn(&CpuTimes) -> u64| of(&self).saturating_sub(of(&earlier));
        let [busy, interrupts] = [since(|times| times.busy), since(|times| times.interrupts)];
        CpuTimes { busy, interrupts, steal: since(|times| times.steal), total: since(|times| times.total) }
    }
}

/// `/proc/stat`: of all processors together (`None`), and of each.
type Machine = BTreeMap<Option<u32>, CpuTimes>;

fn parse_machine(text: &str) -> Option<Machine> {
    let line = |line: &str| {
        let (number, times) = line.strip_prefix("cpu")?.split_once(' ')?;
        // user nice system idle iowait irq softirq steal; guests are in user. Old kernels have fewer.
        let times: Vec<u64> = times.split_whitespace().map(|time| time.parse().unwrap_or(0)).collect();
        let time = |index: usize| times.get(index).copied().unwrap_or(0);
        let (busy, interrupts) = (time(0) + time(1) + time(2), time(5) + time(6));
        Some((number.parse().ok(), CpuTimes { busy, interrupts, steal: time(7), total: (0..8).map(time).sum() }))
    };
    Some(text.lines().filter_map(line).collect::<Machine>()).filter(|machine| machine.contains_key(&None))
}

/// What one sample holds.
#[derive(Debug, Clone, Default)]
struct Snapshot {
    machine: Option<Machine>,
    processes: Vec<Process>,
}

impl Snapshot {
    fn take() -> Snapshot {
        let text = |path: &str| std::fs::read_to_string(path).ok();
        // A process may end between the two: then it is not there.
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let processes = pids.filter_map(|pid| Process::parse(&text(&format!("/proc/{pid}/stat"))?)).collect();
        Snapshot { machine: text("/proc/stat").and_then(|text| parse_machine(&text)), processes }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    const STAT: &str = "4711 (a (b) c) R 1 4711 4711 0 -1 4194304 117 0 0 0 250 50 7 3 20 0 1 0 1154246 3133440 382 \
        18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 1 1 1 1 1 1 1 0";

    fn machine(busy: u64, steal: u64, total: u64) -> Option<Machine> {
        let idle = total - busy - steal;
        let line = |name: &str| format!("{name} {busy} 0 0 {idle} 0 0 0 {steal} 0 0\n");
        parse_machine(&format!("{}{}ctxt 5\n", line("cpu "), line("cpu1")))
    }

    fn process(pid: u32, parent: u32, time: u64, children_time: u64, cpu: u32) -> Process {
        Process { pid, command: format!("p{pid}"), parent, time, children_time, started: 1, cpu: Some(cpu) }
    }

    /// What was seen in two seconds of 100 ticks, by two looks at the machine and its processes; process 10 is ours.
    fn findings([before, after]: [(Option<Machine>, &[Process]); 2]) -> Findings {
        let snapshot =
            |(machine, processes): (Option<Machine>, &[Process])| Snapshot { machine, processes: processes.to_vec() };
        let watch =
            Neighbours { roots: vec![10], measured_cpus: vec![1], before: snapshot(before), begun: Instant::now() };
        watch.findings(&snapshot(after), Duration::from_secs(2), 100.0)
    }

    #[test]
    fn names_may_hold_anything() {
        let process = Process::parse(STAT).expect("a line of the kernel");
        assert_eq!((process.pid, process.command.as_str(), process.parent), (4711, "a (b) c", 1));
        assert_eq!((process.time, process.children_time, process.started), (300, 10, 1154246));
        assert_eq!(process.cpu, Some(1));
        assert_eq!(Process::parse("4711 (cut"), None);
        assert_eq!(Process::parse(""), None);
    }

    #[test]
    fn times_of_processors() {
        let text = "cpu  10 1 2 30 4 5 6 7 9 0\ncpu0 1 0 0 3 0 0 0 0 0 0\nintr 99 1\n";
        let machine = parse_machine(text).expect("read");
        assert_eq!(machine[&None], CpuTimes { busy: 13, interrupts: 11, steal: 7, total: 65 });
        assert_eq!((machine.len(), parse_machine("nothing")), (2, None));
    }

    #[test]
    fn a_neighbour_is_named_with_its_processor_and_ours_are_not() {
        let first = [process(10, 1, 500, 0, 1), process(11, 10, 0, 0, 1), process(20, 1, 9000, 0, 0)];
        let last = [process(10, 1, 500, 0, 1), process(11, 10, 200, 0, 1), process(20, 1, 9194, 0, 1)];
        let findings = findings([(machine(0, 0, 0), &first), (machine(395, 5, 600), &last)]);
        assert!(findings.unnamed_share.told().is_some_and(|share| *share < 0.01), "{findings:?}");
        let notes = Findings { quiet_cpus: vec![0], ..findings }.notes();
        let found = "noisy neighbour: `p20` (pid 20) took 97 % of a processor, on processor 1, which is measured; \
            stop it or choose another with --cpu 0";
        assert_eq!(notes, [found]);
    }

    #[test]
    fn steal_and_what_cannot_be_named_are_told() {
        let first = [process(10, 1, 0, 0, 1), process(30, 1, 0, 0, 0)];
        // Ours took 60 ticks and its ended children 40; a `make` took nothing itself, its ended children 90.
        let last = [process(10, 1, 60, 40, 1), process(30, 1, 0, 90, 0)];
        let notes = findings([(machine(0, 0, 0), &first), (machine(190, 10, 400), &last)]).notes();
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("45 % of a processor was used by processes too short-lived to name"), "{notes:?}");
        assert!(notes[0].contains("mostly children of `p30` (pid 30)"), "{notes:?}");
        assert!(notes[1].contains("gave 2.5 % of the processors' time"), "{notes:?}");
    }

    struct Busy(Child);

    impl Busy {
        fn start() -> Busy {
            Busy(Command::new("yes").stdout(Stdio::null()).spawn().expect("yes(1) runs"))
        }

        fn ticks(&self) -> u64 {
            let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
            Process::parse(&text).map_or(0, |process| process.time)
        }

        /// Until it has had that much more of a processor: how long that takes is the machine's affair.
        fn work(&self, ticks: u64) {
            let (wanted, deadline) = (self.ticks() + ticks, Instant::now() + Duration::from_secs(600));
            while self.ticks() < wanted {
                assert!(Instant::now() < deadline, "`yes` got no processor for ten minutes");
                // Nobody tells when a process has had its time: it is looked up, and not so often that looking takes it.
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// On a machine so loaded that a busy process gets less than a twentieth of a processor, it is watched again.
    #[test]
    fn a_real_neighbour_is_named_and_a_child_of_ours_is_none() {
        let busy = Busy::start();
        let is_busy = |neighbour: &Neighbour| neighbour.pid == busy.0.id();
        let deadline = Instant::now() + Duration::from_secs(600);
        loop {
            let (others, ours) = (Neighbours::watch(&[], &[0, 1]), Neighbours::watch(&[std::process::id()], &[]));
            busy.work(30);
            let (mut findings, ours) = (others.stop(), ours.stop());
            assert!(!ours.neighbours.iter().any(is_busy), "{ours:?}");
            // There may be so many that are greedier that it has no note of its own.
            findings.neighbours.retain(is_busy);
            if !findings.neighbours.is_empty() {
                let name = format!("`yes` (pid {})", busy.0.id());
                assert!(findings.notes().iter().any(|note| note.contains(&name)), "{findings:?}");
                return;
            }
            assert!(Instant::now() < deadline, "not named: {findings:?}");
        }
    }
}
