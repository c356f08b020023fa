//! Sandboxes as lists of steps, for a program that enters one and for one that also executes another program there.
//!
//! Uses plain system calls: a program that enters a sandbox must not bring a library with it.

use std::ffi::{CString, c_int, c_long, c_uint, c_ulong};
use std::io::Error;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Exit code of a program that cannot enter its sandbox: the machine or the user does not permit it.
pub(crate) const CANNOT_ENTER: c_int = 77;

/// User and group id of nobody.
const NOBODY: u32 = 65534;

/// Steps of a sandbox.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// `PR_SET_NO_NEW_PRIVS`.
    NoNewPrivileges,
    /// A seccomp filter of this thread that allows these system calls and kills the process at every other one.
    Filter(&'static [&'static [c_long]]),
    /// A seccomp filter of this thread that answers like a kernel without these parts. The process must be told by
    /// `DORMOUSE_SECCOMP=0` that the filter kills nothing.
    Without(&'static [&'static [Missing]]),
    /// Landlock rules that allow only these rights to files below `/`.
    Landlock(u64),
    /// unshare(2).
    Unshare(c_int),
    /// Continues in a child; the parent waits, and ends with the child's status.
    Fork,
    /// Makes mounts here invisible elsewhere, and vice versa. Needs a mount namespace.
    PrivateMounts,
    /// Makes all mounts read-only.
    ReadOnly,
    /// Mounts an empty file system over this directory, or over the relevant part of it: this program stays visible.
    Cover(&'static str),
    /// chroot(2).
    Root(&'static str),
    /// Changes to user and group nobody, without other groups.
    Nobody,
    /// Changes to user nobody with all capabilities; first the user, like setpriv(1).
    NobodyWithCapabilities,
    /// Sets both limits of a resource.
    Limit(c_uint, u64),
    /// Limits address space (`RLIMIT_AS`) to the current size of the program plus this many bytes.
    MoreMemory(u64),
    /// Limits descriptors to `limit`, and opens all of them except `free`.
    Descriptors { limit: u64, free: usize },
    /// Closes all descriptors except the first three.
    Close,
}

/// A part of the kernel that is missing: calls, restricted by arguments, and their error.
#[derive(Debug, Clone, Copy)]
struct Missing {
    calls: Calls,
    /// Indexes of arguments, and what is known of their lower 32 bits if the call is meant.
    arguments: &'static [(u32, Test)],
    errno: c_int,
}

#[derive(Debug, Clone, Copy)]
enum Calls {
    One(c_long),
    /// All from this number on: numbers are given in the order of time.
    From(c_long),
}

#[derive(Debug, Clone, Copy)]
enum Test {
    Equals(c_int),
    AtLeast(c_int),
    LessThan(c_int),
    /// At least one of these bits is set.
    HasOf(c_uint),
}

const fn missing(call: c_long) -> Missing {
    Missing { calls: Calls::One(call), arguments: &[], errno: libc::ENOSYS }
}

const fn missing_from(call: c_long) -> Missing {
    Missing { calls: Calls::From(call), arguments: &[], errno: libc::ENOSYS }
}

const fn missing_of(call: c_long, arguments: &'static [(u32, Test)], errno: c_int) -> Missing {
    Missing { calls: Calls::One(call), arguments, errno }
}

/// See socket(7).
const NO_PEER_PIDFD: Missing = missing_of(
    libc::SYS_getsockopt,
    &[(1, Test::Equals(libc::SOL_SOCKET)), (2, Test::Equals(libc::SO_PEERPIDFD))],
    libc::ENOPROTOOPT,
);

/// `PAGEMAP_SCAN` of `linux/fs.h`.
const NO_PAGEMAP_SCAN: Missing =
    missing_of(libc::SYS_ioctl, &[(1, Test::Equals(0xC060_6610_u32.cast_signed()))], libc::ENOTTY);

/// Advice for memory from this number on, except that for tests of memory errors, which is 100 and more.
const fn no_advice(arguments: &'static [(u32, Test)]) -> Missing {
    missing_of(libc::SYS_madvise, arguments, libc::EINVAL)
}

/// `MADV_HWPOISON`.
const ADVICE_OF_TESTS: Test = Test::LessThan(100);

/// Flags, commands and calls that Linux got between 5.4 and 6.7, as far as a filter can recognise them.
const AFTER_5_4: &[Missing] = &[
    missing_from(CLOSE_RANGE),
    NO_PEER_PIDFD,
    NO_PAGEMAP_SCAN,
    no_advice(&[(2, Test::AtLeast(22)), (2, ADVICE_OF_TESTS)]),
    // Barriers for restartable sequences.
    missing_of(libc::SYS_membarrier, &[(0, Test::AtLeast(1 << 7))], libc::EINVAL),
    // `MFD_NOEXEC_SEAL`, `MFD_EXEC`.
    missing_of(libc::SYS_memfd_create, &[(1, Test::HasOf(0x18))], libc::EINVAL),
    // `F_SEAL_EXEC`.
    missing_of(libc::SYS_fcntl, &[(1, Test::Equals(libc::F_ADD_SEALS)), (2, Test::HasOf(0x20))], libc::EINVAL),
    missing_of(libc::SYS_mremap, &[(3, Test::HasOf(libc::MREMAP_DONTUNMAP as c_uint))], libc::EINVAL),
    missing_of(libc::SYS_prctl, &[(0, Test::Equals(libc::PR_SET_VMA))], libc::EINVAL),
    // `GRND_INSECURE`.
    missing_of(libc::SYS_getrandom, &[(2, Test::HasOf(4))], libc::EINVAL),
];

/// Those between Linux 4.15 and 5.4.
const AFTER_4_15: &[Missing] = &[
    missing_from(IO_PGETEVENTS),
    no_advice(&[(2, Test::AtLeast(20)), (2, ADVICE_OF_TESTS)]),
    // Barriers that serialise cores, and those of all processes that ask for them.
    missing_of(libc::SYS_membarrier, &[(0, Test::AtLeast(1 << 5))], libc::EINVAL),
    missing_of(libc::SYS_membarrier, &[(0, Test::HasOf(1 << 1 | 1 << 2))], libc::EINVAL),
    // `F_SEAL_FUTURE_WRITE`.
    missing_of(libc::SYS_fcntl, &[(1, Test::Equals(libc::F_ADD_SEALS)), (2, Test::HasOf(0x10))], libc::EINVAL),
    missing_of(libc::SYS_waitid, &[(0, Test::Equals(libc::P_PIDFD as c_int))], libc::EINVAL),
];

/// Those between Linux 4.4 and 4.15.
const AFTER_4_4: &[Missing] = &[
    missing_from(COPY_FILE_RANGE),
    no_advice(&[(2, Test::AtLeast(18)), (2, ADVICE_OF_TESTS)]),
    no_advice(&[(2, Test::Equals(libc::MADV_FREE))]),
    missing_of(libc::SYS_membarrier, &[(0, Test::HasOf(1 << 3 | 1 << 4))], libc::EINVAL),
    // Everything but `MFD_CLOEXEC` and `MFD_ALLOW_SEALING`.
    missing_of(libc::SYS_memfd_create, &[(1, Test::HasOf(!3))], libc::EINVAL),
];

// Calls by which versions begin, of the machine's table of calls.
const CLOSE_RANGE: c_long = libc::SYS_close_range;
const IO_PGETEVENTS: c_long = if cfg!(target_arch = "x86_64") { 333 } else { 292 };
const COPY_FILE_RANGE: c_long = libc::SYS_copy_file_range;

/// System calls that a program needs once it has everything that it will ever have.
const STRICT: &[c_long] =
    &[libc::SYS_read, libc::SYS_write, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_rt_sigreturn];

/// System calls that the dynamic loader, libc and the start of a Rust program need in addition.
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
    // For `$LIB` and `$ORIGIN` in a library's path: glibc's loader finds the program's path with it.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// `LANDLOCK_ACCESS_FS_*`: execute, read a file, read a directory.
const LOOK: u64 = 1 | 1 << 2 | 1 << 3;

const NAMESPACES: c_int = libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET;

/// All sandboxes by name.
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
    // An empty directory that exists on every system.
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
    // Enough for a program and its libraries, and too little for a session's memory.
    ("memory-of-program", &[Step::Limit(libc::RLIMIT_AS, 48 << 20)]),
    ("closed", &[Step::Close]),
    ("without-rseq", &[Step::NoNewPrivileges, Step::Without(&[&[missing(libc::SYS_rseq)]])]),
    ("without-membarrier", &[Step::NoNewPrivileges, Step::Without(&[&[missing(libc::SYS_membarrier)]])]),
    ("without-close-range", &[Step::NoNewPrivileges, Step::Without(&[&[missing(libc::SYS_close_range)]])]),
    (
        "without-pidfd",
        &[
            Step::NoNewPrivileges,
            Step::Without(&[&[
                missing(libc::SYS_pidfd_open),
                missing(libc::SYS_pidfd_send_signal),
                missing(libc::SYS_pidfd_getfd),
                NO_PEER_PIDFD,
            ]]),
        ],
    ),
    ("without-memfd", &[Step::NoNewPrivileges, Step::Without(&[&[missing(libc::SYS_memfd_create)]])]),
    (
        "without-seals",
        &[
            Step::NoNewPrivileges,
            Step::Without(&[&[
                missing_of(libc::SYS_fcntl, &[(1, Test::Equals(libc::F_ADD_SEALS))], libc::EINVAL),
                missing_of(libc::SYS_fcntl, &[(1, Test::Equals(libc::F_GET_SEALS))], libc::EINVAL),
            ]]),
        ],
    ),
    (
        "without-huge-pages",
        &[
            Step::NoNewPrivileges,
            Step::Without(&[&[
                no_advice(&[(2, Test::Equals(libc::MADV_HUGEPAGE))]),
                no_advice(&[(2, Test::Equals(libc::MADV_NOHUGEPAGE))]),
                no_advice(&[(2, Test::AtLeast(22)), (2, ADVICE_OF_TESTS)]),
                missing_of(libc::SYS_mmap, &[(3, Test::HasOf(libc::MAP_HUGETLB as c_uint))], libc::EINVAL),
                missing_of(libc::SYS_memfd_create, &[(1, Test::HasOf(libc::MFD_HUGETLB))], libc::EINVAL),
                NO_PAGEMAP_SCAN,
            ]]),
        ],
    ),
    ("linux-5.4", &[Step::NoNewPrivileges, Step::Without(&[AFTER_5_4])]),
    ("linux-4.15", &[Step::NoNewPrivileges, Step::Without(&[AFTER_5_4, AFTER_4_15])]),
    ("linux-4.4", &[Step::NoNewPrivileges, Step::Without(&[AFTER_5_4, AFTER_4_15, AFTER_4_4])]),
];

