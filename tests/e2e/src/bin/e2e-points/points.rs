//! Discovers the instructions of a call, and kills a process at each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use dormouse_e2e::memory;
use dormouse_relay::Memory;

use crate::machine::{self, Flow, LAST_TARGET, STORE_COUNT};
use crate::sections::{self, Section};
use crate::session::{
    Board, FORBIDDEN, Fatal, NO_ROOM, Scene, Siblings, board, claim_count, fork, is_half_switched, state, victim,
    wait_until,
};
use crate::tracee::Tracee;

/// Deaths between two snapshots, which must reach back that far: fewer without rseq, where there are more streams.
const BATCHES: [u32; 2] = [2, 4];
/// Number of bursts that fill every page of a flight recorder, so that the next page is an old one.
const WARM_UP_BURSTS: u32 = 48;
/// Number of bursts that take at least two pages.
const OVERTAKING_BURSTS: u32 = 3;
/// Maximum number of instructions of a call.
const PATH_LEN_MAX: usize = 200_000;
/// Number of instructions that are examined after an abort: until the next attempt has begun.
const ABORT_LEN_MAX: usize = 400;
/// Maximum number of discoveries of the call until it finds the page full.
const DISCOVERIES_MAX: usize = 20;
/// Among the instructions at which the page switch is half done, one in this many is used in any case.
const HALF_STRIDE: usize = 4;
/// Minimum number of instructions at which the victim's own page switch is half done.
const HALF_LEN_MIN: usize = 40;
/// How often a point is tried: another process may interfere.
const TRIES_MAX: u32 = 3;

/// The `nth` entry of section `section`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    section: usize,
    nth: u32,
}

/// The `nth` entry of section `section` with a transaction of one kind: attempts of the other kind, which another process
/// may make fail any number of times, are not counted.
#[derive(Debug, Clone, Copy)]
struct Transaction {
    section: usize,
    nth: u32,
    /// Whether the transaction moves the state word to another page.
    is_switch: bool,
}

/// Point at which a process dies.
#[derive(Debug, Clone, Copy)]
enum Point {
    /// Before an instruction outside of sections, when it is reached for the `nth` time.
    Outside { ip: u64, nth: u32 },
    /// Before an instruction of a section.
    Inside { entry: Entry, ip: u64 },
    /// After `count` plain stores of a transaction.
    Stores { transaction: Transaction, count: u64 },
}

/// Record of a victim's execution.
#[derive(Debug, Default)]
struct Discovered {
    /// Addresses of instructions outside of sections, in order of execution.
    path: Vec<u64>,
    /// Indexes in the path of instructions before which the page switch was half done.
    half: BTreeSet<usize>,
    entries: Vec<Entry>,
    /// Transactions, with their numbers of stores.
    transactions: Vec<(Transaction, u64)>,
}

impl Discovered {
    /// Whether this call switched the page: half done in the middle of the call, for long, and neither before it nor
    /// after it.
    fn switches(&self) -> bool {
        let ends = [0, self.path.len().saturating_sub(1)];
        self.half.len() >= HALF_LEN_MIN && ends.iter().all(|end| !self.half.contains(end))
    }
}

/// Counts of reached points.
#[derive(Debug, Default)]
struct Reached {
    outside: u64,
    inside: u64,
    stores: u64,
    /// Deaths in the page switch's transaction.
    switch: u64,
    /// Deaths that left a page closed and the state word behind.
    half: u64,
    /// Aborts by the kernel, each followed by a death.
    aborted: u64,
    /// Victims that were overtaken by two pages on their stream, and continued.
    overtaken: u64,
    /// Points that were not reached in any try: instructions after a branch that is not taken.
    missed: u64,
    addresses: BTreeSet<u64>,
    section_addresses: BTreeSet<u64>,
}

struct Points {
    board: &'static Board,
    memory: Memory,
    siblings: Siblings,
    sections: Vec<Section>,
    by_arm: BTreeMap<u64, usize>,
    scene: Scene,
    /// Whether a victim is overtaken at a point and continues to the end of the call, instead of being killed.
    is_overtaken: bool,
    reached: Reached,
    deaths: u32,
    batch: u32,
    /// Process and number of finished events of the victims that have died since the last snapshot.
    recent: Vec<(libc::pid_t, u64)>,
}

