//! Watches a command while it runs and as each of its processes ends.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::buffers::{Buffer, Buffers, Limits};
use crate::census::{Allocation, Census, CodePlace, Names, Pages, Surveyor, unseen_by};
use crate::faults::Faults;
use crate::populate::{Fix, Populated};
use crate::signals::CaughtSignals;
use crate::speed::Speed;
use crate::trace::{Event, Started, Supervision, supervise};
use crate::{KernelInterface, PagesError, process};

/// Maximum number of samples that are kept. When there are more, every other one is dropped.
const SAMPLES_MAX: usize = 2048;
/// Divisor of a CPU's time: taking samples uses at most this part of it.
const LOOKING_PART: u32 = 20;
/// Maximum number of other processes that are reported: those that touched most.
const OTHERS_MAX: usize = 100;

/// Options for running and watching a command.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Interfaces by which a census may be made. The first that the kernel supports is used.
    pub interfaces: Vec<KernelInterface>,
    /// Time from one sample to the next; longer if a sample takes more than a twentieth of it. `None`: censuses are
    /// taken only as each process ends.
    pub period: Option<Duration>,
    /// Whether `ptrace(2)` is used, so that a census is taken as each process ends. Otherwise there are only samples,
    /// even if there is no period.
    pub is_traced: bool,
    /// Action at each call by which the command and its descendants obtain memory; `None`: they are not stopped there.
    pub fix: Option<Fix>,
    /// Whether page faults are recorded, to tell which instruction read each buffer first; with a fix also which call obtained
    /// it.
    pub is_explained: bool,
    /// Whether the effect of the zero page on speed is measured at the end, if samples were taken and a buffer was found.
    pub is_speed_measured: bool,
    /// Beginning of the measured time, counted from the command's start.
    pub from: Duration,
    /// End of the measured time; `None`: the command's end.
    pub until: Option<Duration>,
    /// Limits beyond which a buffer is reported.
    pub limits: Limits,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            interfaces: KernelInterface::ALL.into(),
            period: None,
            is_traced: true,
            fix: None,
            is_explained: false,
            is_speed_measured: true,
            from: Duration::ZERO,
            until: None,
            limits: Limits::default(),
        }
    }
}

impl RunOptions {
    /// A sampling period that disturbs little and misses little.
    pub const PERIOD: Duration = Duration::from_millis(10);
}

/// Counts over all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Page faults that the kernel answered from memory: first touches, first writes to pages that were read, and pages
    /// of files.
    pub faults_minor: u64,
    /// Page faults that waited for a disk.
    pub faults_major: u64,
    /// First touches of the processes' own memory, a lower bound. It excludes pages that came and went between two
    /// looks, and pages that a forked child had at its first look.
    pub first_touches: u64,
    /// Number of bytes that were touched for the first time, with these exclusions.
    pub touched: u64,
}

impl Counts {
    fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            faults_minor: self.faults_minor.saturating_sub(earlier.faults_minor),
            faults_major: self.faults_major.saturating_sub(earlier.faults_major),
            first_touches: self.first_touches.saturating_sub(earlier.first_touches),
            touched: self.touched.saturating_sub(earlier.touched),
        }
    }
}

/// A look at all processes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// Time, in milliseconds from the command's start.
    pub time_ms: f64,
    /// Number of processes.
    pub process_count: usize,
    /// Kinds of pages of their memory. Memory that several processes map counts for each.
    pub pages: Pages,
    /// Counts from the command's start to this moment.
    pub counts: Counts,
}

/// A process that the command started, at its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndedProcess {
    /// Id of the process.
    pub pid: u32,
    /// Name of the process.
    pub command: String,
    /// Kinds of pages of its memory.
    pub total: Pages,
}