/// Enters a sandbox.
///
/// # Errors
/// One line: the step that failed, and the reason.
pub(crate) fn enter(name: &str) -> Result<(), String> {
    let (_, steps) = SANDBOXES.iter().find(|(known, _)| *known == name).ok_or(format!("no sandbox `{name}`"))?;
    steps.iter().try_for_each(|step| step.take().map_err(|error| format!("{step:?}: {error}")))
}

/// Converts the return value of a libc call to a result.
fn checked(result: c_long) -> Result<c_long, Error> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn prctl(option: c_int) -> Result<(), Error> {
    // SAFETY: the options used here take numbers only.
    checked(unsafe { libc::prctl(option, 1, 0, 0, 0) }.into()).map(drop)
}

impl Step {
    fn take(self) -> Result<(), Error> {
        match self {
            Step::NoNewPrivileges => prctl(libc::PR_SET_NO_NEW_PRIVS),
            Step::Filter(calls) => filter(calls),
            Step::Without(parts) => without(parts),
            Step::Landlock(rights) => landlock(rights),
            // SAFETY: unshare(2) takes a number.
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
            // SAFETY: close_range(2) takes numbers; this program uses none of these descriptors.
            Step::Close => checked(unsafe { libc::syscall(libc::SYS_close_range, 3, c_uint::MAX, 0) }).map(drop),
        }
    }
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Loads a word of `seccomp_data`.
fn load(offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

/// Ends the filter with this answer.
fn answer(action: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, action)
}

/// Continues if the loaded word satisfies the test, and otherwise skips this many instructions.
fn require(test: Test, skipped: u8) -> libc::sock_filter {
    let jump = libc::BPF_JMP | libc::BPF_K;
    match test {
        Test::Equals(value) => instruction(jump | libc::BPF_JEQ, 0, skipped, value.cast_unsigned()),
        Test::AtLeast(value) => instruction(jump | libc::BPF_JGE, 0, skipped, value.cast_unsigned()),
        Test::LessThan(value) => instruction(jump | libc::BPF_JGE, skipped, 0, value.cast_unsigned()),
        Test::HasOf(bits) => instruction(jump | libc::BPF_JSET, 0, skipped, bits),
    }
}

fn filter(calls: &[&[c_long]]) -> Result<(), Error> {
    // The number of the call.
    let mut filter = vec![load(0)];
    for call in calls.iter().copied().flatten() {
        filter.extend([require(Test::Equals(*call as c_int), 1), answer(libc::SECCOMP_RET_ALLOW)]);
    }
    filter.push(answer(libc::SECCOMP_RET_KILL_PROCESS));
    install(filter)
}

fn without(parts: &[&[Missing]]) -> Result<(), Error> {
    let mut filter = Vec::new();
    for Missing { calls, arguments, errno } in parts.iter().copied().flatten() {
        let call = match calls {
            Calls::One(call) => (0, Test::Equals(*call as c_int)),
            Calls::From(call) => (0, Test::AtLeast(*call as c_int)),
        };
        // The lower half of an argument, on a machine of little endian.
        let arguments = arguments.iter().map(|(index, test)| (16 + 8 * index, *test));
        let tests: Vec<(u32, Test)> = [call].into_iter().chain(arguments).collect();
        for (number, (offset, test)) in tests.iter().enumerate() {
            let further = 2 * (tests.len() - 1 - number);
            filter.extend([load(*offset), require(*test, further as u8 + 1)]);
        }
        filter.push(answer(libc::SECCOMP_RET_ERRNO | *errno as u32));
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    install(filter)
}

fn install(mut filter: Vec<libc::sock_filter>) -> Result<(), Error> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // Never freed, because the filter may forbid the calls that freeing needs.
    std::mem::forget(filter);
    // SAFETY: prctl(2) reads the program and its instructions, which are live and never freed.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// All rights of Landlock's first version, which concern files and directories.
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
    // SAFETY: reads the eight bytes of the first version's attributes, which are live.
    let rules = checked(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const handled, 8_usize, 0) })?;
    if rights != 0 {
        // SAFETY: the path ends in NUL.
        let root = checked(unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) }.into())?;
        let rule = PathBeneath { allowed_access: rights, parent_fd: root as c_int };
        // SAFETY: reads a live rule of this type.
        let added = unsafe {
            libc::syscall(libc::SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &raw const rule, 0)
        };
        checked(added)?;
        // SAFETY: the descriptor was opened above and is not used afterwards.
        unsafe { libc::close(root as c_int) };
    }
    // SAFETY: takes numbers only.
    checked(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules, 0) })?;
    // SAFETY: the descriptor was created above and is not used afterwards.
    unsafe { libc::close(rules as c_int) };
    Ok(())
}