impl Points {
    /// Starts the siblings.
    fn new(scene: Scene, is_overtaken: bool) -> Points {
        let board = board();
        let siblings = Siblings::start(board);
        let sections = sections::all();
        let by_arm = sections.iter().enumerate().map(|(index, section)| (section.arm, index)).collect();
        Points {
            board,
            memory: memory::innermost(),
            siblings,
            sections,
            by_arm,
            scene,
            is_overtaken,
            reached: Reached::default(),
            deaths: 0,
            batch: BATCHES[usize::from(!is_claimed())],
            recent: Vec::new(),
        }
    }

    /// Starts a victim and stops it before its last event. Returns its id too.
    fn prepare(&mut self) -> (libc::pid_t, Tracee) {
        self.siblings.wait();
        for _ in 0..10 {
            let pid = fork(|| victim(self.board, &self.memory, self.scene));
            match Tracee::await_first_stop(pid) {
                Ok(tracee) => {
                    self.siblings.go(1);
                    return (pid, tracee);
                }
                Err(FORBIDDEN) => {
                    self.siblings.end();
                    println!("cannot: a process may not be traced here");
                    std::process::exit(0);
                }
                // One of its events was lost.
                Err(NO_ROOM) => println!("victim {pid} {} 0", self.board.finished.load(Ordering::Acquire)),
                Err(code) => panic!("victim {pid} ends with {code}"),
            }
            self.await_burial();
        }
        panic!("no victim finds room");
    }

    /// Kills a victim, and makes a sibling continue after it.
    fn kill(&mut self, pid: libc::pid_t, tracee: Tracee) {
        tracee.kill();
        let finished = self.board.finished.load(Ordering::Acquire);
        println!("victim {pid} {finished} {}", self.board.lost.load(Ordering::Acquire));
        self.reached.half += u64::from(is_half_switched(&self.memory, self.board.stream.load(Ordering::Relaxed)));
        self.recent.push((pid, finished));
        self.siblings.go(0);
        self.siblings.wait();
        self.deaths += 1;
        if self.deaths.is_multiple_of(self.batch) {
            if self.memory.is_overwrite() {
                self.take_snapshot();
            }
            // Half of the streams must stay available to later processes.
            let geometry = self.memory.geometry();
            if claim_count(&self.memory) > (geometry.stream_count - geometry.cpu_count) as usize / 2 {
                self.await_burial();
            }
        }
    }

    /// Waits until the owner has taken back what dead victims claimed.
    fn await_burial(&self) {
        wait_until("claims of the dead are taken back", || claim_count(&self.memory) == 0);
    }

    /// Takes a snapshot of what is retained, and prints what must be in it.
    fn take_snapshot(&mut self) {
        let taken = dormouse::snapshot().expect("a snapshot");
        let [first, second] = self.siblings.finished();
        let recent: Vec<String> = self.recent.drain(..).map(|(pid, finished)| format!("{pid}={finished}")).collect();
        println!("snapshot {}\t{first} {second} {}", taken.dir.display(), recent.join(" "));
    }

    /// Executes one instruction, or a whole section.
    fn pass(&self, tracee: &Tracee) {
        match self.by_arm.get(&tracee.ip()) {
            Some(section) => {
                tracee.run_to(&self.sections[*section].exits).expect("a section is left by one of its exits");
            }
            None => tracee.step(),
        }
    }

    /// Runs to the `nth` execution of an instruction outside of sections. Returns false if the call ends before.
    fn run_to_nth(&self, tracee: &Tracee, ip: u64, nth: u32) -> bool {
        for _ in 0..nth {
            if tracee.run_to(&[ip]).is_none() {
                return false;
            }
            self.pass(tracee);
        }
        tracee.run_to(&[ip]).is_some()
    }

