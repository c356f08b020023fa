//! Traced programs for tests of process numbers and process ends, and one that measures waiting times. The first
//! argument names the program.

use std::ffi::{CStr, CString, c_int};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_abi::environment::ENV_MEMORY;
use dormouse_e2e::emit::{self, CHILD_EVENTS};
use rustix::time::{ClockId, clock_gettime};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let main_ns = now_ns();
    let number = |index: usize| arguments[index].parse::<u64>().expect("a number");
    match arguments[0].as_str() {
        "crowd" => crowd(Path::new(&arguments[1]), number(2), Duration::from_secs(number(3))),
        "one" => one(),
        "fill" => fill(Path::new(&arguments[1]), number(2)),
        "listed" => listed(),
        "exits" => exits(number(1)),
        "freeze" => freeze(number(1), number(2)),
        "usurp" => usurp(Path::new(&arguments[1]), number(2)),
        "descriptors" => descriptors(),
        "load" => load(Path::new(&arguments[1]), Path::new(&arguments[2]), number(3) as u32),
        "family" => family(Path::new(&arguments[1]), number(2) as u32),
        "steps" => steps(number(1), number(2) as u32),
        "waits" => waits(Path::new(&arguments[1]), number(2), &arguments[3]),
        "amid-joins" => amid_joins(Path::new(&arguments[1]), number(2), &arguments[3]),
        "forks" => forks(),
        "amid-join" => amid_join(&arguments[1]),
        "sample" => sample(number(1), main_ns, &arguments[2]),
        other => panic!("no program `{other}`"),
    }
}

fn myself(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a program has a path"));
    command.args(arguments);
    command
}

fn fork() -> libc::pid_t {
    // SAFETY: the program has no other thread of its own, so its children may continue like any program.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "cannot fork: {}", std::io::Error::last_os_error());
    pid
}

fn wait(pid: libc::pid_t, flags: c_int) -> c_int {
    let mut status = 0;
    // SAFETY: `status` has room for the answer (waitpid(2)).
    assert!(unsafe { libc::waitpid(pid, &mut status, flags) } > 0, "{}", std::io::Error::last_os_error());
    status
}

/// Ends the process without running handlers.
fn end_at_once(code: c_int) -> ! {
    // SAFETY: _exit(2) takes a number.
    unsafe { libc::_exit(code) }
}

/// Emits an event if this process is in a session, and returns whether it is.
fn emit_word(number: u64) -> bool {
    let mut is_emitted = false;
    dormouse::event!(
        e2e.word,
        number = {
            is_emitted = true;
            number
        }
    );
    is_emitted
}

/// One child in this many does not have the session's memory, and asks its owner for it.
const ASKING_ONE_OF: u64 = 8;

/// Advances to its next phase at each byte from a FIFO: starts `live` children; for a time, repeatedly ends one and
/// starts one; ends all; ends itself.
fn crowd(fifo: &Path, live: u64, time: Duration) {
    println!("ready");
    let mut phases = std::fs::File::open(fifo).expect("a FIFO");
    let mut next_phase = || phases.read_exact(&mut [0]).expect("somebody writes");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut crowd = Crowd { reader, writer, started: 1, alone: 0 };
    next_phase();
    (0..live).for_each(|_| crowd.start_one());
    println!("live");
    next_phase();
    let begin = Instant::now();
    while begin.elapsed() < time {
        crowd.end_one();
        crowd.start_one();
    }
    println!("churned");
    next_phase();
    (0..live).for_each(|_| crowd.end_one());
    println!("started {}\nalone {}\ngone", crowd.started, crowd.alone);
    next_phase();
}

/// Children that read from one pipe: the child that gets a byte ends.
struct Crowd {
    reader: PipeReader,
    writer: PipeWriter,
    started: u64,
    /// Number of ended children that were in no session.
    alone: u64,
}

impl Crowd {
    fn start_one(&mut self) {
        let stdin = self.reader.try_clone().expect("a descriptor");
        let mut one = myself(&["one"]);
        if self.started.is_multiple_of(ASKING_ONE_OF) {
            one.env_remove(ENV_MEMORY);
        }
        // `end_one` waits for it, in any order.
        drop(one.stdin(Stdio::from(stdin)).spawn().expect("another process"));
        self.started += 1;
    }

    fn end_one(&mut self) {
        self.writer.write_all(&[0]).expect("the pipe is this program's");
        let status = wait(-1, 0);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) <= 1, "a child ends well");
        self.alone += libc::WEXITSTATUS(status) as u64;
    }
}

/// A child of a crowd. Its exit code says whether it was in no session.
fn one() {
    let is_alone = is_alone();
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(is_alone.into());
}

