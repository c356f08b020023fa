//! A child under ptrace(2): one thread, stopped whenever it is inspected.

use std::ffi::{c_int, c_long};

use libc::pid_t;

use crate::machine::{self, BREAKPOINT, BREAKPOINT_BITS, BREAKPOINT_PASSED, Registers};

/// `NT_PRSTATUS`: the general registers.
const GENERAL: u64 = 1;

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
        if tracee.is_at_breakpoint() {
            tracee.set_ip(tracee.ip() + u64::from(BREAKPOINT_BITS.count_ones() / 8));
        }
        Ok(tracee)
    }

    fn check_trap(&self, status: c_int) {
        let is_trap = libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP;
        assert!(is_trap, "child {}: status {status:#x}", self.pid);
    }

    /// Returns its registers.
    pub fn registers(&self) -> Registers {
        let mut registers = std::mem::MaybeUninit::<Registers>::uninit();
        let mut room = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: size_of::<Registers>() };
        // SAFETY: `room` describes what the request fills.
        let got =
            unsafe { ptrace(libc::PTRACE_GETREGSET, self.pid, GENERAL, (&raw mut room).expose_provenance() as u64) };
        assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
        assert_eq!(room.iov_len, size_of::<Registers>());
        // SAFETY: the request has filled it, since it returned 0 and its size.
        unsafe { registers.assume_init() }
    }

    /// Returns the address of its next instruction.
    pub fn ip(&self) -> u64 {
        machine::ip(&self.registers())
    }

    fn set_ip(&self, ip: u64) {
        let mut registers = self.registers();
        machine::set_ip(&mut registers, ip);
        let mut room = libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of::<Registers>() };
        // SAFETY: `room` describes a live set of registers, unchanged but for one.
        let set =
            unsafe { ptrace(libc::PTRACE_SETREGSET, self.pid, GENERAL, (&raw mut room).expose_provenance() as u64) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    /// Whether its next instruction is a breakpoint.
    pub fn is_at_breakpoint(&self) -> bool {
        let ip = self.ip();
        self.peek(ip & !7) >> ((ip & 7) * 8) & BREAKPOINT_BITS == BREAKPOINT
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

    /// Replaces as many bytes as a breakpoint has at an address, and returns the old ones.
    fn exchange(&self, address: u64, code: u64) -> u64 {
        let (word, shift) = (address & !7, (address & 7) * 8);
        let before = self.peek(word);
        self.poke(word, before & !(BREAKPOINT_BITS << shift) | code << shift);
        before >> shift & BREAKPOINT_BITS
    }

    fn resume(&self, request: libc::c_uint) {
        // SAFETY: the data is a number: no signal.
        let resumed = unsafe { ptrace(request, self.pid, 0, 0) };
        assert_eq!(resumed, 0, "{}", std::io::Error::last_os_error());
        self.check_trap(wait(self.pid));
    }

    /// Executes one instruction. A thread in a critical section is aborted first.
    pub fn step(&self) {
        let ends = machine::stops_after(self.ip(), |address| self.peek(address));
        if ends.is_empty() {
            self.single_step();
        } else {
            self.run_to(&ends).expect("the thread reaches one of them");
        }
    }

    /// Makes the kernel execute one instruction.
    pub fn single_step(&self) {
        self.resume(libc::PTRACE_SINGLESTEP);
    }

    /// Runs to the first of these addresses and stops before the instruction there. Returns `None` if it reaches a
    /// breakpoint of the program's own.
    pub fn run_to(&self, addresses: &[u64]) -> Option<u64> {
        let planted: Vec<u64> = addresses.iter().map(|address| self.exchange(*address, BREAKPOINT)).collect();
        self.resume(libc::PTRACE_CONT);
        for (address, code) in addresses.iter().zip(planted) {
            self.exchange(*address, code);
        }
        let hit = self.ip() - BREAKPOINT_PASSED;
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