/// Result of a command, with its memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Run {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Exit code of the command; 128 plus the signal's number if a signal ended it.
    pub exit_code: i32,
    /// Time from its start to its end, in milliseconds.
    pub duration_ms: f64,
    /// Census of the command's own process at its end; `None` if it was not taken.
    pub census: Option<Census>,
    /// Census of the process with most of the zero page, among those in the measured time in which a buffer was found.
    pub worst: Option<Census>,
    /// Other processes, those that touched most memory first; at most a hundred.
    pub others: Vec<EndedProcess>,
    /// Variables and mappings that were the zero page in the measured time, the worst first; at most a thousand.
    pub buffers: Vec<Buffer>,
    /// Limits beyond which a buffer counts as found.
    pub limits: Limits,
    /// Beginning and end of the measured time, in milliseconds from the command's start.
    pub measured_ms: [f64; 2],
    /// Counts in the measured time.
    pub measured: Counts,
    /// Counts from the command's start to its end.
    pub whole: Counts,
    /// Requested sampling period, in milliseconds; `None` if there was none.
    pub period_ms: Option<f64>,
    /// Number of samples.
    pub sample_count: usize,
    /// Some of the samples, at equal distances; all, if there were few enough.
    pub samples: Vec<Sample>,
    /// Effect of the zero page on speed on this machine; only if a buffer was found.
    pub speed: Option<Speed>,
    /// Limits of the observation, one line each.
    pub unseen: Vec<String>,
    /// Whether a buffer was found beyond the limits.
    pub verdict: Verdict,
    /// Largest number of bytes that were the zero page at one time, over all processes.
    pub zero_max: u64,
    /// Number of entries of page tables that led to the zero page at that time.
    pub zero_entries_max: u64,
    /// Memory that was populated, with [`Fix::Populate`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub populated: Option<Populated>,
}

/// Whether a command has read buffers from the zero page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A buffer was found.
    Found,
    /// No buffer was found, as far as was seen.
    NotFound,
    /// The zero page cannot be distinguished from other memory here, or no census of the command was taken.
    #[default]
    Unknown,
}

/// Runs `command` (program and arguments) to its end. It keeps this process's input and output, and its signals are its
/// own. Signals that another process sends to this process are passed on to it.
///
/// # Errors
/// [`PagesError::Start`], [`PagesError::Signals`]. Later events of the command are not errors.
pub fn run(command: &[OsString], options: &RunOptions) -> Result<Run, PagesError> {
    let (program, arguments) = match command {
        [program, arguments @ ..] => (program.clone(), arguments),
        [] => (OsString::new(), command),
    };
    let caught = CaughtSignals::new().map_err(PagesError::Signals)?;
    let mut process = Command::new(&program);
    process.args(arguments);
    let (sender, events) = channel();
    let supervision =
        Supervision { is_traced: options.is_traced, fix: options.fix, is_explained: options.is_explained };
    let supervisor = std::thread::spawn(move || supervise(process, supervision, &sender));
    let failed = |error| PagesError::Start { program: program.to_string_lossy().into_owned(), error };
    let started = match events.recv() {
        Ok(Event::Started(started)) => started,
        Ok(Event::Failed(error)) => return Err(failed(error)),
        _ => return Err(failed(std::io::Error::other("it ended before it began"))),
    };
    let forwarder = caught.pass_on_to(started.pid);
    let mut watcher = Watcher::new(started, options);
    watcher.run.command = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let status = watcher.watch(&events).map_err(failed)?;
    watcher.duration_ms = watcher.time_ms();
    // The supervisor may go on until the command's descendants have ended; no event is handled any more.
    drop(events);
    let _ = supervisor.join();
    drop(forwarder);
    Ok(watcher.finish(status))
}

/// The memory of a process from an exec or fork to the next exec or to its end.
#[derive(Debug, Default)]
struct Space {
    /// The last census.
    census: Option<Census>,
    buffers: Buffers,
    /// First touches and bytes touched, as of the last census.
    touched: Option<[u64; 2]>,
    /// Addresses that known functions have obtained.
    allocations: Vec<Allocation>,
    /// Whether it shares its memory with another process that is watched anyway.
    is_shared: bool,
    /// Whether its last census was taken as the process ended. From then on the kernel may take the memory away.
    is_ending: bool,
}

struct Watcher {
    main: u32,
    options: RunOptions,
    is_traced: bool,
    surveyor: Surveyor,
    start: Instant,
    /// Memory of each live process.
    spaces: BTreeMap<u32, Space>,
    /// Faults of each live process; key 0 has the sum over all that have ended.
    faults: BTreeMap<u32, [u64; 2]>,
    /// Faults of the command's process before its exec.
    faults_before: [u64; 2],
    /// First touches and bytes touched, over all processes.
    touched: [u64; 2],
    /// Counts at the beginning and at the end of the measured time.
    edges: [Option<Counts>; 2],
    /// Distance of kept samples: one in this many is kept.
    sample_step: usize,
    buffers: Buffers,
    refused: BTreeSet<String>,
    /// Page faults, if they are recorded.
    recorded: Option<Faults>,
    /// Time from the command's start to its end, in milliseconds.
    duration_ms: f64,
    /// The result so far.
    run: Run,
}