/// Forks `count` children, each of which reports whether it is in no session, and waits until the FIFO's other end is
/// opened.
fn fill(fifo: &Path, count: u64) {
    let (mut waited_for, end) = std::io::pipe().expect("a pipe");
    let (mut said, mut say) = std::io::pipe().expect("a pipe");
    let mut end = Some(end);
    for _ in 0..count {
        // SAFETY: the program has no other thread, so its children may continue like any program.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return println!("lacking {}\nlive", std::io::Error::last_os_error());
        }
        if pid == 0 {
            drop(end.take());
            say.write_all(&[is_alone().into()]).expect("the pipe is this program's");
            let _ = waited_for.read(&mut [0]);
            end_at_once(0);
        }
    }
    let mut alone = vec![0; count as usize];
    said.read_exact(&mut alone).expect("each child writes");
    println!("started {}\nalone {}\nlive", count + 1, alone.iter().map(|is_alone| u64::from(*is_alone)).sum::<u64>());
    std::fs::File::open(fifo).expect("a FIFO");
    drop(end);
    (0..count).for_each(|_| assert_eq!(wait(-1, 0), 0));
}

/// Whether this process is in no session: then no event is armed, and no expression of an event is evaluated.
fn is_alone() -> bool {
    let mut is_alone = true;
    dormouse::event!(
        e2e.one,
        is_alone = {
            is_alone = false;
            is_alone
        }
    );
    is_alone
}

