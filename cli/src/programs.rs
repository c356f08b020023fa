//! The running programs and the sessions that a user names: by process id, name or directory, several at once, or all.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::bail;
use dormouse_control::process_name;
use dormouse_owner::socket_of;
use dormouse_terminal::say;
use dormouse_tools::{Membership, Program, RunningProgram, RunningPrograms, SessionSocket, all_sessions, find_session};

use crate::program::explained;

/// Exit code if something could not be done for a program or a session, whatever was done for others.
const EXIT_FAILED: u8 = 2;

/// Calls `act` for each of several things. The errors are printed, and do not hide the other results; that of a single
/// thing is returned. Returns the highest exit code.
pub(crate) fn for_each<T>(all: Vec<T>, mut act: impl FnMut(T) -> anyhow::Result<u8>) -> anyhow::Result<u8> {
    let is_single = all.len() == 1;
    let mut code = 0;
    for one in all {
        match act(one) {
            Ok(done) => code = code.max(done),
            Err(error) if is_single => return Err(error),
            Err(error) => {
                say(format_args!("{error:#}"));
                code = EXIT_FAILED;
            }
        }
    }
    Ok(code)
}

/// Returns process ids in words: `process 7`, or `processes 7, 8`.
pub(crate) fn processes(pids: &[u32]) -> String {
    let list = list(pids);
    if pids.len() == 1 { format!("process {list}") } else { format!("processes {list}") }
}

