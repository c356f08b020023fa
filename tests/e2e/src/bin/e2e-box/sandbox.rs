//! Sandboxes as lists of steps, for a program that enters one and for one that enters one and executes another.
//!
//! Plain system calls: what enters a sandbox must not bring a library with it.

use std::ffi::{CString, c_int, c_long, c_uint, c_ulong};
use std::io::Error;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How a program ends that cannot enter its sandbox: the machine or the user does not permit it.
pub(crate) const CANNOT_ENTER: c_int = 77;

/// The user and the group of nobody.
const NOBODY: u32 = 65534;

/// What a sandbox is made of.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// `PR_SET_NO_NEW_PRIVS`.
    NoNewPrivileges,
    /// A seccomp filter of this thread that kills the process at every other system call.
    Filter(&'static [&'static [c_long]]),
    /// Landlock rules by which files can be opened below `/` with these rights and no others.
    Landlock(u64),
    /// unshare(2).
    Unshare(c_int),
    /// A child goes on; its parent waits, and ends as it does.
    Fork,
    /// No mount that is made here is seen elsewhere, and the other way round. Needs a mount namespace.
    PrivateMounts,
    /// Everything that is mounted can only be read.
    ReadOnly,
    /// An empty file system over this directory, or the part of it that matters: this program is seen all the same.
    Cover(&'static str),
    /// chroot(2).
    Root(&'static str),
    /// Nobody, without other groups.
    Nobody,
    /// Nobody with all capabilities; the user first, as setpriv(1) does.
    NobodyWithCapabilities,
    /// Both limits of a resource.
    Limit(c_uint, u64),
    /// As `Limit(RLIMIT_AS)`: what the program has now, and so many bytes.
    MoreMemory(u64),
    /// So many descriptors may be open, and all of them are but for some.
    Descriptors { limit: u64, free: usize },
    /// Closes all descriptors but the first three.
    Close,
}

/// What a program needs that has all that it will ever have.
const STRICT: &[c_long] =
    &[libc::SYS_read, libc::SYS_write, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_rt_sigreturn];

/// What the dynamic loader, libc and the start of a Rust program need besides.
const LOADER: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_openat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_pread64,
    libc::SYS_close,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_prlimit64,
    libc::SYS_getrandom,
    libc::SYS_futex,
    libc::SYS_ppoll,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    // For `$LIB` and `$ORIGIN` in a library's path, as glibc's loader finds out where the program is.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// `LANDLOCK_ACCESS_FS_*`: to execute, to read a file, to read a directory.
const LOOK: u64 = 1 | 1 << 2 | 1 << 3;

const NAMESPACES: c_int = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET;

/// Every sandbox by its name.
const SANDBOXES: &[(&str, &[Step])] = &[
    ("none", &[]),
    ("strict", &[Step::NoNewPrivileges, Step::Filter(&[STRICT])]),
    ("loader", &[Step::NoNewPrivileges, Step::Filter(&[STRICT, LOADER])]),
    ("landlock", &[Step::NoNewPrivileges, Step::Landlock(0)]),
    ("landlock-look", &[Step::NoNewPrivileges, Step::Landlock(LOOK)]),
    ("user-namespace", &[Step::Unshare(libc::CLONE_NEWUSER)]),
    ("pid-namespace", &[Step::Unshare(libc::CLONE_NEWPID), Step::Fork]),
    ("mount-namespace", &[Step::Unshare(libc::CLONE_NEWNS), Step::PrivateMounts, Step::Cover("/tmp")]),
    ("network-namespace", &[Step::Unshare(libc::CLONE_NEWNET)]),
    ("namespaces", &[Step::Unshare(NAMESPACES), Step::PrivateMounts, Step::Cover("/tmp"), Step::Fork]),
    (
        "chroot",
        &[
            Step::Unshare(libc::CLONE_NEWNS),
            Step::PrivateMounts,
            Step::Cover("/tmp"),
            Step::Cover("/var"),
            Step::Root("/"),
        ],
    ),
    // An empty directory that every system has.
    ("chroot-empty", &[Step::Root("/proc/self/fdinfo")]),
    ("nobody", &[Step::Nobody]),
    ("worker", &[Step::Fork, Step::Nobody]),
    ("keep-capabilities", &[Step::NobodyWithCapabilities]),
    ("no-new-privileges", &[Step::NoNewPrivileges]),
    ("read-only", &[Step::Unshare(libc::CLONE_NEWNS), Step::PrivateMounts, Step::ReadOnly]),
    ("descriptors", &[Step::Descriptors { limit: 64, free: 0 }]),
    // The loader opens one file at a time.
    ("descriptors-but-one", &[Step::Descriptors { limit: 64, free: 1 }]),
    ("threads", &[Step::Nobody, Step::Limit(libc::RLIMIT_NPROC, 0)]),
    ("memory", &[Step::MoreMemory(1 << 20)]),
    // Room for a program and its libraries, and not for a session's memory.
    ("memory-of-program", &[Step::Limit(libc::RLIMIT_AS, 48 << 20)]),
    ("closed", &[Step::Close]),
];

/// Enters a sandbox.
///
/// # Errors
/// One line: which step failed, and why.
pub(crate) fn enter(name: &str) -> Result<(), String> {
    let (_, steps) = SANDBOXES.iter().find(|(known, _)| *known == name).ok_or(format!("no sandbox `{name}`"))?;
    steps.iter().try_for_each(|step| step.take().map_err(|error| format!("{step:?}: {error}")))
}

/// What a call of libc has returned, as a result.
fn checked(result: c_long) -> Result<c_long, Error> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn prctl(option: c_int) -> Result<(), Error> {
    // SAFETY: the options that are given here take numbers.
    checked(unsafe { libc::prctl(option, 1, 0, 0, 0) }.into()).map(drop)
}

impl Step {
    fn take(self) -> Result<(), Error> {
        match self {
            Step::NoNewPrivileges => prctl(libc::PR_SET_NO_NEW_PRIVS),
            Step::Filter(calls) => filter(calls),
            Step::Landlock(rights) => landlock(rights),
            // SAFETY: takes a number.
            Step::Unshare(flags) => checked(unsafe { libc::unshare(flags) }.into()).map(drop),
            Step::Fork => fork(),
            Step::PrivateMounts => mount(None, "/", libc::MS_REC | libc::MS_PRIVATE),
            Step::Cover(path) => cover(path),
            Step::ReadOnly => make_read_only(),
            Step::Root(path) => chroot(path),
            Step::Nobody => set_groups().and_then(|()| set_user()),
            Step::NobodyWithCapabilities => {
                prctl(libc::PR_SET_KEEPCAPS)?;
                set_user()?;
                raise_capabilities()?;
                set_groups()
            }
            Step::Limit(resource, value) => limit(resource, value),
            Step::MoreMemory(bytes) => limit(libc::RLIMIT_AS, memory_bytes()? + bytes),
            Step::Descriptors { limit: count, free } => {
                limit(libc::RLIMIT_NOFILE, count)?;
                fill_descriptors(free)
            }
            // SAFETY: takes numbers; this program uses none of these descriptors.
            Step::Close => checked(unsafe { libc::syscall(libc::SYS_close_range, 3, c_uint::MAX, 0) }).map(drop),
        }
    }
}

fn filter(calls: &[&[c_long]]) -> Result<(), Error> {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // The number of the call, offset 0 of `seccomp_data`.
    let mut filter = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in calls.iter().copied().flatten() {
        filter.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, *call as u32));
        filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW));
    }
    filter.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // Not given back, because the filter need not permit what giving it back needs.
    std::mem::forget(filter);
    // SAFETY: reads a program that is never given back.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// All rights of Landlock's first version, which are those to files and directories.