    /// Returns the address of the transaction that a section is about to commit, and whether that is a switch. `None` if
    /// the section commits none. The process is at the section's first instruction.
    fn transaction(&self, tracee: &Tracee, section: usize) -> Option<(u64, bool)> {
        let txn = machine::value(&tracee.registers(), self.sections[section].txn?);
        let stream = self.board.stream.load(Ordering::Relaxed);
        let state_word = (&raw const self.memory.stream(stream).state).addr() as u64;
        Some((txn, tracee.peek(txn + LAST_TARGET) == state_word))
    }

    /// Runs to a transaction, and returns its address. `None` if the call ends before.
    fn run_to_transaction(&self, tracee: &Tracee, wanted: Transaction) -> Option<u64> {
        let mut left = wanted.nth;
        loop {
            tracee.run_to(&[self.sections[wanted.section].arm])?;
            let (txn, is_switch) = self.transaction(tracee, wanted.section)?;
            if is_switch == wanted.is_switch {
                if left == 0 {
                    return Some(txn);
                }
                left -= 1;
            }
            self.pass(tracee);
        }
    }

    /// Runs into a section to its final store and continues there, so that the kernel leads to the abort handler.
    /// Returns false if that is not reached.
    fn abort_in(&self, tracee: &Tracee, entry: Entry) -> bool {
        let section = &self.sections[entry.section];
        self.run_to_nth(tracee, section.arm, entry.nth)
            && tracee.run_to(&[section.last()]).is_some()
            && tracee.run_to(&[section.abort]).is_some()
    }

    /// Leads a victim through the call, or from an abort on, and records the instructions.
    fn discover(&mut self, abort: Option<Entry>) -> Option<Discovered> {
        let (pid, tracee) = self.prepare();
        let mut found = Discovered::default();
        let is_there = abort.is_none_or(|entry| self.abort_in(&tracee, entry));
        let path_len_max = if abort.is_some() { ABORT_LEN_MAX } else { PATH_LEN_MAX };
        let mut entered = BTreeMap::<usize, u32>::new();
        while is_there && found.path.len() < path_len_max {
            let ip = tracee.ip();
            // A breakpoint of the program's own.
            if tracee.is_at_breakpoint() {
                break;
            }
            if abort.is_none() && is_half_switched(&self.memory, self.board.stream.load(Ordering::Relaxed)) {
                found.half.insert(found.path.len());
            }
            found.path.push(ip);
            if let Some(&section) = self.by_arm.get(&ip) {
                let nth = entered.entry(section).or_default();
                let entry = Entry { section, nth: *nth };
                *nth += 1;
                found.entries.push(entry);
                if let Some((txn, is_switch)) = self.transaction(&tracee, section) {
                    let is_same =
                        |(known, _): &&(Transaction, u64)| (known.section, known.is_switch) == (section, is_switch);
                    let nth = found.transactions.iter().filter(is_same).count() as u32;
                    let transaction = Transaction { section, nth, is_switch };
                    found.transactions.push((transaction, tracee.peek(txn + STORE_COUNT)));
                }
            }
            self.pass(&tracee);
        }
        assert!(found.path.len() < PATH_LEN_MAX, "a call does not end");
        self.kill(pid, tracee);
        is_there.then_some(found)
    }

    /// Leads a victim to a point and kills it there. Returns false if the point was not reached.
    fn die_at(&mut self, abort: Option<Entry>, point: Point) -> bool {
        let (pid, tracee) = self.prepare();
        let mut is_there = abort.is_none_or(|entry| self.abort_in(&tracee, entry));
        if is_there {
            self.reached.aborted += u64::from(abort.is_some());
            is_there = match point {
                // The point to which the abort has led.
                Point::Outside { ip, nth: 0 } if tracee.ip() == ip => true,
                Point::Outside { ip, nth } => self.run_to_nth(&tracee, ip, nth),
                Point::Inside { entry, ip } => {
                    self.run_to_nth(&tracee, self.sections[entry.section].arm, entry.nth)
                        && tracee.run_to(&[ip]).is_some()
                }
                Point::Stores { transaction, count } => {
                    self.run_to_transaction(&tracee, transaction).is_some_and(|txn| {
                        // After an interruption, it may be at another transaction by now, with fewer stores.
                        let has_them = tracee.peek(txn + STORE_COUNT) >= count;
                        if has_them {
                            tracee.poke(txn + STORE_COUNT, count);
                        }
                        has_them && tracee.run_to(&[self.sections[transaction.section].last()]).is_some()
                    })
                }
            };
        }
        let ip = tracee.ip();
        if is_there && self.is_overtaken {
            self.overtake(&tracee);
        }
        self.kill(pid, tracee);
        if is_there {
            self.reached.addresses.insert(ip);
            match point {
                Point::Outside { .. } => self.reached.outside += 1,
                Point::Inside { .. } => {
                    self.reached.inside += 1;
                    self.reached.section_addresses.insert(ip);
                }
                Point::Stores { transaction, .. } => {
                    self.reached.stores += 1;
                    self.reached.switch += u64::from(transaction.is_switch);
                }
            }
        }
        is_there
    }

