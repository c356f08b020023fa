//! The session's register, as its owner reads it: processes that have entered themselves are taken in, and those that are gone are struck out.

use std::io::Read;
use std::path::Path;

use dormouse_abi::class::{Announcement, ClassDecl};
use dormouse_abi::register::{PROCESS_COUNT, Phase, Process, Register};
use dormouse_abi::text::printable;
use dormouse_ctf::{Refusal, StateRecord};
use dormouse_relay::Memory;

use crate::registry::{Joined, Processes, Watch};
use crate::sys::{Stat, pid_in_namespace, pid_namespace};
use crate::trace::{Trace, refusal_of};

/// Ticks of `starttime` of proc_pid_stat(5) are hundredths of a second in all that it says to programs.
const TICK_NS: u64 = 10_000_000;

/// Takes in the processes that have come since the last look, in the order in which they came, and lets go of those that have left.
pub(crate) fn take_in(memory: &Memory, trace: &Trace, processes: &Processes) {
    let Some(register) = memory.register() else { return };
    if !processes.is_changed(register.changes()) {
        return;
    }
    let mut fresh: Vec<(u16, Process)> = Vec::new();
    for number in 1..PROCESS_COUNT as u16 {
        let Some(process) = register.process(number) else { continue };
        match (process.phase, processes.is_known(number)) {
            (Phase::Ready | Phase::Left, false) => fresh.push((number, process)),
            (Phase::Left, true) => processes.remove(memory, number),
            (Phase::Claimed, _) => processes.watch_claimed(memory, number, process.vpid),
            (Phase::Ready, true) => {}
        }
    }
    fresh.sort_by_key(|(_, process)| process.joined_at);
    for (number, process) in fresh {
        let has_left = process.phase == Phase::Left;
        admit(memory, trace, processes, number, process);
        if has_left {
            processes.remove(memory, number);
        }
    }
}

fn admit(memory: &Memory, trace: &Trace, processes: &Processes, number: u16, process: Process) {
    let program = printable(&process.program);
    let (pid, watch) = find(&process);
    let is_there = !matches!(watch, Watch::Dead);
    let stat = if is_there { Stat::of(pid) } else { None };
    // One that has become another program since has the other's name.
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok().filter(|_| is_there);
    let is_same = exe.is_some_and(|exe| exe == Path::new(&process.program));
    let name = stat.as_ref().filter(|_| is_same).map(|stat| stat.name.clone());
    let name = name.unwrap_or_else(|| printable(&process.name));
    let whole = is_same.then(|| command_line(pid)).flatten();
    let command_line = whole.unwrap_or_else(|| printable(&process.command_line));
    processes.add(memory, number, Joined { pid, image: process.image, watch, stat });
    let record = StateRecord::Process {
        process: number.into(),
        pid,
        vpid: process.vpid,
        name: &name,
        program: &program,
        command_line: &command_line,
    };
    // Without its record the process's events are in the trace all the same, under its bare id.
    let _ = trace.state_at(process.joined_at, &[record]);
}

/// The process's id as the owner sees it, and how its end is noticed. One that is in no namespace of the owner's, or below, is as good as dead:
/// programs of such namespaces join by the socket, or not at all.
fn find(process: &Process) -> (u32, Watch) {
    let joined = process.joined_ns / TICK_NS;
    let pid = match process.pid {
        0 if process.namespace == pid_namespace() => Some(process.vpid),
        0 => pid_in_namespace(process.vpid, joined),
        pid => Some(pid),
    };
    let Some(pid) = pid else { return (process.vpid, Watch::Dead) };
    let watch = Watch::of(pid);
    // One that started after this one joined has only its id. What is asked here is said of the process that is watched, or of one that came
    // after it, which started later still.
    let started = Stat::of(pid).and_then(|stat| stat.field(22).parse::<u64>().ok());
    (pid, if started.is_some_and(|started| started > joined) { Watch::Dead } else { watch })
}

/// Longest command line that is noted.
const COMMAND_LINE_SIZE_BYTES_MAX: u64 = 64 << 10;

fn command_line(pid: u32) -> Option<String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/cmdline")).ok()?;
    file.take(COMMAND_LINE_SIZE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let arguments = bytes.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    let text = arguments.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then(|| printable(&text))
}

/// A class as it has been entered, if it can be in a trace; `None` where there is none, or none yet.
pub(crate) fn class_of(register: &Register, id: u16) -> Option<Result<ClassDecl, Refusal>> {
    let class = register.class(id)?;
    let announced = Announcement::from_text(&class.text);
    let refused = |name: &str, reason: &str| refusal_of(name, &program_of(register, class.process), reason);
    Some(match &announced {
        Some(announced) => announced.check().map_err(|reason| refused(&announced.full_name(), &reason)),
        None => Err(refused("(a class)", "what it says of itself cannot be read")),
    })
}

/// The program that a process says it is.
pub(crate) fn program_of(register: &Register, number: u16) -> String {
    let known = register.process(number).map(|process| printable(&process.program));
    known.filter(|program| !program.is_empty()).unwrap_or_else(|| "an unknown program".into())
}