fn fork() -> Result<(), Error> {
    // SAFETY: the program has no other thread of its own, so the child may continue like any program.
    let pid = checked(unsafe { libc::fork() }.into())? as libc::pid_t;
    if pid == 0 {
        return Ok(());
    }
    let mut status = 0;
    // SAFETY: `pid` is a child of this process, and `status` has room for the answer.
    checked(unsafe { libc::waitpid(pid, &mut status, 0) }.into())?;
    let code = if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) };
    // SAFETY: exit(3) takes a number; atexit handlers run, as at every end.
    unsafe { libc::exit(code) }
}

fn mount(kind: Option<&str>, at: &str, flags: c_ulong) -> Result<(), Error> {
    let kind = kind.map(|kind| CString::new(kind).expect("no NUL"));
    let at = CString::new(at).expect("no NUL");
    let kind = kind.as_ref().map_or(std::ptr::null(), |kind| kind.as_ptr());
    // SAFETY: the texts end in NUL and are live; mount(2) accepts null for the others.
    checked(unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), kind, flags, std::ptr::null()) }.into()).map(drop)
}

/// Covers a directory. If this program is below it, covers only the part that contains the session's sockets.
fn cover(path: &str) -> Result<(), Error> {
    let mount = |at: &Path| mount(Some("tmpfs"), at.to_str().expect("a path of text"), 0);
    if !std::env::current_exe()?.starts_with(path) {
        return mount(path.as_ref());
    }
    let sockets = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).unwrap_or_default();
    sockets.parent().filter(|above| above.starts_with(path) && *above != path).map_or(Ok(()), mount)
}

