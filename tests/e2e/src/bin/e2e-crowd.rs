//! Programs to trace whose number or end is what matters, and one that measures what it waits for, by the name of what they do.

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
    // SAFETY: the program has no other thread of its own, and its children go on as any program does.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "cannot fork: {}", std::io::Error::last_os_error());
    pid
}

fn wait(pid: libc::pid_t, flags: c_int) -> c_int {
    let mut status = 0;
    // SAFETY: room for an answer (waitpid(2)).
    assert!(unsafe { libc::waitpid(pid, &mut status, flags) } > 0, "{}", std::io::Error::last_os_error());
    status
}

/// Ends without a handler's being run.
fn end_at_once() -> ! {
    // SAFETY: takes a number.
    unsafe { libc::_exit(0) }
}

/// Of so many children one does not have the session's memory, and asks its owner for it.
const ASKING_ONE_OF: u64 = 8;

/// Goes on to its next phase at each byte of a FIFO: so many children are live; one ends and one starts, again and again for a time; all
/// have ended; this process ends.
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

/// Children that read from one pipe: whichever gets a byte ends.
struct Crowd {
    reader: PipeReader,
    writer: PipeWriter,
    started: u64,
    /// Of those that have ended, how many were in no session.
    alone: u64,
}

impl Crowd {
    fn start_one(&mut self) {
        let stdin = self.reader.try_clone().expect("a descriptor");
        let mut one = myself(&["one"]);
        if self.started.is_multiple_of(ASKING_ONE_OF) {
            one.env_remove(ENV_MEMORY);
        }
        // Awaited by `end_one`, whichever it is.
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

/// One of a crowd. Its exit code says whether it was in no session.
fn one() {
    let is_alone = is_alone();
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(is_alone.into());
}

/// Forks so many children, each of which says whether it is in no session, and waits for somebody to open a FIFO's other end.
fn fill(fifo: &Path, count: u64) {
    let (mut waited_for, end) = std::io::pipe().expect("a pipe");
    let (mut said, mut say) = std::io::pipe().expect("a pipe");
    let mut end = Some(end);
    for _ in 0..count {
        // SAFETY: the program has no other thread, and its children go on as any program does.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return println!("lacking {}\nlive", std::io::Error::last_os_error());
        }
        if pid == 0 {
            drop(end.take());
            say.write_all(&[is_alone().into()]).expect("the pipe is this program's");
            let _ = waited_for.read(&mut [0]);
            end_at_once();
        }
    }
    let mut alone = vec![0; count as usize];
    said.read_exact(&mut alone).expect("each child writes");
    println!("started {}\nalone {}\nlive", count + 1, alone.iter().map(|is_alone| u64::from(*is_alone)).sum::<u64>());
    std::fs::File::open(fifo).expect("a FIFO");
    drop(end);
    (0..count).for_each(|_| assert_eq!(wait(-1, 0), 0));
}

/// Whether this process is in no session: there nothing is armed, and no expression of an event evaluated.
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

/// Has event classes that other programs have not, and waits.
fn listed() {
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Children that emit an event and end without handlers.
fn exits(count: u64) {
    for number in 0..count {
        let pid = fork();
        if pid == 0 {
            dormouse::event!(e2e.word, number);
            end_at_once();
        }
        wait(pid, 0);
    }
    println!("emitted {count}");
}

/// Leaves stopped children behind, each of which has emitted so many events.
fn freeze(children: u64, events: u64) {
    for _ in 0..children {
        let pid = fork();
        if pid == 0 {
            (0..events).for_each(|number| dormouse::event!(e2e.word, number));
            // SAFETY: sends a signal to this very process.
            unsafe { libc::raise(libc::SIGSTOP) };
            end_at_once();
        }
        assert!(libc::WIFSTOPPED(wait(pid, libc::WUNTRACED)));
    }
    println!("emitted {}", children * events);
}

/// Closes all descriptors that it does not know, listens itself, and gives back a byte of each connection.
fn usurp(path: &Path, connections: u64) {
    // SAFETY: takes numbers; this program has opened none of these descriptors.
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

/// What the first three descriptors are.
fn descriptors() {
    for fd in 0..3 {
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        println!("{fd} {}", link.map_or("nothing".into(), |path| path.to_string_lossy().into_owned()));
    }
}

/// Once somebody opens a FIFO's other end, emits from several threads until a file is there, says how much that was, and waits until somebody opens
/// the FIFO's other end again.
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

/// Emits from several threads, with pauses, and from children that are forked, and from programs that are started, until a file is there; then says how
/// many events that were.
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
                        // It is the rate of the load: without a pause, a trace of a minute is larger than a test can read.
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
            });
        }
        // Numbers rise from child to child: the system gives one id to several, in a minute, and no two events may look alike.
        for first in (0..).step_by(CHILD_EVENTS as usize).take_while(|_| !file.exists()) {
            let mut started = myself(&["steps", &first.to_string(), "0"]).spawn().expect("another process");
            assert!(started.wait().expect("a child").success());
            let pid = fork();
            if pid == 0 {
                steps(first, threads + 1);
                end_at_once();
            }
            wait(pid, 0);
            emitted.fetch_add(2 * CHILD_EVENTS, Ordering::Relaxed);
        }
    });
    println!("events {}\nemitted", emitted.into_inner());
}

