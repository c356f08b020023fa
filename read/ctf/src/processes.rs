//! The processes of traces: which program a process id stood for, at which time, and under which name.
//!
//! In Dormouse's traces the state stream says when a process joined the session, became another program, or got another
//! name. One process id can stand for several programs: after `exec`, if the system gives the id to another process, or
//! in several containers. In other tracers' traces the events themselves may have the name.
//!
//! ```text
//!   records of the state stream ─▶ Processes ─▶ the program that is current, as events are read in order
//!                                      └─▶ History ─▶ the program at any time, for readers of parts
//! ```
//!
//! # Memory
//! Bounded by the number of process ids, and by [`Processes::limit`]. With the past, bounded by the number of programs
//! that the caller gives.

use std::collections::{BTreeMap, HashMap};

use dormouse_filter::{Kind, Name, Part};
use dormouse_format::StateRecord;

use crate::hash::QuickMap;

/// Programs of processes, as known from the records so far. The caller identifies traces by numbers.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    /// Programs in the order in which they joined.
    programs: Vec<Program>,
    /// Index of the current program, by trace and process id.
    current: QuickMap<(usize, Option<u32>), u32>,
    /// Index of the program, by trace and the process's number in the session.
    numbers: HashMap<(usize, u32), u32>,
    /// Indices of the programs that events named, by trace and process id.
    named: HashMap<(usize, Option<u32>), Vec<u32>>,
    /// Names of the threads that have one of their own, by trace and process id, then by thread id.
    threads: QuickMap<(usize, u32), BTreeMap<u32, Box<str>>>,
    /// Maximum number of programs, if those that were replaced are kept.
    past_max: Option<usize>,
    /// Number of bytes by which programs and names may still grow; `None` means no limit.
    room_bytes: Option<usize>,
    names_not_kept: u64,
}

/// A program that a process executes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Number of its trace.
    trace: usize,
    /// Process id that its events carry.
    pub pid: Option<u32>,
    /// Time at which it joined, in ticks.
    since: u64,
    /// Last name that it gave itself; `None` if the name is unknown or was not kept.
    name: Option<Box<str>>,
    /// Path of the executable; empty if it is unknown, or if replaced programs are not kept.
    path: Box<str>,
    /// Where the processes with this id run, each with its number in the session: one for each container.
    places: Vec<(u32, ProcessPlace)>,
}

/// Where a process runs. What is not known is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProcessPlace {
    uid: u32,
    user: Box<str>,
    cgroup: Box<str>,
    container: Box<str>,
}

/// User id of a process of which nothing is known.
const UID_UNKNOWN: u32 = u32::MAX;

/// A property of where a process runs, which has a name in filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessProperty {
    /// Effective user id.
    Uid,
    /// Name of that user.
    User,
    /// Path of the control group.
    Cgroup,
    /// Id of the container; empty if the control group is not one of a container.
    Container,
}

impl ProcessProperty {
    /// Names of the properties.
    pub const NAMES: [&str; 4] = ["uid", "user", "cgroup", "container"];

    /// Returns the property that a name stands for: `user`, or `context.user`.
    pub fn of(name: &Name) -> Option<ProcessProperty> {
        let word = match name.parts.as_slice() {
            [Part::Member(word)] => word,
            [Part::Member(scope), Part::Member(word)] if scope == "context" => word,
            _ => return None,
        };
        use ProcessProperty::{Cgroup, Container, Uid, User};
        let at = ProcessProperty::NAMES.iter().position(|name| name == word)?;
        Some([Uid, User, Cgroup, Container][at])
    }

    /// Returns the kind of its values.
    pub fn kind(self) -> Kind {
        if self == ProcessProperty::Uid { Kind::Number } else { Kind::Text }
    }
}

/// Value of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PropertyValue<'a> {
    Number(u32),
    Text(&'a str),
}

impl ProcessPlace {
    fn get(&self, property: ProcessProperty) -> Option<PropertyValue<'_>> {
        let ProcessPlace { uid, user, cgroup, container } = self;
        let (is_known, value) = match property {
            ProcessProperty::Uid => (*uid != UID_UNKNOWN, PropertyValue::Number(*uid)),
            ProcessProperty::User => (!user.is_empty(), PropertyValue::Text(user)),
            ProcessProperty::Cgroup => (!cgroup.is_empty(), PropertyValue::Text(cgroup)),
            // It is found in the control group.
            ProcessProperty::Container => (!cgroup.is_empty(), PropertyValue::Text(container)),
        };
        is_known.then_some(value)
    }

    fn size_bytes(&self) -> usize {
        PLACE_BYTES + self.user.len() + self.cgroup.len() + self.container.len()
    }
}

