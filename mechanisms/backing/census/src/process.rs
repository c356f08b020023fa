//! Properties of a process from `/proc`, except its memory.

use std::collections::BTreeSet;
use std::fs;

/// Returns numbers of `/proc/PID/stat`. Fields are counted from one, as in proc(5); the first that can be read is the
/// third.
fn stat<const N: usize>(pid: u32, fields: [usize; N]) -> Option<[u64; N]> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    // The fields follow the name, which may contain anything.
    let (_, rest) = text.rsplit_once(") ")?;
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let mut numbers = [0; N];
    for (number, field) in numbers.iter_mut().zip(fields) {
        *number = words.get(field.checked_sub(3)?)?.parse().ok()?;
    }
    Some(numbers)
}

/// Returns a name that a program gave itself, with control characters replaced. The name may contain any byte.
pub(crate) fn printable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Returns the address at which the kernel put the arguments: `startstack`.
pub(crate) fn first_stack(pid: u32) -> Option<u64> {
    stat(pid, [28]).map(|[pointer]| pointer)
}

/// Returns the page faults of all threads of a process: minor ones, which the kernel answered from memory, and major
/// ones, which waited for a disk.
pub(crate) fn faults(pid: u32) -> Option<[u64; 2]> {
    stat(pid, [10, 12])
}

/// Returns the rest of the line of `/proc/PID/status` that begins with `name`.
fn status(pid: u32, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)).map(|rest| rest.trim().into())
}

/// Returns the process of a thread.
pub(crate) fn of_thread(thread: u32) -> Option<u32> {
    status(thread, "Tgid:")?.parse().ok()
}

/// Returns the signals that this process ignores, signal 1 in bit 0.
pub(crate) fn ignored_signals() -> u64 {
    status(std::process::id(), "SigIgn:").and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0)
}

/// Whether the process ends with this thread, which is about to end: it is the first thread, or the first thread has
/// ended, or the process is being killed.
pub(crate) fn ends_with(pid: u32, thread: u32) -> bool {
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let is_killed = || u64::from_str_radix(&status(pid, "SigPnd:")?, 16).ok().map(|mask| mask & KILLED != 0);
    let has_ended = || status(pid, "State:").is_none_or(|state| state.starts_with(['Z', 'X']));
    thread == pid || is_killed() == Some(true) || has_ended()
}

/// Returns a process and its descendants, except those that have got another parent.
pub(crate) fn family(pid: u32) -> BTreeSet<u32> {
    let (mut found, mut next) = (BTreeSet::new(), vec![pid]);
    while let Some(pid) = next.pop() {
        if !found.insert(pid) {
            continue;
        }
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            next.extend(children.split_ascii_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_this_process_are_read() {
        let me = std::process::id();
        assert_eq!(of_thread(rustix::thread::gettid().as_raw_nonzero().get() as u32), Some(me));
        assert!(faults(me).unwrap()[0] > 0);
        // Rust programs ignore SIGPIPE.
        assert_ne!(ignored_signals() & 1 << (libc::SIGPIPE - 1), 0);
        assert!(ends_with(me, me) && !ends_with(me, me + 1));
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(family(me).is_superset(&BTreeSet::from([me, child.id()])));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