/// Emits a child's events, from this number on.
fn steps(first: u64, thread: u32) {
    (first..first + CHILD_EVENTS).for_each(|number| emit::step(thread, number));
}

/// Nanoseconds of the monotonic clock.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// When the program's first function ran, before every constructor.
static PREINIT_NS: AtomicU64 = AtomicU64::new(0);

extern "C" fn before_constructors() {
    PREINIT_NS.store(now_ns(), Ordering::Relaxed);
}

#[used]
#[unsafe(link_section = ".preinit_array")]
static PREINIT: extern "C" fn() = before_constructors;

/// Once somebody opens the other end of a FIFO, forks and starts processes so many times, and says in nanoseconds how long each took.
fn waits(fifo: &Path, count: u64, plugin: &str) {
    dormouse::event!(e2e.word, number = u64::MAX);
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

/// Forks a child that emits an event, and says how long parent and child waited for that.
fn timed_fork((reader, writer): &mut (PipeReader, PipeWriter), number: u64) {
    let begin = now_ns();
    let pid = fork();
    let ns = now_ns() - begin;
    if pid == 0 {
        writer.write_all(&ns.to_ne_bytes()).expect("the pipe is this program's");
        dormouse::event!(e2e.word, number);
        end_at_once();
    }
    println!("fork,parent {ns}");
    let mut of_child = [0; 8];
    reader.read_exact(&mut of_child).expect("the child writes");
    println!("fork,child {}", u64::from_ne_bytes(of_child));
    wait(pid, 0);
}

/// As [`waits`], of forks while another thread loads a library whose tracer asks the session's owner for its memory.
fn amid_joins(fifo: &Path, count: u64, plugin: &str) {
    dormouse::event!(e2e.word, number = u64::MAX);
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
    // This program's own tracer has joined by the memory that it has inherited. The library's is not to find it.
    // SAFETY: there is no other thread.
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

/// Once there is a byte to read, forks until there is no more.
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

/// How long this process took to come up, and takes to load a library.
fn sample(begin_ns: u64, main_ns: u64, plugin: &str) {
    println!("constructor {}", main_ns - PREINIT_NS.load(Ordering::Relaxed));
    println!("exec {}", main_ns - begin_ns);
    let path = CString::new(plugin).expect("no NUL");
    let begin = now_ns();
    open_library(&path);
    println!("dlopen {}", now_ns() - begin);
}

fn open_library(path: &CStr) {
    // SAFETY: a library whose constructors are those of a tracer.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "the library is loaded");
}