/// Where a process runs, as far as its id tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessPlaces<'a>(&'a [(u32, ProcessPlace)]);

impl<'a> ProcessPlaces<'a> {
    /// Returns a property; `None` if it is not known, or if processes in several containers have this id and differ
    /// in it.
    pub fn get(&self, property: ProcessProperty) -> Option<PropertyValue<'a>> {
        let mut values = self.0.iter().map(|(_, place)| place.get(property));
        let value = values.next()??;
        values.all(|other| other == Some(value)).then_some(value)
    }
}

impl Program {
    /// Index of its trace.
    pub fn trace(&self) -> usize {
        self.trace
    }

    /// Last name that the program gave itself; empty if it is unknown.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Path of the executable; empty if it is unknown.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether only the process id is known.
    fn is_unknown(&self) -> bool {
        self.name().is_empty() && self.path.is_empty()
    }
}

/// Memory that is counted for a program besides its name, in bytes.
const PROGRAM_BYTES: usize = 128;
/// Memory that is counted for a thread that has a name, in bytes. A name has at most 15 bytes.
const THREAD_BYTES: usize = 64;
/// Memory that is counted for a place besides its texts, in bytes.
const PLACE_BYTES: usize = 64;

/// A process or thread that a record names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'r> {
    /// Process id.
    pub pid: u32,
    /// Thread id; `None`: the name is the process's.
    pub tid: Option<u32>,
    /// Name.
    pub name: &'r str,
}

impl Processes {
    /// Returns processes that also keep the programs that were replaced, up to `programs_max` programs. Further ones
    /// share the last program.
    pub fn with_past(programs_max: usize) -> Processes {
        Processes { past_max: Some(programs_max), ..Processes::default() }
    }

    /// Limits the memory to `bytes`. Names beyond it are not kept.
    pub fn limit(&mut self, bytes: usize) {
        self.room_bytes = Some(bytes);
    }

    /// Returns the number of names that were not kept for want of memory.
    pub fn names_not_kept(&self) -> u64 {
        self.names_not_kept
    }

    /// Returns the number of known processes.
    pub fn count(&self) -> usize {
        self.current.len() + self.numbers.len()
    }

    /// Replaces the traces by those that `now` returns. Processes of traces that it does not know are dropped.
    pub fn renumber(&mut self, now: impl Fn(usize) -> Option<usize>) {
        let current = std::mem::take(&mut self.current).into_iter();
        self.current = current.filter_map(|((trace, pid), row)| Some(((now(trace)?, pid), row))).collect();
        self.programs.iter_mut().for_each(|program| program.trace = now(program.trace).unwrap_or(program.trace));
        let numbers = std::mem::take(&mut self.numbers).into_iter();
        self.numbers = numbers.filter_map(|((trace, process), row)| Some(((now(trace)?, process), row))).collect();
        let threads = std::mem::take(&mut self.threads).into_iter();
        self.threads = threads.filter_map(|((trace, pid), names)| Some(((now(trace)?, pid), names))).collect();
    }

