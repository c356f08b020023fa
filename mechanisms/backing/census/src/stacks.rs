//! Which stack belongs to which thread.

use std::fs;

use crate::process;

/// Where a thread's stack is.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    pub(crate) thread: u32,
    pub(crate) name: String,
    /// An address in it.
    pub(crate) pointer: u64,
}

/// The stacks of all threads whose stack pointer the kernel tells: threads that wait, in processes that this one may inspect. For a thread
/// that runs it tells none. The address of the first thread's stack is known from elsewhere.
pub(crate) fn of(pid: u32) -> Vec<Stack> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stack = |task: fs::DirEntry| {
        let thread: u32 = task.file_name().to_str()?.parse().ok()?;
        let name = fs::read(task.path().join("comm")).unwrap_or_default();
        let name = process::printable(name.trim_ascii_end());
        let pointer = waiting(&task.path()).or_else(|| if thread == pid { process::first_stack(pid) } else { None })?;
        Some(Stack { thread, name, pointer })
    };
    tasks.filter_map(stack).collect()
}

/// `/proc/PID/task/TID/syscall`: number, six arguments, stack pointer, program counter.
fn waiting(task: &std::path::Path) -> Option<u64> {
    let text = fs::read_to_string(task.join("syscall")).ok()?;
    let pointer = text.split_ascii_whitespace().rev().nth(1)?;
    u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
}
