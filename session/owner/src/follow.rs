//! Follows recorded programs that do not report to the owner themselves: a thread inspects processes periodically, by
//! proc(5).
//!
//! ```text
//!   a recorded command       which of its descendants has tracepoints and has not joined
//!   an attached program      whether a process has executed another program: makes that program join
//! ```
//! Programs themselves say that they are in the session. So, of processes that no tool has named, only those that had
//! the session's memory mapped are attached: their events already belonged to the session.
//!
//! The thread may wait for a program. The session's end waits a moment for that, and then leaves the thread behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dormouse_abi::message::{ProgramToTool, ToolToProgram};
use dormouse_abi::text::printable;
use dormouse_tools::{Descendants, Program, ProgramError, Wait, has_tracepoints};

use crate::error::{Error, no_thread};
use crate::service::Shared;
use crate::summary::Executed;

/// Interval between checks of attached programs, and between the first checks of a command's descendants.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum interval between checks of descendants: a process that lives at least this long is found.
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The thread rests for this many times the duration of a check, up to a maximum.
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
        let (mut interval, mut rest) = (CHECK_INTERVAL, Duration::ZERO);
        // The thread polls because the kernel does not report that a program is executed.
        while !shared.followed.is_over() {
            std::thread::sleep(interval.max(rest));
            let begun = Instant::now();
            if shared.trace.ledger.may_be_stopped() != 0 {
                follow_executed(&shared, &socket, &mut members);
            } else if let Some((command, memory)) = shared.command().zip(shared.mapped_memory()) {
                descendants.look(command, &socket, &shared.processes, &memory);
                shared.followed.set_unjoined(descendants.found());
                interval = (2 * interval).min(CHECK_INTERVAL_MAX);
            }
            rest = (begun.elapsed() * REST_PART).min(REST_MAX);
        }
    };
    std::thread::Builder::new().name("dormouse-follow".into()).spawn(run).map(drop).map_err(no_thread)
}

/// Makes programs join that processes of the session have executed. `members` had the memory mapped when they were
/// inspected.
fn follow_executed(shared: &Shared, socket: &Path, members: &mut BTreeSet<u32>) {
    let Some(memory) = shared.mapped_memory() else { return };
    let live: BTreeSet<u32> = shared.processes.live_pids().into_iter().collect();
    members.retain(|pid| live.contains(pid));
    let is_member = |pid: &u32| shared.followed.is_attached(*pid) || memory.is_mapped_by(*pid) == Some(true);
    let fresh: Vec<u32> = live.difference(members).copied().filter(is_member).collect();
    members.extend(fresh);
    for pid in shared.processes.executed().into_iter().filter(|pid| members.contains(pid)) {
        shared.followed.attach_executed(|| {
            let path = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let program = printable(&path.to_string_lossy());
            let is_recorded = called(pid).is_some_and(|program| attach(shared, socket, &program).is_ok());
            // A program that was not attached itself is noted only if it could be recorded.
            let is_named = is_recorded || shared.followed.is_attached(pid) || has_tracepoints(pid);
            (Executed { pid, program, is_recorded }, is_named)
        });
    }
}

/// Returns the program if it listens, or does so once it is called. It has a moment to pass a tracepoint, and another
/// one at the next check.
fn called(pid: u32) -> Option<Program> {
    let wait = &mut Wait { limit: Some(PATIENCE_TO_CALL), on_wait: &mut |_| {} };
    Program::find_soon(pid, wait).ok()
}

/// Makes a running program join and arm the session's classes. Returns the number of armed classes.
///
/// # Errors
/// The reason if the program cannot be reached or refuses.
pub(crate) fn attach(shared: &Shared, socket: &Path, program: &Program) -> Result<u32, ProgramError> {
    let session = socket.to_string_lossy().into_owned();
    let (question, memory) = (ToolToProgram::Attach { session }, shared.memory.file());
    shared.processes.while_attached(program.pid, || {
        let mut total = 0;
        for index in 0..program.tracer_count() {
            match program.ask_with(index, &question, Some(memory), PATIENCE_TO_ATTACH)? {
                ProgramToTool::Changed { sessions, .. } => {
                    let here = sessions.iter().filter(|(session, _)| Path::new(session) == socket);
                    total += here.map(|(_, armed)| armed).sum::<u32>();
                }
                other => return Err(program.refusal(other).into()),
            }
        }
        // The next query about it finds it.
        shared.look();
        Ok(total)
    })
}
