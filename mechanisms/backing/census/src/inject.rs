//! Makes a system call in another program, between two of its own instructions.
//!
//! ```text
//!   thread, stopped as its own call returns        registers are kept
//!        │  back to the instruction that made the call, with other registers
//!        ├─ stop: the call begins
//!        ├─ stop: the call returns ─ its result is read
//!        └  registers as kept: the thread goes on behind its own call
//! ```
//! Or lets it return from the functions that made its call, instruction by instruction. Its signals are blocked meanwhile. The thread must have made its call by the instruction that is used here: the filter of
//! system calls ([`crate::filter`]) reports no others.

use std::io;
use std::ops::Range;

use libc::{c_int, pid_t};

use crate::ptrace::{self, Registers, SystemCall, ptrace, wait};

/// Indexes into [`Registers`], and the size of the instruction that makes a system call.
struct Layout {
    number: usize,
    arguments: [usize; 3],
    program_counter: usize,
    instruction_size_bytes: u64,
    /// Whether the instruction between the first registers and the second has returned from a function.
    has_returned: fn(&Registers, &Registers) -> bool,
}

#[cfg(target_arch = "x86_64")]
const LAYOUT: Option<Layout> = Some(Layout {
    number: 10,
    arguments: [14, 13, 12],
    program_counter: 16,
    instruction_size_bytes: 2,
    // `ret` takes the address from the stack; a call puts one there, and a jump leaves it.
    has_returned: |before, after| after[19] > before[19],
});
#[cfg(target_arch = "aarch64")]
const LAYOUT: Option<Layout> = Some(Layout {
    number: 8,
    arguments: [0, 1, 2],
    program_counter: 32,
    instruction_size_bytes: 4,
    // `ret` goes to the address in the link register.
    has_returned: |before, after| after[32] == before[30],
});
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const LAYOUT: Option<Layout> = None;

/// How a system call in another program ended.
#[derive(Debug)]
pub(crate) enum Injected {
    /// It returned this. An error is a negative number. The thread is stopped as before.
    Answered(i64),
    /// The thread is about to end, or has ended: this is its status from `waitpid(2)`, which is not handled yet.
    Interrupted(c_int),
}

/// Makes a system call in a thread that is stopped as a call of its own returns.
///
/// # Errors
/// Errors of the kernel: the thread was killed.
pub(crate) fn call(pid: pid_t, thread: pid_t, number: i64, arguments: [u64; 3]) -> io::Result<Injected> {
    let Some(layout) = LAYOUT else { return Err(io::ErrorKind::Unsupported.into()) };
    let (kept, mask) = (ptrace::registers(thread)?, ptrace::signal_mask(thread)?);
    let mut registers: Registers = kept;
    registers[layout.number] = number.cast_unsigned();
    for (index, argument) in layout.arguments.into_iter().zip(arguments) {
        registers[index] = argument;
    }
    registers[layout.program_counter] -= layout.instruction_size_bytes;
    ptrace::set_signal_mask(thread, u64::MAX)?;
    ptrace::set_registers(thread, &registers)?;
    let mut held = Vec::new();
    let mut answer = None;
    // The call begins, and returns.
    for _ in 0..2 {
        if let Some(status) = go_on(thread, &mut held)? {
            return Ok(Injected::Interrupted(status));
        }
        answer = ptrace::system_call(thread)?;
    }
    ptrace::set_registers(thread, &kept)?;
    ptrace::set_signal_mask(thread, mask)?;
    send_again(pid, thread, &held);
    match answer {
        Some(SystemCall::Answered(answer)) => Ok(Injected::Answered(answer)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Sends signals to a thread that were kept from it.
fn send_again(pid: pid_t, thread: pid_t, held: &[c_int]) {
    for signal in held {
        // SAFETY: the call has no pointers; a thread that has ended is an error, and does not matter.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, *signal) };
    }
}

/// Lets the thread run to the next beginning or end of a system call. Returns the status of a thread that is about to end.
fn go_on(thread: pid_t, held: &mut Vec<c_int>) -> io::Result<Option<c_int>> {
    loop {
        let (signal, status) = resume(libc::PTRACE_SYSCALL, thread, held)?;
        match signal {
            Some(SYSTEM_CALL_STOP) => return Ok(None),
            // The filter may report the call.
            _ if status >> 16 == libc::PTRACE_EVENT_SECCOMP => {}
            _ => return Ok(Some(status)),
        }
    }
}

/// Continues the thread to its next stop, and keeps signals that cannot be blocked. Returns the signal of a stop without an
/// event, and the status.
fn resume(request: ptrace::Request, thread: pid_t, held: &mut Vec<c_int>) -> io::Result<(Option<c_int>, c_int)> {
    loop {
        ptrace(request, thread, 0, 0)?;
        let (_, status) = wait(thread, libc::__WALL)?;
        let signal = libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status));
        match (status >> 16, signal) {
            (0, Some(signal)) if ![libc::SIGTRAP, SYSTEM_CALL_STOP].contains(&signal) => held.push(signal),
            // A stop by a terminal or a shell takes effect later.
            (libc::PTRACE_EVENT_STOP, _) => {}
            (0, signal) => return Ok((signal, status)),
            _ => return Ok((None, status)),
        }
    }
}

/// Maximum number of instructions in which a call is left.
const STEPS_MAX: usize = 4000;

/// Where a thread has left some functions.
#[derive(Debug)]
pub(crate) enum Left {
    /// At this address, behind the call of the outermost of them. The thread is stopped there.
    At(u64),
    /// It has not left them soon. The thread is stopped.
    Nowhere,
    /// It was stopped by something else: this is its status from `waitpid(2)`, which is not handled yet.
    Interrupted(c_int),
}

/// Lets a stopped thread run until it returns from the code at these addresses. Functions elsewhere that this code calls belong
/// to it.
///
/// # Errors
/// Errors of the kernel: the thread was killed.
pub(crate) fn leave(pid: pid_t, thread: pid_t, code: &[Range<u64>]) -> io::Result<Left> {
    let Some(layout) = LAYOUT else { return Ok(Left::Nowhere) };
    let is_inside = |registers: &Registers| code.iter().any(|range| range.contains(&registers[layout.program_counter]));
    let mut before = ptrace::registers(thread)?;
    if !is_inside(&before) {
        return Ok(Left::At(before[layout.program_counter]));
    }
    let mask = ptrace::signal_mask(thread)?;
    ptrace::set_signal_mask(thread, u64::MAX)?;
    let (mut held, mut left) = (Vec::new(), Left::Nowhere);
    for _ in 0..STEPS_MAX {
        let (signal, status) = resume(libc::PTRACE_SINGLESTEP, thread, &mut held)?;
        if signal != Some(libc::SIGTRAP) {
            left = Left::Interrupted(status);
            break;
        }
        let after = ptrace::registers(thread)?;
        if is_inside(&before) && !is_inside(&after) && (layout.has_returned)(&before, &after) {
            left = Left::At(after[layout.program_counter]);
            break;
        }
        before = after;
    }
    // A thread that has ended has no mask.
    let _ = ptrace::set_signal_mask(thread, mask);
    send_again(pid, thread, &held);
    Ok(left)
}

/// Signal that reports the beginning or end of a system call, with `PTRACE_O_TRACESYSGOOD`.
pub(crate) const SYSTEM_CALL_STOP: c_int = libc::SIGTRAP | 0x80;
