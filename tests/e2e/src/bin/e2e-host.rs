//! Programs that depend on what else happens in their process.

use std::io::Read;
use std::os::fd::RawFd;

use dormouse_e2e::emit;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments[index].parse::<u32>().expect("a number");
    match arguments[0].as_str() {
        "look" => look(),
        "strict" => strict(number(1).into()),
        "strict-fork" => strict_fork(),
        "unshare" => unshare(arguments[1] == "stop"),
        "close-all" => close_all(),
        "limit" => limit(),
        "as-before-5.9" => without_close_range(&arguments[1..]),
        "become" => become_user(number(1)),
        "children" => children(number(1)),
        "wait" => wait(),
        other => panic!("no program `{other}`"),
    }
}

fn entries(dir: &str) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a directory").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Prints `ready`, and waits for the end of input.
fn wait() {
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Prints the number of threads, and that of descriptors without the directory's own. Asserts that the first three are
/// not sockets.
fn look() {
    for fd in 0..3 {
        let what = std::fs::read_link(format!("/proc/self/fd/{fd}")).expect("the first three are there");
        assert!(!what.to_string_lossy().starts_with("socket:"), "{fd} is {what:?}");
    }
    println!("threads {} descriptors {}", entries("/proc/self/task").len(), entries("/proc/self/fd").len() - 1);
}

/// Returns a seccomp filter with one action for some system calls and one for all others.
fn filter(calls: &[libc::c_long], theirs: u32, others: u32) -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // The number of the system call is the first word of the filter's input.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for (index, call) in calls.iter().enumerate() {
        let jt = (calls.len() - index) as u8;
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        program.push(libc::sock_filter { code, jt, jf: 0, k: *call as u32 });
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, others));
    program.push(statement(libc::BPF_RET | libc::BPF_K, theirs));
    program
}

/// From now on, any other system call kills the process.
fn enter_sandbox(allowed: &[libc::c_long]) {
    enter(filter(allowed, libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_PROCESS));
}

fn enter(mut program: Vec<libc::sock_filter>) {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: prctl(2) takes only numbers here.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: prctl(2) reads the program and its instructions, which live until the call returns.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }, 0);
}

/// System calls that a strict sandbox allows.
const STRICT: [libc::c_long; 5] =
    [libc::SYS_read, libc::SYS_write, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_rt_sigreturn];

/// Ends like a C program: Rust's own end would unmap its alternate stack.
fn exit() -> ! {
    // SAFETY: there is only one thread, and exit handlers may run.
    unsafe { libc::exit(0) }
}

fn strict(events: u64) {
    enter_sandbox(&STRICT);
    for number in 0..events {
        emit::step(0, number);
    }
    exit();
}

fn strict_fork() {
    let mut allowed = STRICT.to_vec();
    // System calls of glibc's fork and wait.
    allowed.extend([libc::SYS_clone, libc::SYS_wait4, libc::SYS_set_robust_list]);
    if cfg!(debug_assertions) {
        // Used by the lock order check.
        allowed.push(libc::SYS_gettid);
    }
    enter_sandbox(&allowed);
    for _ in 0..10 {
        // SAFETY: there is only one thread.
        let child = unsafe { libc::fork() };
        emit::step(0, 0);
        if child == 0 {
            exit();
        }
        let mut status = 0;
        // SAFETY: the child was just made, and `status` has room for its status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if waited != child || status != 0 {
            // SAFETY: exit(3) takes a number, and no other thread runs exit handlers.
            unsafe { libc::exit(1) }
        }
    }
    exit();
}

fn unshare(stop: bool) {
    if stop {
        dormouse::stop_listening().expect("it stops");
        dormouse::stop_listening().expect("once more is no mistake");
    }
    // SAFETY: nothing else depends on the process's user namespace.
    let done = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
    let error = if done == 0 { "none".to_string() } else { std::io::Error::last_os_error().to_string() };
    println!("{error}");
}

/// Closes descriptors that it does not know, as daemons do, and opens a file of its own in place of each.
fn close_all() {
    println!("ready");
    for fd in 3..100 {
        // SAFETY: the descriptors belong to this program, and nothing else uses them from here on.
        unsafe { libc::close(fd) };
    }
    for _ in 3..100 {
        // SAFETY: the path ends in NUL.
        let fd: RawFd = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
        assert!(fd >= 2);
    }
    println!("closed");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    for fd in 3..100 {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `stat` has room for the answer.
        assert_eq!(unsafe { libc::fstat(fd, stat.as_mut_ptr()) }, 0, "{fd} was closed");
    }
}

/// Executes this program with other arguments, on a system without close_range(2).
fn without_close_range(arguments: &[String]) {
    use std::os::unix::process::CommandExt;
    enter(filter(&[libc::SYS_close_range], libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, libc::SECCOMP_RET_ALLOW));
    let program = std::env::current_exe().expect("a path");
    // The filter does not kill the process.
    panic!("{}", std::process::Command::new(program).args(arguments).env("DORMOUSE_SECCOMP", "0").exec());
}

/// A program at its descriptor limit.
fn limit() {
    let limit = libc::rlimit { rlim_cur: 16, rlim_max: 16 };
    // SAFETY: setrlimit(2) reads a live, valid limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    // SAFETY: the path ends in NUL.
    while unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) } >= 0 {}
    wait();
}

/// Drops privileges as servers do.
fn become_user(id: u32) {
    println!("started");
    // SAFETY: reads no groups, because the count is 0.
    assert_eq!(unsafe { libc::setgroups(0, std::ptr::null()) }, 0);
    // SAFETY: takes numbers only.
    assert_eq!(unsafe { libc::setresgid(id, id, id) }, 0);
    // SAFETY: takes numbers only.
    assert_eq!(unsafe { libc::setresuid(id, id, id) }, 0);
    wait();
}

/// Children that listen, and then end without running handlers.
fn children(count: u32) {
    for _ in 0..count {
        // SAFETY: only one thread forks, and the child only calls functions that are allowed there.
        let child = unsafe { libc::fork() };
        if child == 0 {
            dormouse::listen().expect("the child listens");
            // SAFETY: _exit(2) ends the process.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the child was just made, and `status` has room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
    wait();
}