/// Has event classes that other programs do not have, and waits.
fn listed() {
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Runs children that emit an event and end without handlers.
fn exits(count: u64) {
    let mut emitted = 0;
    for number in 0..count {
        let pid = fork();
        if pid == 0 {
            end_at_once(emit_word(number).into());
        }
        emitted += libc::WEXITSTATUS(wait(pid, 0)) as u64;
    }
    println!("emitted {emitted}");
}

/// Leaves stopped children behind, each of which has emitted `events` events.
fn freeze(children: u64, events: u64) {
    let (mut said, mut say) = std::io::pipe().expect("a pipe");
    let mut emitted = 0;
    for _ in 0..children {
        let pid = fork();
        if pid == 0 {
            let emitted: u64 = (0..events).map(|number| u64::from(emit_word(number))).sum();
            say.write_all(&emitted.to_ne_bytes()).expect("the pipe is this program's");
            // SAFETY: raise(3) sends a signal to this very process.
            unsafe { libc::raise(libc::SIGSTOP) };
            end_at_once(0);
        }
        let mut of_child = [0; 8];
        said.read_exact(&mut of_child).expect("the child writes");
        emitted += u64::from_ne_bytes(of_child);
        assert!(libc::WIFSTOPPED(wait(pid, libc::WUNTRACED)));
    }
    println!("emitted {emitted}");
}

/// Closes all descriptors that it does not know, listens itself, and returns a byte on each connection.
fn usurp(path: &Path, connections: u64) {
    // SAFETY: close_range(2) takes numbers; this program has opened none of these descriptors.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) }, 0);
    let listener = std::os::unix::net::UnixListener::bind(path).expect("a socket");
    println!("ready");
    for _ in 0..connections {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a byte");
        stream.write_all(&byte).expect("somebody reads");
    }
    println!("served");
}

/// Prints what the first three descriptors refer to.
fn descriptors() {
    for fd in 0..3 {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        println!("{fd} {}", link.map_or("nothing".into(), |path| path.to_string_lossy().into_owned()));
    }
}

/// Once a FIFO's other end is opened, emits from several threads until a file exists, prints the number of events, and
/// waits until the FIFO's other end is opened again.
fn load(file: &Path, fifo: &Path, threads: u32) {
    println!("ready");
    drop(std::fs::File::open(fifo).expect("a FIFO"));
    let emitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let emitted = &emitted;
            scope.spawn(move || {
                for number in (0..).take_while(|number| number % 4096 != 0 || !file.exists()) {
                    emit::step(thread, number);
                    emitted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("events {}\nemitted", emitted.into_inner());
    std::fs::File::open(fifo).expect("a FIFO");
}

/// Emits from several threads, with pauses, and from forked children and started programs, until a file exists; then
/// prints the number of events.
fn family(file: &Path, threads: u32) {
    println!("ready");
    let emitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let emitted = &emitted;
            scope.spawn(move || {
                for number in (0..).take_while(|number| number % 512 != 0 || !file.exists()) {
                    emit::step(thread, number);
                    emitted.fetch_add(1, Ordering::Relaxed);
                    if number % 512 == 511 {
                        // Limits the load: without a pause, a trace of a minute would be too large for a test to read.
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
            });
        }
        // Numbers rise from child to child: the system reuses ids within a minute, and no two events may be equal.
        for first in (0..).step_by(CHILD_EVENTS as usize).take_while(|_| !file.exists()) {
            let mut started = myself(&["steps", &first.to_string(), "0"]).spawn().expect("another process");
            assert!(started.wait().expect("a child").success());
            let pid = fork();
            if pid == 0 {
                steps(first, threads + 1);
                end_at_once(0);
            }
            wait(pid, 0);
            emitted.fetch_add(2 * CHILD_EVENTS, Ordering::Relaxed);
        }
    });
    println!("events {}\nemitted", emitted.into_inner());
}

/// Emits a child's events, from number `first` on.
fn steps(first: u64, thread: u32) {
    (first..first + CHILD_EVENTS).for_each(|number| emit::step(thread, number));
}

/// Returns the monotonic clock in nanoseconds.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Time at which the program's first function ran, before all constructors.
static PREINIT_NS: AtomicU64 = AtomicU64::new(0);

extern "C" fn before_constructors() {
    PREINIT_NS.store(now_ns(), Ordering::Relaxed);
}

#[used]
#[unsafe(link_section = ".preinit_array")]
static PREINIT: extern "C" fn() = before_constructors;

/// Once a FIFO's other end is opened, forks and starts `count` processes each, and prints the durations in nanoseconds.
fn waits(fifo: &Path, count: u64, plugin: &str) {
    println!("emitted {}", u64::from(emit_word(u64::MAX)));
    println!("ready");
    std::fs::File::open(fifo).expect("a FIFO");
    let mut pipe = std::io::pipe().expect("a pipe");
    (0..count).for_each(|number| timed_fork(&mut pipe, number));
    for _ in 0..count {
        let mut sample = myself(&["sample", &now_ns().to_string(), plugin]).spawn().expect("another process");
        assert!(sample.wait().expect("a child").success());
    }
    println!("finished");
}

/// Forks a child that emits an event, and prints how long parent and child waited for the fork.
fn timed_fork((reader, writer): &mut (PipeReader, PipeWriter), number: u64) {
    let begin = now_ns();
    let pid = fork();
    let ns = now_ns() - begin;
    if pid == 0 {
        writer.write_all(&ns.to_ne_bytes()).expect("the pipe is this program's");
        end_at_once(emit_word(number).into());
    }
    println!("fork,parent {ns}");
    let mut of_child = [0; 8];
    reader.read_exact(&mut of_child).expect("the child writes");
    println!("fork,child {}", u64::from_ne_bytes(of_child));
    println!("emitted {}", libc::WEXITSTATUS(wait(pid, 0)));
}

/// Measures like [`waits`], but forks while another thread loads a library whose tracer asks the session's owner for
/// its memory.
fn amid_joins(fifo: &Path, count: u64, plugin: &str) {
    println!("emitted {}", u64::from(emit_word(u64::MAX)));
    println!("ready");
    std::fs::File::open(fifo).expect("a FIFO");
    for _ in 0..count {
        let mut process = myself(&["amid-join", plugin]).spawn().expect("another process");
        assert!(process.wait().expect("a child").success());
    }
    println!("finished");
}

/// Forks until the library is loaded.
fn amid_join(plugin: &str) {
    // This program's own tracer has joined by the inherited memory. The library's tracer must not find it.
    // SAFETY: there is no other thread that could access the environment.
    unsafe { std::env::remove_var(ENV_MEMORY) };
    let (path, is_loaded) = (CString::new(plugin).expect("no NUL"), AtomicBool::new(false));
    let mut pipe = std::io::pipe().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begin = now_ns();
            open_library(&path);
            println!("dlopen {}", now_ns() - begin);
            is_loaded.store(true, Ordering::Relaxed);
        });
        let mut number = 0;
        while !is_loaded.load(Ordering::Relaxed) {
            timed_fork(&mut pipe, number);
            number += 1;
        }
    });
}

/// Once there is a byte to read, forks until the input ends.
fn forks() {
    let wait_for_byte = || std::io::stdin().read(&mut [0]).expect("somebody writes") > 0;
    println!("ready");
    assert!(wait_for_byte());
    let mut pipe = std::io::pipe().expect("a pipe");
    std::thread::scope(|scope| {
        let waits = scope.spawn(wait_for_byte);
        for number in (0..).take_while(|_| !waits.is_finished()) {
            timed_fork(&mut pipe, number);
            println!("ready");
        }
    });
}

/// Prints how long this process took to start, and how long it takes to load a library.
fn sample(begin_ns: u64, main_ns: u64, plugin: &str) {
    println!("constructor {}", main_ns - PREINIT_NS.load(Ordering::Relaxed));
    println!("exec {}", main_ns - begin_ns);
    let path = CString::new(plugin).expect("no NUL");
    let begin = now_ns();
    open_library(&path);
    println!("dlopen {}", now_ns() - begin);
}

fn open_library(path: &CStr) {
    // SAFETY: the library's constructors are those of a tracer, and the path ends in NUL.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "the library is loaded");
}