fn make_read_only() -> Result<(), Error> {
    // `struct mount_attr`: set, cleared, propagation, the user namespace's descriptor.
    let attributes = [libc::MOUNT_ATTR_RDONLY, 0, 0, 0];
    let size_bytes = size_of_val(&attributes);
    // SAFETY: the path ends in NUL, and the attributes are live and have this size.
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
    // SAFETY: the path ends in NUL.
    checked(unsafe { libc::chroot(path.as_ptr()) }.into())?;
    // SAFETY: the path ends in NUL.
    checked(unsafe { libc::chdir(c"/".as_ptr()) }.into()).map(drop)
}

fn set_groups() -> Result<(), Error> {
    // SAFETY: reads no groups, because the count is 0.
    checked(unsafe { libc::setgroups(0, std::ptr::null()) }.into())?;
    // SAFETY: takes numbers only.
    checked(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) }.into()).map(drop)
}

fn set_user() -> Result<(), Error> {
    // SAFETY: takes numbers only.
    checked(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }.into()).map(drop)
}

/// Makes all permitted capabilities effective.
fn raise_capabilities() -> Result<(), Error> {
    // `_LINUX_CAPABILITY_VERSION_3`, for this thread.
    let header = [0x2008_0522_u32, 0];
    // Two sets of: effective, permitted, inheritable.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: the header is of this version, and `sets` has room for its two sets.
    checked(unsafe { libc::syscall(libc::SYS_capget, &raw const header, &raw mut sets) })?;
    sets.iter_mut().for_each(|set| set[0] = set[1]);
    // SAFETY: the header is of this version, and `sets` holds its two sets.
    checked(unsafe { libc::syscall(libc::SYS_capset, &raw const header, &raw const sets) }).map(drop)
}