    /// Takes a record of a trace's state stream, with its time in ticks. Returns the process or thread that it names.
    pub fn note<'r>(&mut self, trace: usize, ticks: u64, record: &StateRecord<'r>) -> Option<Named<'r>> {
        match *record {
            StateRecord::Process { process, vpid, name, program, .. } => {
                self.forget_place(trace, process);
                match self.join(trace, vpid, ticks, name) {
                    Some(row) => {
                        self.numbers.insert((trace, process), row);
                        if self.past_max.is_some() {
                            self.programs[row as usize].path = program.into();
                        }
                    }
                    // Until now, the number stood for another process.
                    None => {
                        self.numbers.remove(&(trace, process));
                    }
                }
                // `exec` ends the other threads, and a process that got the id has others.
                let ended = self.threads.remove(&(trace, vpid)).map_or(0, |threads| threads.len());
                self.room_bytes = self.room_bytes.map(|room| room + ended * THREAD_BYTES);
                Some(Named { pid: vpid, tid: None, name })
            }
            StateRecord::ProcessName { process, name } => {
                let row = *self.numbers.get(&(trace, process))?;
                self.rename(row, name);
                Some(Named { pid: self.programs[row as usize].pid?, tid: None, name })
            }
            StateRecord::ThreadName { process, vtid, name } => {
                let row = *self.numbers.get(&(trace, process))?;
                let pid = self.programs[row as usize].pid?;
                self.name_thread((trace, pid), vtid, name);
                Some(Named { pid, tid: Some(vtid), name })
            }
            StateRecord::ProcessContext { process, uid, user, cgroup, container } => {
                let place = ProcessPlace { uid, user: user.into(), cgroup: cgroup.into(), container: container.into() };
                self.put_place(trace, process, place);
                None
            }
            _ => None,
        }
    }

    /// Returns the current program of the process with a number in the session.
    fn current_of(&mut self, trace: usize, process: u32) -> Option<&mut Program> {
        let pid = self.programs[*self.numbers.get(&(trace, process))? as usize].pid;
        let row = *self.current.get(&(trace, pid))?;
        self.programs.get_mut(row as usize)
    }

    fn forget_place(&mut self, trace: usize, process: u32) {
        self.retain_places(trace, process, |number, _| number != process);
    }

    fn put_place(&mut self, trace: usize, process: u32, place: ProcessPlace) {
        // In one container, a process that has the id of an earlier one has replaced it.
        self.retain_places(trace, process, |number, known| number != process && known.container != place.container);
        let size_bytes = place.size_bytes();
        let has_room = self.room_bytes.is_none_or(|room| room >= size_bytes);
        let Some(program) = self.current_of(trace, process) else { return };
        if has_room {
            program.places.push((process, place));
            self.room_bytes = self.room_bytes.map(|room| room - size_bytes);
        } else {
            // A missing value is better than that of another process.
            program.places.clear();
            self.names_not_kept += 1;
        }
    }

    /// Keeps those places of the processes which share an id with this one for which `is_kept` is true.
    fn retain_places(&mut self, trace: usize, process: u32, is_kept: impl Fn(u32, &ProcessPlace) -> bool) {
        let Some(program) = self.current_of(trace, process) else { return };
        let sum = |program: &Program| program.places.iter().map(|(_, place)| place.size_bytes()).sum::<usize>();
        let before = sum(program);
        program.places.retain(|(number, place)| is_kept(*number, place));
        let freed = before - sum(program);
        self.room_bytes = self.room_bytes.map(|room| room + freed);
    }

    /// Returns the index of a program that joins; `None` if there is no memory for it.
    fn join(&mut self, trace: usize, vpid: u32, ticks: u64, name: &str) -> Option<u32> {
        let known = self.current.get(&(trace, Some(vpid))).copied();
        let row = match known {
            // Events before the process got its name belong to the first program that has one.
            Some(row) if self.programs[row as usize].is_unknown() => row,
            Some(row) if self.past_max.is_none() => {
                self.programs[row as usize].since = ticks;
                row
            }
            _ => {
                if let Some(room) = &mut self.room_bytes {
                    if *room < PROGRAM_BYTES + name.len() {
                        self.names_not_kept += 1;
                        return None;
                    }
                    *room -= PROGRAM_BYTES;
                }
                self.add(trace, Some(vpid), ticks, None)
            }
        };
        self.rename(row, name);
        Some(row)
    }

    /// Adds a program, which becomes the current one of its process.
    fn add(&mut self, trace: usize, pid: Option<u32>, since: u64, name: Option<Box<str>>) -> u32 {
        if self.past_max.is_none_or(|max| self.programs.len() < max) {
            let places = match self.current.get(&(trace, pid)) {
                Some(before) => std::mem::take(&mut self.programs[*before as usize].places),
                None => Vec::new(),
            };
            self.programs.push(Program { trace, pid, since, name, path: Box::default(), places });
        }
        let row = self.programs.len() as u32 - 1;
        self.current.insert((trace, pid), row);
        row
    }

    fn rename(&mut self, row: u32, name: &str) {
        let program = &mut self.programs[row as usize];
        if let Some(room) = &mut self.room_bytes {
            *room += program.name().len();
            // A missing name is better than a wrong one.
            if *room < name.len() {
                program.name = None;
                self.names_not_kept += 1;
                return;
            }
            *room -= name.len();
        }
        program.name = Some(name.into());
    }

    fn name_thread(&mut self, process: (usize, u32), tid: u32, name: &str) {
        let threads = self.threads.entry(process).or_default();
        if let Some(known) = threads.get_mut(&tid) {
            *known = name.into();
            return;
        }
        if let Some(room) = &mut self.room_bytes {
            if *room < THREAD_BYTES {
                self.names_not_kept += 1;
                return;
            }
            *room -= THREAD_BYTES;
        }
        threads.insert(tid, name.into());
    }

    /// Returns the name of a thread, if it has one of its own.
    pub fn thread_name(&self, trace: usize, pid: u32, tid: u32) -> Option<&str> {
        self.threads.get(&(trace, pid))?.get(&tid).map(|name| &**name)
    }

    /// Returns the name of a process's current program.
    pub fn name(&self, trace: usize, pid: u32) -> Option<&str> {
        let row = self.current.get(&(trace, Some(pid)))?;
        self.programs[*row as usize].name.as_deref()
    }

    /// Returns where a process runs.
    pub fn places(&self, trace: usize, pid: u32) -> ProcessPlaces<'_> {
        let row = self.current.get(&(trace, Some(pid)));
        row.map_or(ProcessPlaces::default(), |row| ProcessPlaces(&self.programs[*row as usize].places))
    }

    /// Returns the index of the program that wrote an event. `name`: the name of the process in the event.
    pub fn of_event(&mut self, trace: usize, pid: Option<u32>, name: Option<&[u8]>) -> u32 {
        let current = self.current.get(&(trace, pid)).copied();
        let Some(name) = name else { return current.unwrap_or_else(|| self.add(trace, pid, 0, None)) };
        let is_named = |row: &u32| self.programs[*row as usize].name().as_bytes() == name;
        if let Some(row) = current.filter(is_named) {
            return row;
        }
        let known = self.named.get(&(trace, pid)).and_then(|rows| rows.iter().copied().find(is_named));
        let row = known.unwrap_or_else(|| {
            let row = self.add(trace, pid, 0, Some(String::from_utf8_lossy(name).into()));
            self.named.entry((trace, pid)).or_default().push(row);
            row
        });
        self.current.insert((trace, pid), row);
        row
    }

    /// Returns the program with this index.
    pub fn program(&self, row: u32) -> Option<&Program> {
        self.programs.get(row as usize)
    }

    /// Returns the programs by index.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// Returns the programs of all processes by time.
    pub fn history(&self) -> History {
        let joins = (0..).zip(&self.programs);
        let mut joins: Vec<_> = joins
            .filter_map(|(row, program)| Some(Join { of: (program.trace, program.pid?), since: program.since, row }))
            .collect();
        // The sort is stable: programs that joined at the same time stay in their order.
        joins.sort_by_key(|join| (join.of, join.since));
        History(joins)
    }
}