const LANDLOCK_RIGHTS: u64 = (1 << 13) - 1;
const LANDLOCK_RULE_PATH_BENEATH: c_int = 1;

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: c_int,
}

fn landlock(rights: u64) -> Result<(), Error> {
    let handled: u64 = LANDLOCK_RIGHTS;
    // SAFETY: reads the eight bytes of the first version's attributes.
    let rules = checked(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, 8_usize, 0) })?;
    if rights != 0 {
        // SAFETY: a terminated path.
        let root = checked(unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) }.into())?;
        let rule = PathBeneath { allowed_access: rights, parent_fd: root as c_int };
        // SAFETY: reads a rule of this type.
        let added = unsafe {
            libc::syscall(libc::SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &raw const rule, 0)
        };
        checked(added)?;
        // SAFETY: opened above.
        unsafe { libc::close(root as c_int) };
    }
    // SAFETY: takes numbers.
    checked(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules, 0) })?;
    // SAFETY: made above.
    unsafe { libc::close(rules as c_int) };
    Ok(())
}

fn fork() -> Result<(), Error> {
    // SAFETY: the program has no other thread of its own, and goes on as any program does.
    let pid = checked(unsafe { libc::fork() }.into())? as libc::pid_t;
    if pid == 0 {
        return Ok(());
    }
    let mut status = 0;
    // SAFETY: this process's child, and room for an answer.
    checked(unsafe { libc::waitpid(pid, &mut status, 0) }.into())?;
    let code = if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) };
    // SAFETY: takes a number; atexit handlers run, as at every end.
    unsafe { libc::exit(code) }
}

