//! The stacks of threads.

use std::fs;

use crate::process;

/// The stack of a thread.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    pub(crate) thread: u32,
    pub(crate) name: String,
    /// An address in the stack.
    pub(crate) pointer: u64,
}

/// Returns the stacks of all threads whose stack pointer the kernel tells: threads that wait, in processes that this
/// one may inspect. The kernel does not tell it for a running thread. For the first thread, `/proc/PID/stat` gives an
/// address in its stack.
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

/// Returns the stack pointer from `/proc/PID/task/TID/syscall`: number, six arguments, stack pointer, program counter.
fn waiting(task: &std::path::Path) -> Option<u64> {
    let text = fs::read_to_string(task.join("syscall")).ok()?;
    let pointer = text.split_ascii_whitespace().rev().nth(1)?;
    u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
}