impl Watcher {
    fn new(started: Started, options: &RunOptions) -> Watcher {
        let unseen = started.untraced.as_ref().map(|reason| {
            format!(
                "the command is not traced ({reason}): what it did after the last sample is missing, and so are programs that ran between two samples"
            )
        });
        let unfixed = started.unfixed.as_ref().map(|reason| match options.fix {
            Some(Fix::Populate) => format!("no memory is populated: {reason}"),
            _ => format!("where the command obtains memory and gives it back: {reason}"),
        });
        let recorded = started.recorded.transpose();
        let unrecorded = recorded.as_ref().err().map(|error| {
            format!("which instruction read first: page faults cannot be recorded ({error}); kernel.perf_event_paranoid must be 2 or less")
        });
        Watcher {
            main: started.pid,
            options: options.clone(),
            is_traced: started.untraced.is_none(),
            surveyor: Surveyor::new(&options.interfaces),
            start: Instant::now(),
            spaces: BTreeMap::from([(started.pid, Space { touched: Some([0; 2]), ..Space::default() })]),
            faults: BTreeMap::new(),
            faults_before: started.faults,
            touched: [0; 2],
            // At the very beginning all counts are zero.
            edges: [options.from.is_zero().then(Counts::default), None],
            sample_step: 1,
            buffers: Buffers::default(),
            refused: BTreeSet::new(),
            recorded: recorded.ok().flatten(),
            duration_ms: 0.0,
            run: Run {
                limits: options.limits,
                period_ms: options.period.map(milliseconds),
                unseen: unseen.into_iter().chain(unfixed).chain(unrecorded).collect(),
                ..Run::default()
            },
        }
    }

    /// Returns the beginning and the end of the measured time.
    fn bounds(&self) -> [Option<Duration>; 2] {
        [Some(self.options.from), self.options.until]
    }

    /// Handles events and takes samples until the command has ended.
    fn watch(&mut self, events: &Receiver<Event>) -> std::io::Result<ExitStatus> {
        // Without tracing, no event tells when to look.
        let period = self.options.period.or((!self.is_traced).then_some(RunOptions::PERIOD));
        let mut next = period.map(|period| self.start + period);
        loop {
            let bounds = self.bounds().into_iter().zip(self.edges);
            let ahead = bounds.filter(|(_, passed)| passed.is_none() && period.is_some());
            let edge = ahead.filter_map(|(bound, _)| Some(self.start + bound?)).min();
            let event = match next.into_iter().chain(edge).min() {
                Some(when) => events.recv_timeout(when.saturating_duration_since(Instant::now())),
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Ended(status, populated)) => {
                    self.run.populated = populated.filter(|_| self.options.fix == Some(Fix::Populate));
                    return Ok(status);
                }
                Ok(Event::Failed(error)) => return Err(error),
                Ok(event) => self.event(event),
                Err(RecvTimeoutError::Timeout) => {
                    let (before, reading) = (Instant::now(), self.surveyor.reading);
                    self.sample();
                    // An object file is read only once, so this time says nothing about later samples.
                    let cost = before.elapsed().saturating_sub(self.surveyor.reading - reading);
                    next = period.map(|period| before + period.max(LOOKING_PART * cost));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(std::io::Error::other("nobody waits for it any more"));
                }
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            // A quick child may execute another program before its parent's fork is reported.
            Event::Forked { pid, is_shared } => {
                self.spaces.entry(pid).or_insert(Space { is_shared, ..Space::default() });
            }
            Event::Execed { pid } => {
                self.close(pid, false);
                self.spaces.insert(pid, Space { touched: Some([0; 2]), ..Space::default() });
            }
            Event::Exiting { pid, thread, answer } => {
                if process::ends_with(pid, thread) {
                    let is_shared = self.spaces.get(&pid).is_some_and(|space| space.is_shared);
                    if !is_shared {
                        self.look(pid, thread, Names::All);
                    }
                    if let Some(space) = self.spaces.get_mut(&pid) {
                        space.is_ending = true;
                    }
                    self.count();
                }
                drop(answer);
            }
            Event::GivingBack { pid, thread, answer } => {
                self.look(pid, thread, Names::ButStacks);
                self.count();
                drop(answer);
            }
            Event::Mapping { thread, answer } => {
                // A supervisor that has ended does not wait any more.
                let _ = answer.send(self.surveyor.allocators(thread));
            }
            Event::Mapped { pid, thread, range, address, answer } => {
                // The call is before that address, and may be the last instruction of its function.
                let place = self.surveyor.place(thread, address - 1);
                let place = place.map(|place| CodePlace { offset: place.offset + 1, ..place });
                let allocations = &mut self.spaces.entry(pid).or_default().allocations;
                allocations.retain(|old| old.range.end <= range.start || range.end <= old.range.start);
                allocations.extend(place.map(|place| Allocation { range, place }));
                drop(answer);
            }
            Event::Gone { pid } => self.close(pid, true),
            // `run` and `watch` handle these.
            Event::Started(_) | Event::Failed(_) | Event::Ended(..) => {}
        }
    }