    /// Makes the sibling on the same CPU fill two pages before the victim continues to the end of the call; the
    /// victim's page is that old then.
    fn overtake(&mut self, tracee: &Tracee) {
        let stream = self.board.stream.load(Ordering::Relaxed);
        let before = state(&self.memory, stream).seq;
        for _ in 0..OVERTAKING_BURSTS {
            self.siblings.go(0);
            self.siblings.wait();
        }
        let passed = state(&self.memory, stream).seq.wrapping_sub(before);
        self.reached.overtaken += u64::from(passed >= 2);
        assert_eq!(tracee.run_to(&[]), None, "to the breakpoint behind the call");
    }

    /// Asserts that each stream has at most one page that it writes to and a spare: any other drawn page would have no
    /// owner, and be lost for good.
    fn check_drawn(&self) {
        let drawn = self.memory.census(|_| 0).drawn;
        let streams = self.memory.used_streams().count();
        assert!(drawn as usize <= 2 * streams, "{drawn} pages are drawn by {streams} streams");
    }

    fn die_at_each(&mut self, abort: Option<Entry>, points: &[Point], tries: u32) {
        for point in points {
            if !(0..tries).any(|_| self.die_at(abort, *point)) {
                self.reached.missed += 1;
            }
        }
    }

    /// Dies at the points of one call.
    fn run(&mut self, choice: Choice) {
        // Without rseq, a sibling may have the stream with the full page for itself at that moment. Then the event goes
        // to another stream, and the observed switch may be the sibling's.
        let found = (0..DISCOVERIES_MAX).find_map(|_| {
            let found = self.discover(None).expect("nothing is in the way");
            let is_elsewhere = self.scene.is_full && is_claimed() && !found.switches();
            Some(found).filter(|_| !is_elsewhere)
        });
        let found = found.expect("a full page is switched");
        println!("path {}", found.path.len());
        self.die_at_each(None, &choice.of(&found), TRIES_MAX);
        if !choice.sections {
            return;
        }
        for entry in &found.entries {
            let instructions = &self.sections[entry.section].instructions;
            let inside: Vec<Point> = instructions.iter().map(|ip| Point::Inside { entry: *entry, ip: *ip }).collect();
            // Instructions after a branch are not reached in any try.
            self.die_at_each(None, &inside, 1);
        }
        // A victim that dies in a transaction has fewer stores to make, so it must not continue to the last one.
        let transactions = if self.is_overtaken { Vec::new() } else { found.transactions };
        for (transaction, count) in transactions {
            let stores: Vec<Point> = (0..=count).map(|count| Point::Stores { transaction, count }).collect();
            self.die_at_each(None, &stores, TRIES_MAX);
        }
        // The last entry of each section is aborted.
        let last: BTreeMap<usize, Entry> = found.entries.iter().map(|entry| (entry.section, *entry)).collect();
        for entry in last.into_values() {
            if let Some(after) = self.discover(Some(entry)) {
                self.die_at_each(Some(entry), &choice.of(&after), TRIES_MAX);
            }
        }
    }
}