fn mount(kind: Option<&str>, at: &str, flags: c_ulong) -> Result<(), Error> {
    let kind = kind.map(|kind| CString::new(kind).expect("no NUL"));
    let at = CString::new(at).expect("no NUL");
    let kind = kind.as_ref().map_or(std::ptr::null(), |kind| kind.as_ptr());
    // SAFETY: terminated texts, or none where mount(2) takes none.
    checked(unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), kind, flags, std::ptr::null()) }.into()).map(drop)
}

/// Where this program lies below the directory itself, of the directory no more is covered than what holds the session's sockets.
fn cover(path: &str) -> Result<(), Error> {
    let mount = |at: &Path| mount(Some("tmpfs"), at.to_str().expect("a path of text"), 0);
    if !std::env::current_exe()?.starts_with(path) {
        return mount(path.as_ref());
    }
    let sockets = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).unwrap_or_default();
    sockets.parent().filter(|above| above.starts_with(path) && *above != path).map_or(Ok(()), mount)
}

fn make_read_only() -> Result<(), Error> {
    // `struct mount_attr`: what is set, what is cleared, propagation, the user namespace's descriptor.
    let attributes = [libc::MOUNT_ATTR_RDONLY, 0, 0, 0];
    let size_bytes = size_of_val(&attributes);
    // SAFETY: a terminated path, and attributes of this size.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_bytes,
        )
    };
    checked(result).map(drop)
}

fn chroot(path: &str) -> Result<(), Error> {
    let path = CString::new(path).expect("no NUL");
    // SAFETY: a terminated path.
    checked(unsafe { libc::chroot(path.as_ptr()) }.into())?;
    // SAFETY: a terminated path.
    checked(unsafe { libc::chdir(c"/".as_ptr()) }.into()).map(drop)
}

fn set_groups() -> Result<(), Error> {
    // SAFETY: reads no groups.
    checked(unsafe { libc::setgroups(0, std::ptr::null()) }.into())?;
    // SAFETY: takes numbers.
    checked(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) }.into()).map(drop)
}

fn set_user() -> Result<(), Error> {
    // SAFETY: takes numbers.
    checked(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }.into()).map(drop)
}

/// Has all capabilities that are permitted be effective.
fn raise_capabilities() -> Result<(), Error> {
    // `_LINUX_CAPABILITY_VERSION_3`, of this thread.
    let header = [0x2008_0522_u32, 0];
    // Twice effective, permitted, inheritable.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: this version's header, and room for its two sets.
    checked(unsafe { libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets) })?;
    sets.iter_mut().for_each(|set| set[0] = set[1]);
    // SAFETY: this version's header and its two sets.
    checked(unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const sets) }).map(drop)
}

fn limit(resource: c_uint, value: u64) -> Result<(), Error> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: reads a limit.
    checked(unsafe { libc::setrlimit(resource, &limit) }.into()).map(drop)
}

/// What this process has mapped.
fn memory_bytes() -> Result<u64, Error> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.ok_or_else(|| Error::other("/proc/self/statm has no number"))? * 4096)
}

fn fill_descriptors(free: usize) -> Result<(), Error> {
    let mut opened = Vec::new();
    loop {
        // SAFETY: takes a number. What it gives stays open over `exec`.
        let fd = unsafe { libc::dup(0) };
        if fd < 0 {
            break;
        }
        opened.push(fd);
    }
    for fd in opened.iter().rev().take(free) {
        // SAFETY: opened above.
        unsafe { libc::close(*fd) };
    }
    Ok(())
}

/// Becomes another program.
///
/// # Errors
/// One line: why it cannot be executed.
#[allow(dead_code, reason = "one of the two programs executes another")]
pub(crate) fn execute(command: &[std::ffi::OsString]) -> String {
    let texts: Vec<CString> = command.iter().map(|word| CString::new(word.as_bytes()).expect("no NUL")).collect();
    let mut words: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
    words.push(std::ptr::null());
    // SAFETY: a null-terminated list of terminated texts.
    unsafe { libc::execv(words[0], words.as_ptr()) };
    format!("{}: {}", command[0].display(), Error::last_os_error())
}

/// Waits for a byte on standard input, does something that goes by the byte, says so, and so on until there is no byte left; then the program exits.
///
/// It makes no other system calls than the strictest filter permits.
pub(crate) fn work(mut step: impl FnMut(u8)) -> ! {
    loop {
        say(b"ready\n");
        let mut byte = 0_u8;
        // SAFETY: room for a byte.
        if unsafe { libc::read(0, (&raw mut byte).cast(), 1) } != 1 {
            // SAFETY: takes a number. Handlers run; the standard library, which would make system calls of its own, is not asked.
            unsafe { libc::exit(0) }
        }
        step(byte);
        say(b"done\n");
    }
}

fn say(text: &[u8]) {
    // SAFETY: reads the text.
    unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
}