    fn time_ms(&self) -> f64 {
        milliseconds(self.start.elapsed())
    }

    fn is_measured(&self) -> bool {
        let now = self.start.elapsed();
        now >= self.options.from && self.edges[1].is_none()
    }

    /// Takes a census of every process.
    fn sample(&mut self) {
        if !self.is_traced {
            let family = process::family(self.main);
            let is_gone = |pid: &u32| !family.contains(pid) && *pid != self.main;
            let gone: Vec<u32> = self.spaces.keys().copied().filter(is_gone).collect();
            gone.into_iter().for_each(|pid| self.close(pid, true));
            for pid in family {
                self.spaces.entry(pid).or_default();
            }
        }
        let alive = self.spaces.iter().filter(|(_, space)| !space.is_shared && !space.is_ending);
        let pids: Vec<u32> = alive.map(|(pid, _)| *pid).collect();
        for pid in pids {
            self.look(pid, pid, Names::ButStacks);
        }
        self.count();
    }

    /// Takes a census of a process, if possible, and updates the counts of faults and touches.
    fn look(&mut self, pid: u32, task: u32, names: Names) {
        let (time_ms, is_measured) = (self.time_ms(), self.is_measured());
        let mut faults = process::faults(task);
        if let Some(faults) = faults.as_mut().filter(|_| pid == self.main) {
            for (faults, before) in faults.iter_mut().zip(self.faults_before) {
                *faults = faults.saturating_sub(before);
            }
        }
        if let Some(faults) = faults {
            self.faults.insert(pid, faults);
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.update();
        }
        let census = match self.surveyor.census(pid, task, names) {
            Ok(census) => {
                let space = self.spaces.get(&pid);
                Census { allocations: space.map(|space| space.allocations.clone()).unwrap_or_default(), ..census }
            }
            // It has ended, perhaps before its parent's fork was reported, or its end will be reported.
            Err(PagesError::NoProcess(_)) if pid != self.main => return self.close(pid, true),
            Err(PagesError::NoProcess(_) | PagesError::NoMemory(_)) => return,
            Err(error) => {
                self.refused.insert(error.to_string());
                return;
            }
        };
        let space = self.spaces.entry(pid).or_default();
        let touched = [census.total.touches(), census.total.touched()];
        // A child has not touched the memory that it inherits from its parent.
        let before = space.touched.replace(touched).unwrap_or(touched);
        for (all, (now, before)) in self.touched.iter_mut().zip(touched.into_iter().zip(before)) {
            *all += now.saturating_sub(before);
        }
        if is_measured {
            let has_found = space.buffers.enter(&census, time_ms, &self.options.limits);
            if let Some(recorded) = &self.recorded {
                let surveyor = &mut self.surveyor;
                space
                    .buffers
                    .explain(&census, |zero| surveyor.place(task, recorded.first_reader(pid, zero.into_iter())?));
            }
            let zero_before = self.run.worst.as_ref().map_or(0, |worst| worst.total.zero);
            if has_found && census.total.zero > zero_before {
                self.run.worst = Some(census.clone());
            }
        }
        space.census = Some(census);
    }

