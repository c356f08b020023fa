//! The system calls `ptrace(2)` and `waitpid(2)`.

use std::io;

use libc::{c_int, c_ulong, pid_t};

/// Type of a `ptrace` request in this libc.
#[cfg(not(target_env = "musl"))]
pub(crate) type Request = libc::c_uint;
#[cfg(target_env = "musl")]
pub(crate) type Request = c_int;

// Values from `include/uapi/linux/ptrace.h` and `elf.h`.
const PTRACE_GETREGSET: Request = 0x4204;
const PTRACE_SETREGSET: Request = 0x4205;
const PTRACE_GETSIGMASK: Request = 0x420a;
const PTRACE_SETSIGMASK: Request = 0x420b;
const PTRACE_GET_SYSCALL_INFO: Request = 0x420e;
const NT_PRSTATUS: usize = 1;

/// Makes a request that does not use this process's memory.
pub(crate) fn ptrace(request: Request, thread: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the requests of this crate that use this process's memory are those of the functions below, which pass the
    // address of a variable and its size. All others affect only the tracee.
    match unsafe { libc::ptrace(request, thread, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Makes a request by which the kernel writes to `target`, or reads it.
fn with<T>(request: Request, thread: pid_t, address: usize, target: &mut T) -> io::Result<()> {
    ptrace(request, thread, address, std::ptr::from_mut(target).expose_provenance())
}

pub(crate) fn event_message(thread: pid_t) -> io::Result<c_ulong> {
    let mut message: c_ulong = 0;
    with(libc::PTRACE_GETEVENTMSG, thread, 0, &mut message)?;
    Ok(message)
}

/// Returns the signals that a stopped thread blocks, signal 1 in bit 0.
pub(crate) fn signal_mask(thread: pid_t) -> io::Result<u64> {
    let mut mask = 0_u64;
    with(PTRACE_GETSIGMASK, thread, size_of::<u64>(), &mut mask)?;
    Ok(mask)
}

pub(crate) fn set_signal_mask(thread: pid_t, mut mask: u64) -> io::Result<()> {
    with(PTRACE_SETSIGMASK, thread, size_of::<u64>(), &mut mask)
}

/// System call of a stopped thread, with its arguments or its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SystemCall {
    /// It is about to make a call that the filter of system calls reports.
    Asked {
        /// Number of the system call.
        number: u64,
        /// Arguments of the system call.
        arguments: [u64; 6],
    },
    /// A call returns. An error is a negative number.
    Answered(i64),
}

/// `struct ptrace_syscall_info`.
#[repr(C)]
#[derive(Default)]
struct SyscallInfo {
    op: u8,
    pad: [u8; 3],
    arch: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    /// Number and arguments, or the returned value.
    words: [u64; 8],
}

/// Returns the system call at which a thread is stopped (Linux 5.3). `None`: it is stopped elsewhere.
pub(crate) fn system_call(thread: pid_t) -> io::Result<Option<SystemCall>> {
    const EXIT: u8 = 2;
    const SECCOMP: u8 = 3;
    let mut info = SyscallInfo::default();
    with(PTRACE_GET_SYSCALL_INFO, thread, size_of::<SyscallInfo>(), &mut info)?;
    let [number, arguments @ .., _] = info.words;
    Ok(match info.op {
        SECCOMP => Some(SystemCall::Asked { number, arguments }),
        EXIT => Some(SystemCall::Answered(number.cast_signed())),
        _ => None,
    })
}

/// General registers of a thread, as `user_regs_struct` orders them.
#[cfg(target_arch = "x86_64")]
pub(crate) type Registers = [u64; 27];
/// General registers of a thread, as `user_pt_regs` orders them.
#[cfg(target_arch = "aarch64")]
pub(crate) type Registers = [u64; 34];
/// General registers of a thread. No call is made in other programs on this kind of CPU.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) type Registers = [u64; 1];

pub(crate) fn registers(thread: pid_t) -> io::Result<Registers> {
    let mut registers: Registers = [0; _];
    let mut part = libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of::<Registers>() };
    with(PTRACE_GETREGSET, thread, NT_PRSTATUS, &mut part)?;
    Ok(registers)
}

pub(crate) fn set_registers(thread: pid_t, registers: &Registers) -> io::Result<()> {
    let base = std::ptr::from_ref(registers).cast_mut().cast();
    let mut part = libc::iovec { iov_base: base, iov_len: size_of::<Registers>() };
    with(PTRACE_SETREGSET, thread, NT_PRSTATUS, &mut part)
}

/// Waits for the next event of process `pid`, or (`-1`) of any child or tracee of this thread.
pub(crate) fn wait(pid: pid_t, options: c_int) -> io::Result<(pid_t, c_int)> {
    loop {
        let mut status = 0;
        // SAFETY: the status is a variable of this function.
        let found = unsafe { libc::waitpid(pid, &raw mut status, options | libc::__WNOTHREAD) };
        if found >= 0 {
            return Ok((found, status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