impl Points {
    /// Returns the number of instructions of a record function, from its first to its return, for an event with one
    /// word that finds room. `None` if it is not written by a section.
    fn record_len(&mut self) -> Option<usize> {
        let found = self.discover(None).expect("nothing is in the way");
        let entry = found.entries.first()?;
        let section = &self.sections[entry.section];
        let arm = found.path.iter().position(|ip| *ip == section.arm)?;
        let call = found.path[..arm].iter().rposition(|ip| machine::flow(*ip) == Flow::Call)?;
        let end = arm + found.path[arm..].iter().position(|ip| machine::flow(*ip) == Flow::Return)?;
        let is_straight = section.exits.iter().all(|exit| !section.instructions.contains(exit));
        assert!(is_straight && found.entries.len() == 1, "another way than that of a plain record");
        Some(end - call + section.instructions.len())
    }
}

/// Selection of points.
#[derive(Debug, Clone, Copy)]
struct Choice {
    /// Whether to take each execution of an instruction, or only the first.
    all: bool,
    /// Distance between the selected instructions outside of sections.
    stride: usize,
    /// Index of the first selected instruction.
    offset: usize,
    /// Whether to include all instructions in sections, all stores of transactions, and the instructions after aborts.
    sections: bool,
}

impl Choice {
    /// Returns the selected points. Those at which the page switch was half done are closer together.
    fn of(self, found: &Discovered) -> Vec<Point> {
        let mut seen = BTreeMap::<u64, u32>::new();
        let (mut count, mut half_count) = (0, 0);
        let mut points = Vec::new();
        for (place, ip) in found.path.iter().enumerate() {
            let nth = *seen.entry(*ip).and_modify(|nth| *nth += 1).or_default();
            let is_half = found.half.contains(&place);
            if !(self.all || nth == 0 || is_half) {
                continue;
            }
            let is_next = count % self.stride == self.offset;
            count += 1;
            half_count += usize::from(is_half);
            if is_next || self.sections && is_half && half_count % HALF_STRIDE == 0 {
                points.push(Point::Outside { ip: *ip, nth });
            }
        }
        points
    }
}

/// Whether writers claim their streams because there is no rseq.
fn is_claimed() -> bool {
    std::env::var_os(dormouse_abi::environment::ENV_NO_RSEQ).is_some()
}

/// `e2e-points die|wait step|filled|big fits|full all|first STRIDE OFFSET sections|-`, or `e2e-points count`, which
/// only prints how many instructions a record has.
pub fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let fate = arguments.remove(0);
    let is_overtaken = match fate.as_str() {
        "count" => {
            let scene = Scene { fatal: Fatal::Word, is_full: false };
            let mut points = Points::new(scene, false);
            if let Some(len) = points.record_len() {
                println!("instructions {len}");
            }
            points.siblings.end();
            return;
        }
        "die" => false,
        "wait" => true,
        other => panic!("no fate `{other}`"),
    };
    let scene = Scene {
        fatal: match arguments[0].as_str() {
            "step" => Fatal::Step,
            "filled" => Fatal::Filled,
            "big" => Fatal::Big,
            other => panic!("no event `{other}`"),
        },
        is_full: arguments[1] == "full",
    };
    let number = |index: usize| arguments[index].parse::<usize>().expect("a number");
    let choice = Choice {
        all: arguments[2] == "all",
        stride: number(3),
        offset: number(4),
        sections: arguments[5] == "sections",
    };
    let mut points = Points::new(scene, is_overtaken);
    let bursts = if points.memory.is_overwrite() { WARM_UP_BURSTS } else { 1 };
    for _ in 0..bursts {
        points.siblings.go(0);
        points.siblings.go(1);
        points.siblings.wait();
    }
    points.run(choice);
    if is_overtaken {
        points.check_drawn();
    }
    let Points { reached, siblings, deaths, .. } = points;
    let finished = siblings.finished();
    for (pid, finished) in siblings.end().into_iter().zip(finished) {
        println!("sibling {pid} {finished}");
    }
    println!("outside {}", reached.outside);
    println!("inside {}", reached.inside);
    println!("stores {}", reached.stores);
    println!("switch {}", reached.switch);
    println!("half {}", reached.half);
    println!("aborted {}", reached.aborted);
    println!("overtaken {}", reached.overtaken);
    println!("missed {}", reached.missed);
    println!("addresses {}", reached.addresses.len());
    println!("section addresses {}", reached.section_addresses.len());
    println!("deaths {deaths}");
}