/// Programs of all processes, by process and time.
#[derive(Debug, Default)]
pub struct History(Vec<Join>);

#[derive(Debug)]
struct Join {
    /// Trace and process id.
    of: (usize, u32),
    since: u64,
    row: u32,
}

impl History {
    /// Returns the index of a process's program at a time in ticks, and the time at which the next program joined.
    /// Before its first program, a process is that program.
    pub fn at(&self, trace: usize, pid: u32, ticks: u64) -> (Option<u32>, u64) {
        let next = self.0.partition_point(|join| (join.of, join.since) <= ((trace, pid), ticks));
        let of_process = |index: usize| self.0.get(index).filter(|join| join.of == (trace, pid));
        let (now, next) = (next.checked_sub(1).and_then(of_process), of_process(next));
        (now.or(next).map(|join| join.row), next.map_or(u64::MAX, |join| join.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process<'a>(process: u32, vpid: u32, name: &'a str, program: &'a str) -> StateRecord<'a> {
        StateRecord::Process { process, pid: 0, vpid, name, program, command_line: "" }
    }

    #[test]
    fn a_process_id_stands_for_several_programs() {
        let mut processes = Processes::with_past(10);
        // An event before the process has a name.
        let first = processes.of_event(0, Some(7), None);
        processes.note(0, 10, &process(1, 7, "sh", "/bin/sh"));
        assert_eq!(processes.of_event(0, Some(7), None), first);
        processes.note(0, 20, &process(1, 7, "ls", "/bin/ls"));
        processes.note(0, 25, &StateRecord::ProcessName { process: 1, name: "list" });
        // The number and the process id are given to other processes.
        processes.note(0, 30, &process(1, 8, "cat", "/bin/cat"));
        processes.note(0, 40, &process(2, 7, "vi", "/bin/vi"));
        let renamed = processes.note(0, 41, &StateRecord::ProcessName { process: 1, name: "tac" });
        assert_eq!(renamed, Some(Named { pid: 8, tid: None, name: "tac" }));
        assert_eq!(processes.note(1, 41, &StateRecord::ProcessName { process: 1, name: "other" }), None);
        let history = processes.history();
        let at = |trace, pid, ticks| {
            let (row, until) = history.at(trace, pid, ticks);
            (row.and_then(|row| processes.program(row)).map(Program::name), until)
        };
        for (pid, ticks, name, until) in [
            (7, 0, "sh", 20),
            (7, 19, "sh", 20),
            (7, 20, "list", 40),
            (7, 50, "vi", u64::MAX),
            (8, 0, "tac", 30),
            (8, 30, "tac", u64::MAX),
        ] {
            assert_eq!(at(0, pid, ticks), (Some(name), until), "{pid} at {ticks}");
        }
        assert_eq!((at(0, 6, 20), at(1, 7, 20)), ((None, u64::MAX), (None, u64::MAX)));
        assert_eq!((processes.name(0, 7), processes.name(1, 7)), (Some("vi"), None));
    }

    #[test]
    fn only_the_present_is_kept_without_the_past() {
        let mut processes = Processes::default();
        for ticks in 0..10 {
            processes.note(0, ticks, &process(1, 7, "sh", "/bin/sh"));
        }
        assert_eq!((processes.programs().len(), processes.name(0, 7)), (1, Some("sh")));
    }

    #[test]
    fn threads_have_names_until_their_program_ends() {
        let mut processes = Processes::default();
        processes.limit(PROGRAM_BYTES + 10 + 2 * THREAD_BYTES);
        processes.note(0, 0, &process(3, 7, "sh", ""));
        let name = |vtid, name| StateRecord::ThreadName { process: 3, vtid, name };
        let named = processes.note(0, 1, &name(9, "worker"));
        assert_eq!(named, Some(Named { pid: 7, tid: Some(9), name: "worker" }));
        processes.note(0, 2, &name(10, "logger"));
        processes.note(0, 3, &name(9, "waiter"));
        processes.note(0, 4, &name(11, "no room"));
        assert_eq!(processes.note(1, 4, &name(9, "of another trace")), None);
        let names = |processes: &Processes| [9, 10, 11].map(|tid| processes.thread_name(0, 7, tid).map(String::from));
        assert_eq!(names(&processes), [Some("waiter".into()), Some("logger".into()), None]);
        assert_eq!((processes.names_not_kept(), processes.thread_name(1, 7, 9)), (1, None));
        // `exec`.
        processes.note(0, 5, &process(4, 7, "ls", ""));
        assert_eq!(names(&processes), [None, None, None]);
        processes.note(0, 6, &StateRecord::ThreadName { process: 4, vtid: 11, name: "room" });
        assert_eq!(processes.thread_name(0, 7, 11), Some("room"));
    }

    fn runs<'a>(process: u32, user: &'a str, container: &'a str) -> StateRecord<'a> {
        let uid = if user.is_empty() { UID_UNKNOWN } else { user.len() as u32 };
        let cgroup = if user.is_empty() { "" } else { "/group" };
        StateRecord::ProcessContext { process, uid, user, cgroup, container }
    }

    #[test]
    fn where_a_process_runs_is_known_until_its_program_ends() {
        use ProcessProperty::{Cgroup, Container, Uid, User};
        use PropertyValue::{Number, Text};
        for mut processes in [Processes::default(), Processes::with_past(10)] {
            let get = |processes: &Processes, property| match processes.places(0, 7).get(property) {
                Some(Text(text)) => Some(Err(text.to_string())),
                Some(Number(number)) => Some(Ok(number)),
                None => None,
            };
            let text = |text: &str| Some(Err(text.to_string()));
            processes.of_event(0, Some(7), None);
            processes.note(0, 1, &process(1, 7, "sh", "/bin/sh"));
            assert_eq!(get(&processes, User), None);
            processes.note(0, 1, &runs(1, "bob", ""));
            let found = [Uid, User, Cgroup, Container].map(|property| get(&processes, property));
            assert_eq!(found, [Some(Ok(3)), text("bob"), text("/group"), text("")]);
            assert_eq!(processes.places(1, 7).get(User), None);
            // `exec` by a program that another user owns, then one of which nothing is known.
            processes.note(0, 2, &process(1, 7, "su", "/bin/su"));
            assert_eq!(get(&processes, User), None);
            processes.note(0, 2, &runs(1, "alice", ""));
            assert_eq!(get(&processes, User), text("alice"));
            processes.note(0, 3, &runs(1, "", ""));
            assert_eq!([Uid, User, Cgroup, Container].map(|property| get(&processes, property)), [const { None }; 4]);
            // The id goes to another process, whose number differs.
            processes.note(0, 4, &process(2, 7, "ls", "/bin/ls"));
            processes.note(0, 4, &runs(2, "eve", ""));
            assert_eq!(get(&processes, User), text("eve"));
            // In a container, a process has the same id at the same time.
            processes.note(0, 5, &process(3, 7, "db", "/bin/db"));
            processes.note(0, 5, &runs(3, "bob", "c1"));
            let found = [Uid, User, Cgroup, Container].map(|property| get(&processes, property));
            assert_eq!(found, [Some(Ok(3)), None, text("/group"), None]);
            // The number of the first is given to a process with another id.
            processes.note(0, 6, &process(2, 8, "cat", "/bin/cat"));
            assert_eq!((get(&processes, User), get(&processes, Container)), (text("bob"), text("c1")));
        }
    }

    #[test]
    fn memory_for_places_is_bounded() {
        let mut processes = Processes::default();
        processes.limit(PROGRAM_BYTES + 2 + PLACE_BYTES + "bob/group".len());
        processes.note(0, 0, &process(1, 7, "sh", ""));
        let user = |processes: &Processes| match processes.places(0, 7).get(ProcessProperty::User) {
            Some(PropertyValue::Text(user)) => user.to_string(),
            _ => String::new(),
        };
        for _ in 0..10 {
            processes.note(0, 0, &process(1, 7, "sh", ""));
            processes.note(0, 1, &runs(1, "bob", ""));
            assert_eq!((user(&processes).as_str(), processes.names_not_kept()), ("bob", 0));
        }
        processes.note(0, 1, &runs(1, "carol", ""));
        assert_eq!((user(&processes).as_str(), processes.names_not_kept()), ("", 1));
        processes.note(0, 1, &runs(1, "bob", ""));
        assert_eq!(user(&processes), "bob");
    }

    #[test]
    fn memory_is_bounded() {
        let mut processes = Processes::default();
        processes.limit(3 * PROGRAM_BYTES);
        for vpid in 0..100 {
            processes.note(0, 0, &process(vpid, vpid, "sh", ""));
        }
        assert_eq!((processes.programs().len(), processes.names_not_kept()), (2, 98));
        // A number goes to a process that is not kept.
        processes.note(0, 1, &process(1, 200, "sh", ""));
        assert_eq!(processes.note(0, 1, &StateRecord::ProcessName { process: 1, name: "cat" }), None);
        // A name that does not fit is dropped, not the process.
        processes.note(0, 1, &StateRecord::ProcessName { process: 0, name: &"x".repeat(PROGRAM_BYTES) });
        assert_eq!((processes.name(0, 0), processes.names_not_kept()), (None, 100));
        processes.note(0, 2, &StateRecord::ProcessName { process: 0, name: "cat" });
        assert_eq!(processes.name(0, 0), Some("cat"));
        let mut processes = Processes::with_past(2);
        for ticks in 0..10 {
            processes.note(0, ticks, &process(1, 7, "sh", "/bin/sh"));
        }
        assert_eq!(processes.programs().len(), 2);
    }
}