fn limit(resource: c_uint, value: u64) -> Result<(), Error> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: setrlimit(2) reads a live limit.
    checked(unsafe { libc::setrlimit(resource, &limit) }.into()).map(drop)
}

/// Returns the size of this process's address space in bytes.
fn memory_bytes() -> Result<u64, Error> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    Ok(pages.ok_or_else(|| Error::other("/proc/self/statm has no number"))? * rustix::param::page_size() as u64)
}

fn fill_descriptors(free: usize) -> Result<(), Error> {
    let mut opened = Vec::new();
    loop {
        // SAFETY: dup(2) takes a number. The new descriptor stays open across `exec`.
        let fd = unsafe { libc::dup(0) };
        if fd < 0 {
            break;
        }
        opened.push(fd);
    }
    for fd in opened.iter().rev().take(free) {
        // SAFETY: the descriptor was opened above and is not used otherwise.
        unsafe { libc::close(*fd) };
    }
    Ok(())
}

/// Executes another program.
///
/// # Errors
/// One line with the reason why it cannot be executed.
#[allow(dead_code, reason = "one of the two programs executes another")]
pub(crate) fn execute(command: &[std::ffi::OsString]) -> String {
    let texts: Vec<CString> = command.iter().map(|word| CString::new(word.as_bytes()).expect("no NUL")).collect();
    let mut words: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
    words.push(std::ptr::null());
    // SAFETY: the list ends in null, and its texts end in NUL.
    unsafe { libc::execv(words[0], words.as_ptr()) };
    format!("{}: {}", command[0].display(), Error::last_os_error())
}

/// Repeatedly writes `ready`, waits for a byte on standard input, does the step that the byte selects, and writes
/// `done`. Exits the program at the end of input.
///
/// Makes only system calls that the strictest filter permits.
pub(crate) fn work(mut step: impl FnMut(u8)) -> ! {
    loop {
        say(b"ready\n");
        let mut byte = 0_u8;
        // SAFETY: `byte` has room for one byte.
        if unsafe { libc::read(0, (&raw mut byte).cast(), 1) } != 1 {
            // SAFETY: exit(3) takes a number. Exit handlers run; the standard library is avoided, because it would make
            // system calls of its own.
            unsafe { libc::exit(0) }
        }
        step(byte);
        say(b"done\n");
    }
}

fn say(text: &[u8]) {
    // SAFETY: write(2) reads the text, which is live.
    unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
}