/// Returns numbers separated by commas.
fn list(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Things that a user has named, each once, and the exit code of those that were not found.
pub(crate) type Named<T> = (Vec<T>, u8);

/// Returns the ids of the programs that `text` names: process ids and names, separated by commas. Prints which ones, if a
/// name stands for several, and which names no program with tracepoints has.
///
/// # Errors
/// The only name is one of those.
pub(crate) fn pids_of(text: &str) -> anyhow::Result<Named<u32>> {
    let (mut running, mut pids) = (None, Vec::new());
    let code = for_each(text.split(',').map(str::trim).collect(), |part| {
        let found = match part.parse::<u32>() {
            Ok(pid) => vec![pid],
            Err(_) => called(running.get_or_insert_with(RunningPrograms::find), part)?,
        };
        found.into_iter().for_each(|pid| {
            if !pids.contains(&pid) {
                pids.push(pid)
            }
        });
        Ok(0)
    })?;
    Ok((pids, code))
}

/// Returns the id of the process that `text` names: its id, or the name of one program of this user, with tracepoints or
/// without. If several processes have the name, it means the one that listens.
///
/// # Errors
/// None has the name, or several have it.
pub(crate) fn pid_of(text: &str) -> anyhow::Result<u32> {
    if let Ok(pid) = text.parse() {
        return Ok(pid);
    }
    let me = rustix::process::geteuid().as_raw();
    let is_called = |pid: &u32| {
        let place = Path::new("/proc").join(pid.to_string());
        let is_own = std::fs::metadata(&place).is_ok_and(|process| process.uid() == me) && *pid != std::process::id();
        let is_file = || std::fs::read_link(place.join("exe")).is_ok_and(|exe| exe.file_name() == Some(text.as_ref()));
        is_own && (process_name(*pid).as_deref() == Some(text) || is_file())
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let named: Vec<u32> = pids.filter(is_called).collect();
    let listening = || named.iter().copied().filter(|pid| Program::listening(*pid).is_some()).collect::<Vec<u32>>();
    match named.as_slice() {
        [] => bail!("no running program of this user is called {}", text.escape_debug()),
        [pid] => Ok(*pid),
        _ => match listening().as_slice() {
            [pid] => Ok(*pid),
            [] => bail!("{text} is the name of {}, none of which listens", processes(&named)),
            several => bail!("{text} is the name of {}; give the id of one", processes(several)),
        },
    }
}

/// Returns the ids of this user's programs with tracepoints that are in a session, or of those that are in none; with
/// `None`, of all. Prints them.
///
/// # Errors
/// There is none.
pub(crate) fn all_pids(is_in_session: Option<bool>) -> anyhow::Result<Vec<u32>> {
    let running = RunningPrograms::find().programs;
    let is_wanted = |program: &&RunningProgram| is_in_session.is_none_or(|is_in| is_in != program.sessions.is_empty());
    let pids: Vec<u32> = running.iter().filter(is_wanted).map(|program| program.pid).collect();
    if pids.is_empty() {
        let which = match is_in_session {
            None => "",
            Some(true) => " that is in a session",
            Some(false) => " that is in no session",
        };
        bail!("there is no running program of this user with tracepoints{which}; `dormouse list` shows all");
    }
    say(format_args!("all: {}", processes(&pids)));
    Ok(pids)
}

/// Returns the ids of the programs that have a name, and prints them if there are several.
fn called(running: &RunningPrograms, name: &str) -> anyhow::Result<Vec<u32>> {
    let pids: Vec<u32> =
        running.programs.iter().filter(|program| program.is_called(name)).map(|program| program.pid).collect();
    match pids.len() {
        0 => bail!("{}", why_none_called(running, name)),
        1 => {}
        count => say(format_args!("{name} is the name of {count} programs: {}", processes(&pids))),
    }
    Ok(pids)
}

fn why_none_called(running: &RunningPrograms, name: &str) -> String {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let without: Vec<u32> = pids.filter(|pid| process_name(*pid).as_deref() == Some(name)).take(8).collect();
    if let Some(first) = without.first() {
        return format!(
            "no program of this user with tracepoints is called {name}, which is the name of {}; `dormouse list {first}` says why",
            processes(&without)
        );
    }
    let likeness = |program: &&RunningProgram| (strsim::jaro_winkler(name, &program.name) * 1000.0) as u32;
    let nearest = running.programs.iter().max_by_key(likeness);
    let nearest = nearest.map_or("`dormouse list` names those that have them".into(), |program| {
        format!("the nearest name is {} (process {})", program.name, program.pid)
    });
    format!("no running program of this user with tracepoints is called {name}; {nearest}")
}

/// Returns the session that `target` names: by the directory of its trace, its socket, or a process or a name of a
/// program in it. With `None`, the only session.
///
/// # Errors
/// There is none, or several.
pub(crate) fn session_of(target: Option<&str>) -> anyhow::Result<SessionSocket> {
    let Some(target) = target else { return find_session(None).map_err(explained) };
    let mut found = sessions_called(target)?;
    match found.len() {
        1 => Ok(found.remove(0)),
        _ => bail!("{target} names several sessions; name one: {}", paths(&found)),
    }
}

/// Returns the sessions that `target` names, each once: several names are separated by commas. With `None`, the only
/// session, or all that are live.
///
/// # Errors
/// There is none, or the only name has none.
pub(crate) fn sessions_of(target: Option<&str>, is_all: bool) -> anyhow::Result<Named<SessionSocket>> {
    let mut sessions = if is_all { all_sessions() } else { Vec::new() };
    let Some(target) = target else {
        if sessions.is_empty() {
            sessions.push(session_of(None)?);
        }
        return Ok((sessions, 0));
    };
    let parts = if Path::new(target).exists() { vec![target] } else { target.split(',').map(str::trim).collect() };
    let code = for_each(parts, |part| {
        sessions_called(part)?.into_iter().for_each(|session| add(&mut sessions, session));
        Ok(0)
    })?;
    if sessions.len() > 1 {
        say(format_args!("{} sessions: {}", sessions.len(), paths(&sessions)));
    }
    Ok((sessions, code))
}

fn add(sessions: &mut Vec<SessionSocket>, session: SessionSocket) {
    if sessions.iter().all(|known| known.path() != session.path()) {
        sessions.push(session);
    }
}

fn paths(sessions: &[SessionSocket]) -> String {
    sessions.iter().map(|session| session.path().display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Returns the live sessions that a program is in.
fn live(program: &RunningProgram) -> Vec<SessionSocket> {
    let live = program.sessions.iter().filter_map(|membership| match membership {
        Membership::Live(session, _) => Some(session.clone()),
        Membership::Unknown => None,
    });
    live.collect()
}

/// Returns the sessions of one name.
fn sessions_called(name: &str) -> anyhow::Result<Vec<SessionSocket>> {
    let path = Path::new(name);
    if path.is_dir() {
        return Ok(vec![SessionSocket::at(&socket_of(path)?)?]);
    }
    let is_socket = path.metadata().is_ok_and(|found| found.file_type().is_socket());
    if name.contains('/') || is_socket {
        return Ok(vec![find_session(Some(name)).map_err(explained)?]);
    }
    // Programs that do not listen are found too.
    let running = RunningPrograms::find();
    if let Ok(pid) = name.parse::<u32>() {
        let program = running.programs.into_iter().find(|program| program.pid == pid);
        return match program.map(|program| live(&program)) {
            Some(sessions) if !sessions.is_empty() => Ok(sessions),
            _ => Ok(vec![find_session(Some(name)).map_err(explained)?]),
        };
    }
    let programs: Vec<&RunningProgram> = running.programs.iter().filter(|program| program.is_called(name)).collect();
    if programs.is_empty() {
        // Names the sessions that there are.
        return Ok(vec![find_session(Some(name)).map_err(explained)?]);
    }
    let mut sessions: Vec<SessionSocket> = Vec::new();
    for program in &programs {
        live(program).into_iter().for_each(|session| add(&mut sessions, session));
    }
    if sessions.is_empty() {
        let pids: Vec<u32> = programs.iter().map(|program| program.pid).collect();
        bail!("no program called {name} is in a session: {}", processes(&pids));
    }
    Ok(sessions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_hides_no_other_result() {
        let mut done = Vec::new();
        let mut act = |number: u32| {
            done.push(number);
            if number == 2 { Err(anyhow::anyhow!("no")) } else { Ok(0) }
        };
        assert_eq!(for_each(vec![1, 2, 3], &mut act).unwrap(), EXIT_FAILED);
        assert_eq!(for_each(vec![1, 3], &mut act).unwrap(), 0);
        assert!(for_each(vec![2], &mut act).is_err());
        assert_eq!(done, [1, 2, 3, 1, 3, 2]);
    }

    #[test]
    fn ids_are_taken_once_and_unknown_names_are_told() {
        assert_eq!(pids_of("7, 8,7").unwrap(), (vec![7, 8], 0));
        assert_eq!(pids_of("7,no such program").unwrap(), (vec![7], EXIT_FAILED));
        assert_eq!((processes(&[7]), processes(&[7, 8])), ("process 7".into(), "processes 7, 8".into()));
        let error = pids_of("no such program").unwrap_err().to_string();
        assert!(error.contains("is called no such program"), "{error}");
    }
}
