//! The system calls `ptrace(2)` and `waitpid(2)`.

use std::io;

use libc::{c_int, pid_t};

/// Type of a `ptrace` request in this libc.
#[cfg(not(target_env = "musl"))]
pub(crate) type Request = libc::c_uint;
#[cfg(target_env = "musl")]
pub(crate) type Request = c_int;

pub(crate) fn ptrace(request: Request, thread: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: of the requests that this module makes, only PTRACE_GETEVENTMSG makes the kernel write to this process's
    // memory, and only PTRACE_SETSIGMASK makes it read there; both callers pass the address of a word. The other
    // requests affect only the tracee.
    match unsafe { libc::ptrace(request, thread, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
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