    fn counts(&self) -> Counts {
        let sum = |of: usize| self.faults.values().map(|faults| faults[of]).sum();
        let [first_touches, touched] = self.touched;
        Counts { faults_minor: sum(0), faults_major: sum(1), first_touches, touched }
    }

    /// Records the counts at the edges of the measured time, and a sample.
    fn count(&mut self) {
        let (now, counts) = (self.start.elapsed(), self.counts());
        let bounds = self.bounds();
        for (passed, bound) in self.edges.iter_mut().zip(bounds) {
            if passed.is_none() && bound.is_some_and(|bound| now >= bound) {
                *passed = Some(counts);
            }
        }
        let mut pages = Pages::default();
        let censuses = self.spaces.values().filter_map(|space| space.census.as_ref());
        censuses.for_each(|census| pages.add(&census.total));
        if self.is_measured() && pages.zero > self.run.zero_max {
            (self.run.zero_max, self.run.zero_entries_max) = (pages.zero, pages.zero_entries());
        }
        let Run { samples, sample_count, .. } = &mut self.run;
        if sample_count.is_multiple_of(self.sample_step) {
            let process_count = self.spaces.len();
            samples.push(Sample { time_ms: milliseconds(now), process_count, pages, counts });
        }
        *sample_count += 1;
        if samples.len() >= SAMPLES_MAX {
            let mut index = 0;
            samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.sample_step *= 2;
        }
    }

    /// Finishes the memory of a process; the process itself may continue.
    fn close(&mut self, pid: u32, is_gone: bool) {
        if is_gone && let Some([minor, major]) = self.faults.remove(&pid) {
            let ended = self.faults.entry(0).or_default();
            ended[0] += minor;
            ended[1] += major;
        }
        let Some(Space { census, buffers, .. }) = self.spaces.remove(&pid) else { return };
        self.buffers.append(buffers);
        let Some(census) = census else { return };
        if pid == self.main {
            self.run.census = Some(census);
            return;
        }
        let others = &mut self.run.others;
        others.push(EndedProcess { pid, command: census.command, total: census.total });
        others.sort_by_key(|other| std::cmp::Reverse(other.total.touched()));
        others.truncate(OTHERS_MAX);
    }

    fn finish(mut self, status: ExitStatus) -> Run {
        let (end_ms, whole) = (self.duration_ms, self.counts());
        self.spaces.keys().copied().collect::<Vec<_>>().into_iter().for_each(|pid| self.close(pid, false));
        let from_ms = milliseconds(self.options.from);
        let until_ms = self.options.until.map_or(end_ms, |until| milliseconds(until).min(end_ms));
        let [begin, end] = self.edges.map(|edge| edge.unwrap_or(whole));
        let mut run = self.run;
        if from_ms >= end_ms {
            run.unseen.push(format!(
                "the measured time should have begun after {from_ms:.0} ms, but the command had ended before"
            ));
        }
        run.unseen.extend(self.refused);
        run.unseen.extend(self.surveyor.interface.and_then(unseen_by));
        if let Some(lost_count) = self.recorded.map(|recorded| recorded.lost_count()).filter(|count| *count > 0) {
            run.unseen.push(format!("which instruction read first: {lost_count} page faults were not recorded; a shorter --period records more"));
        }
        if run.census.is_none() {
            run.unseen.push("the command's own process: it ended before its first sample".into());
        }
        run.exit_code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
        run.duration_ms = end_ms;
        run.buffers = self.buffers.into_vec();
        run.measured_ms = [from_ms.min(end_ms), until_ms];
        run.measured = end.since(&begin);
        run.whole = whole;
        let found = run.buffers.iter().filter(|buffer| buffer.is_found).max_by_key(|buffer| buffer.zero);
        run.verdict = match &run.census {
            _ if found.is_some() => Verdict::Found,
            Some(census) if census.sees_zero => Verdict::NotFound,
            _ => Verdict::Unknown,
        };
        if let Some(buffer) = found.filter(|_| run.period_ms.is_some() && self.options.is_speed_measured) {
            match Speed::measure(buffer.zero, buffer.is_huge) {
                Ok(speed) => run.speed = Some(speed),
                Err(reason) => run.unseen.push(format!("how much faster it seems: {reason}")),
            }
        }
        run
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
