//! What becomes of the programs that are recorded, or should be, as far as they do not tell: a thread that looks now and then, by proc(5).
//!
//! ```text
//!   a recorded command       which of its descendants has tracepoints and has not joined
//!   an attached program      whether a process has executed another program: has that join
//! ```
//! Who is in the session is a program's word. So, of processes that no tool has named, only those are attached that had the session's memory mapped:
//! what they write was the session's before.
//!
//! It may wait for a program, so nobody waits for it: the session's end leaves it behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dormouse_abi::message::{ProgramToTool, ToolToProgram};
use dormouse_abi::text::printable;
use dormouse_control::no_thread;
use dormouse_tools::{Descendants, Program, Wait, has_tracepoints};

use crate::error::Error;
use crate::service::Shared;
use crate::summary::Executed;

/// Between two looks at attached programs, and between the first ones at a command's descendants.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Between two looks at descendants at last: who is there so long is found.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// So many times as long as a look takes, the next one is waited with, up to a while.
const REST_PART: u32 = 50;
const REST_MAX: Duration = Duration::from_secs(10);

/// How long a program may take to join when it is asked to.
const PATIENCE_TO_ATTACH: Duration = Duration::from_secs(5);

/// How long a program may take to pass a tracepoint when it is called.
const PATIENCE_TO_CALL: Duration = Duration::from_secs(1);

/// Starts the thread.
pub(crate) fn start(shared: Arc<Shared>, socket: PathBuf) -> Result<(), Error> {
    let run = move || {
        let (mut descendants, mut members) = (Descendants::default(), BTreeSet::new());
        let (mut interval, mut rest) = (LOOK_INTERVAL, Duration::ZERO);
        // It looks because the kernel tells nobody of a program's being executed.
        while !shared.followed.is_over() {
            std::thread::sleep(interval.max(rest));
            let begun = Instant::now();
            if shared.trace.ledger.may_be_stopped() != 0 {
                follow_executed(&shared, &socket, &mut members);
            } else if let Some((command, memory)) = shared.command().zip(shared.mapped_memory()) {
                descendants.look(command, &shared.processes, &memory);
                shared.followed.set_unjoined(descendants.found());
                interval = (2 * interval).min(LOOK_INTERVAL_MAX);
            }
            rest = (begun.elapsed() * REST_PART).min(REST_MAX);
        }
    };
    std::thread::Builder::new().name("dormouse-follow".into()).spawn(run).map(drop).map_err(no_thread)
}

/// Has programs join that processes of the session have become. `members` had the memory mapped when they were looked at.
fn follow_executed(shared: &Shared, socket: &Path, members: &mut BTreeSet<u32>) {
    let Some(memory) = shared.mapped_memory() else { return };
    let live: BTreeSet<u32> = shared.processes.live_pids().into_iter().collect();
    members.retain(|pid| live.contains(pid));
    let is_member = |pid: &u32| shared.followed.is_attached(*pid) || memory.is_mapped_by(*pid) == Some(true);
    let fresh: Vec<u32> = live.difference(members).copied().filter(is_member).collect();
    members.extend(fresh);
    for pid in shared.processes.executed().into_iter().filter(|pid| members.contains(pid)) {
        let path = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let program = printable(&path.to_string_lossy());
        let is_recorded = called(pid).is_some_and(|program| attach(shared, socket, &program).is_ok());
        // What others than the attached one start is of interest where it could be recorded.
        let is_named = is_recorded || shared.followed.is_attached(pid) || has_tracepoints(pid);
        shared.followed.note_executed(Executed { pid, program, is_recorded }, is_named);
    }
}

/// A program that listens, or does so once it is called: it gets a moment to pass a tracepoint, and another one at the next look.
fn called(pid: u32) -> Option<Program> {
    let wait = &mut Wait { limit: Some(PATIENCE_TO_CALL), on_wait: &mut |_| {} };
    Program::find_soon(pid, wait).ok()
}

/// Has a program that runs join, and arm the session's classes. Returns how many are armed.
///
/// # Errors
/// When the program cannot be reached or refuses.
pub(crate) fn attach(shared: &Shared, socket: &Path, program: &Program) -> Result<u32, Error> {
    let session = socket.to_string_lossy().into_owned();
    let mut total = 0;
    let (question, memory) = (ToolToProgram::Attach { session }, shared.memory.file());
    for index in 0..program.tracer_count() {
        match program.ask_with(index, &question, Some(memory), PATIENCE_TO_ATTACH)? {
            ProgramToTool::Changed { armed, .. } => total += armed,
            other => return Err(program.refusal(other)),
        }
    }
    // Who asks about it next finds it.
    shared.look();
    Ok(total)
}
