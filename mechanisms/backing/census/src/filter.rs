//! The filter of system calls that stops a program where it obtains memory or gives it back, and nowhere else
//! (`seccomp(2)`).

use std::io;

use libc::{c_long, sock_filter, sock_fprog};

/// `AUDIT_ARCH_X86_64`.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xC000_003E);
/// `AUDIT_ARCH_AARCH64`.
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xC000_00B7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// The calls by which a program obtains memory or gives it back.
const CALLS: [c_long; 6] =
    [libc::SYS_mmap, libc::SYS_brk, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_madvise];

// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Compares the loaded word, and skips that many statements if it is equal or not.
const fn jump(k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt, jf, k }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Installs the filter in this thread. It stays across `exec`, in all descendants, and cannot be removed: without a tracer,
/// the calls fail with `ENOSYS`. Async-signal-safe.
///
/// # Errors
/// Errors of the kernel: it has no filters, or a sandbox forbids them.
pub(crate) fn install() -> io::Result<()> {
    let Some(architecture) = ARCHITECTURE else { return Err(io::Error::from_raw_os_error(libc::ENOSYS)) };
    let count = CALLS.len() as u8;
    let mut statements = [statement(RETURN, libc::SECCOMP_RET_ALLOW); CALLS.len() + 5];
    // Programs for another kind of CPU, such as 32-bit ones, are left alone.
    statements[..3].copy_from_slice(&[
        statement(LOAD, ARCH),
        jump(architecture, 0, count + 1),
        statement(LOAD, NUMBER),
    ]);
    // Each jump leads behind the last but one statement, which allows the call.
    for (index, call) in (0..count).zip(CALLS) {
        statements[3 + usize::from(index)] = jump(call as u32, count - index, 0);
    }
    statements[CALLS.len() + 4] = statement(RETURN, libc::SECCOMP_RET_TRACE);
    // The kernel only reads the statements.
    let program = sock_fprog { len: statements.len() as u16, filter: statements.as_ptr().cast_mut() };
    // SAFETY: the call has no pointers (prctl(2)).
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A filter that allowed no speculation would slow down the program itself.
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the program points to its statements, which live until the call returns (seccomp(2)).
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
