//! A child under ptrace(2): one thread, stopped whenever it is inspected.

use std::ffi::{c_int, c_long};

use libc::{pid_t, user_regs_struct};

const INT3: u64 = 0xCC;

/// A stopped child.
#[derive(Debug)]
pub struct Tracee {
    pid: pid_t,
}

/// # Safety
/// `data` must be what the request requires: a number, or a pointer to live memory that the request reads or fills.
unsafe fn ptrace(request: libc::c_uint, pid: pid_t, address: u64, data: u64) -> c_long {
    // SAFETY: `data` is what the request requires, as this function's caller guarantees. Changes affect only the
    // child's memory and registers.
    unsafe { libc::ptrace(request, pid, address, data) }
}

/// Makes the parent trace the calling process. Returns false if that is forbidden.
pub fn trace_me() -> bool {
    // SAFETY: the request takes no pointers.
    unsafe { ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == 0 }
}

fn wait(pid: pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: waits for a child of this process and writes its status to a live integer.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(waited, pid, "{}", std::io::Error::last_os_error());
    status
}

impl Tracee {
    /// Returns the child once it has stopped itself by a breakpoint of its own, or its exit code if it ends before.
    pub fn await_first_stop(pid: pid_t) -> Result<Tracee, c_int> {
        let status = wait(pid);
        if libc::WIFEXITED(status) {
            return Err(libc::WEXITSTATUS(status));
        }
        let tracee = Tracee { pid };
        tracee.check_trap(status);
        // SAFETY: the data is a number.
        let set = unsafe { ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_EXITKILL as u64) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        Ok(tracee)
    }

    fn check_trap(&self, status: c_int) {
        let is_trap = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP;
        assert!(is_trap, "child {}: status {status:#x}", self.pid);
    }

    /// Returns its registers.
    pub fn registers(&self) -> user_regs_struct {
        let mut registers = std::mem::MaybeUninit::<user_regs_struct>::uninit();
        // SAFETY: `registers` has room for what the request fills.
        let got =
            unsafe { ptrace(libc::PTRACE_GETREGS, self.pid, 0, registers.as_mut_ptr().expose_provenance() as u64) };
        assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the request has filled it, since it returned 0.
        unsafe { registers.assume_init() }
    }

    /// Returns the address of its next instruction.
    pub fn ip(&self) -> u64 {
        self.registers().rip
    }

    fn set_ip(&self, ip: u64) {
        let registers = user_regs_struct { rip: ip, ..self.registers() };
        // SAFETY: the data points to a live set of registers, unchanged but for one.
        let set =
            unsafe { ptrace(libc::PTRACE_SETREGS, self.pid, 0, (&raw const registers).expose_provenance() as u64) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    /// Returns an aligned word of its memory.
    pub fn peek(&self, address: u64) -> u64 {
        let mut word = 0u64;
        // Unlike libc's function, the system call returns word and error separately.
        // SAFETY: `word` has room for the word.
        let got = unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_PEEKDATA, self.pid, address, &mut word) };
        assert_eq!(got, 0, "{address:#x}: {}", std::io::Error::last_os_error());
        word
    }

    /// Changes an aligned word of its memory.
    pub fn poke(&self, address: u64, word: u64) {
        // SAFETY: the data is the word itself, not a pointer.
        let set = unsafe { ptrace(libc::PTRACE_POKEDATA, self.pid, address, word) };
        assert_eq!(set, 0, "{address:#x}: {}", std::io::Error::last_os_error());
    }

    /// Replaces the byte at an address, and returns the old one.
    fn exchange(&self, address: u64, byte: u64) -> u64 {
        let (word, shift) = (address & !7, (address & 7) * 8);
        let before = self.peek(word);
        self.poke(word, before & !(0xFF << shift) | byte << shift);
        before >> shift & 0xFF
    }

    fn resume(&self, request: libc::c_uint) {
        // SAFETY: the data is a number: no signal.
        let resumed = unsafe { ptrace(request, self.pid, 0, 0) };
        assert_eq!(resumed, 0, "{}", std::io::Error::last_os_error());
        self.check_trap(wait(self.pid));
    }

    /// Executes one instruction. A thread in a critical section is aborted first.
    pub fn step(&self) {
        self.resume(libc::PTRACE_SINGLESTEP);
    }

    /// Runs to the first of these addresses and stops before the instruction there. Returns `None` if it reaches a
    /// breakpoint of the program's own.
    pub fn run_to(&self, addresses: &[u64]) -> Option<u64> {
        let planted: Vec<u64> = addresses.iter().map(|address| self.exchange(*address, INT3)).collect();
        self.resume(libc::PTRACE_CONT);
        for (address, byte) in addresses.iter().zip(planted) {
            self.exchange(*address, byte);
        }
        let hit = self.ip() - 1;
        addresses.contains(&hit).then(|| {
            self.set_ip(hit);
            hit
        })
    }

    /// Kills it where it is: it does not execute another instruction.
    pub fn kill(self) {
        // SAFETY: sends a signal to a child that has not been waited for, so its id is its own.
        let sent = unsafe { libc::kill(self.pid, libc::SIGKILL) };
        assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
        let status = wait(self.pid);
        let is_killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        assert!(is_killed, "child {}: status {status:#x}", self.pid);
    }
}
