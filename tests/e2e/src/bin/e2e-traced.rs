//! Traced programs. The first argument names the program.

use std::ffi::{CString, c_int, c_void};
use std::fs::OpenOptions;
use std::io::{BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::thread::JoinHandleExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_abi::session::{HEADER_SIZE_BYTES, STREAM_STRIDE_BYTES};
use dormouse_abi::site::X86_BRANCH_LEN;
use dormouse_e2e::run::owner_of;
use dormouse_e2e::{Random, emit, memory};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments[index].parse::<u64>().expect("a number");
    match arguments[0].as_str() {
        "numbers" => numbers(number(1) as u32, number(2)),
        "words" => words_of_one_field(number(1)),
        "requests" => requests(Path::new(&arguments[1])),
        "served" => served(number(1), number(2), Duration::from_millis(number(3))),
        "tags" => tags(number(1) as u32, number(2)),
        "tags-by-steps" => tags_by_steps(number(1) as u32, number(2)),
        "faults" => faults(&arguments[1], number(2)),
        "faults-of-child" => faults_of_child(&arguments[1], number(2)),
        "until" => until(Path::new(&arguments[1]), number(2) as u32, Duration::ZERO),
        "until-at-a-walk" => until(Path::new(&arguments[1]), number(2) as u32, Duration::from_micros(5)),
        "hold" => hold(Path::new(&arguments[1]), number(2)),
        "end" => end(&arguments[1], number(2)),
        "starve" => starve(number(1), number(2)),
        "script" => script(Path::new(&arguments[1]), &arguments[2..]),
        "idle" => {}
        "victim" => victim(Path::new(&arguments[1]), number(2) as u32, number(3)),
        "kill" => kill_rounds(Path::new(&arguments[1]), number(2), number(3), number(4)),
        "signals" => signals(number(1) as u32, number(2)),
        "fork" => fork(number(1), number(2)),
        "become" => become_again(number(1), number(2)),
        "many" => many(number(1), number(2)),
        "plugin" => plugin(Path::new(&arguments[1]), number(2)),
        "dormant" => dormant(number(1)),
        "golden" => golden(),
        "await-signal" => await_signal(),
        "echo" => echo(),
        "die" => die(number(1) as c_int),
        "too-big" => too_big(number(1)),
        "hostile" => hostile(number(1), number(2)),
        "flood" => flood(),
        "lie" => lie(number(1)),
        other => panic!("no program `{other}`"),
    }
}

fn emit_steps(thread: u32, events: u64) {
    for number in 0..events {
        emit::step(thread, number);
    }
}

/// Emits numbered events from several threads.
fn numbers(threads: u32, events: u64) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || emit_steps(thread, events));
        }
    });
    println!("emitted {}", threads as u64 * events);
}

/// Emits events with one field of 64 bits.
fn words_of_one_field(events: u64) {
    for number in 0..events {
        dormouse::event!(e2e.word, number);
    }
    println!("emitted {events}");
}

/// Number of events `e2e:request` in a round of [`requests`].
const REQUESTS: u32 = 10_000;

/// Emits a round of events for each line of a file or FIFO, and writes what it has emitted: `request ROUND BYTES PATH`
/// for each `e2e:request`, and `done ROUND` after the last. Each hundredth of them is followed by `e2e:ping`. The first
/// line is `process PID`.
fn requests(lines: &Path) {
    println!("process {}", std::process::id());
    println!("ready");
    let lines = std::io::BufReader::new(std::fs::File::open(lines).expect("a file")).lines();
    for (round, _line) in (0u32..).zip(lines) {
        let mut ledger = String::new();
        for bytes in 0..REQUESTS {
            let path = format!("/{}/{bytes}", ["tmp", "var", "tmpfs"][bytes as usize % 3]);
            dormouse::event!(e2e.request, round, bytes, path = path.as_str());
            if bytes % 100 == 0 {
                dormouse::event!(e2e.ping, round);
            }
            ledger += &format!("request {round} {bytes} {path}\n");
        }
        print!("{ledger}");
        println!("done {round}");
    }
}

/// Serves requests in several threads, each of which is in several threads, and some of which fail. Pauses between them.
fn served(threads: u64, requests: u64, pause: Duration) {
    println!("process {}", std::process::id());
    let serve = |thread: u64| {
        for id in 0..requests {
            // Each thread does a part of each request, and another thread ends each.
            dormouse::event!(e2e.begun, id, thread);
            dormouse::event!(e2e.step, thread, id, path = format!("/{}/{id}", thread % 3).as_str());
            let status = if id % 17 == 3 { 503u16 } else { 200 };
            if id % threads == thread {
                dormouse::event!(e2e.ended, id, status);
            }
            dormouse::event!(e2e.apart, thread);
            if id % 64 == 63 {
                // All requests together take longer than a tail.
                std::thread::sleep(pause);
            }
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|thread| drop(scope.spawn(move || serve(thread)))));
    println!("served {threads} {requests}");
}

/// Emits events of each number of words, and of runs, from several threads. Their fields repeat the tags that the thread
/// has: `request`, and in two of three rounds `user`, which another thread sets in turn. `unused` is a tag that no session
/// asks for.
fn tags(threads: u32, rounds: u64) {
    const USERS: [&str; 4] = ["alice", "bob", "zoë \"z\"", "x"];
    let emit = |request: u64, user: &str| {
        dormouse::event!(e2e.tagged_0);
        dormouse::event!(e2e.tagged_1, request);
        dormouse::event!(e2e.tagged_2, request, second = 2u64);
        dormouse::event!(e2e.tagged_3, request, second = 2u64, third = 3u64);
        dormouse::event!(e2e.tagged_text, request, user);
    };
    let work = |thread: u64| {
        for round in 0..rounds {
            let _unused = dormouse::tag!(unused = round);
            let request = thread * rounds + round + 1;
            let _request = dormouse::tag!(request);
            let user = USERS[round as usize % 4];
            if round % 3 == 0 {
                emit(request, "");
                continue;
            }
            let _user = dormouse::tag!(user);
            emit(request, user);
            if round % 100 == 1 {
                let tags = dormouse::Tags::current();
                let other = move || {
                    let _tags = tags.enter();
                    emit(request, user);
                };
                std::thread::spawn(other).join().expect("it does not panic");
                let _other = dormouse::tag!(request = 0u64);
                emit(0, user);
            }
            // The former request is in force again.
            emit(request, user);
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..u64::from(threads) {
            scope.spawn(move || work(thread));
        }
    });
    let moved = (0..rounds).filter(|round| round % 3 != 0 && round % 100 == 1).count() as u64;
    let with_user = (0..rounds).filter(|round| round % 3 != 0).count() as u64;
    println!("emitted {}", 5 * u64::from(threads) * (rounds + with_user + 2 * moved));
}

/// Sets the tags `early` and `user`, and then emits the events of [`tags`] for each byte that it reads, in a child too.
fn tags_by_steps(threads: u32, rounds: u64) {
    let _early = dormouse::tag!(early = "before");
    let _user = dormouse::tag!(user = "everybody");
    println!("ready");
    for _ in std::io::stdin().lock().bytes() {
        dormouse::event!(e2e.tagged_early, early = "before", user = "everybody");
        // SAFETY: the program has one thread here, and the child ends without returning.
        match unsafe { libc::fork() } {
            0 => {
                dormouse::event!(e2e.tagged_early, early = "before", user = "everybody");
                tags(threads, rounds);
                std::process::exit(0);
            }
            // SAFETY: waits for the child.
            child => assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child),
        }
        tags(threads, rounds);
        println!("ready");
    }
}

/// Returns the number of page faults of this thread so far.
fn faults_so_far() -> i64 {
    // SAFETY: all zeroes is a valid `rusage`, which is plain data.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` has room for the answer (getrusage(2)).
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
    usage.ru_minflt + usage.ru_majflt
}

/// Counts the page faults of a thread that emits events of one kind, after a warm-up that makes its code, its stack and
/// its thread-local data present.
fn faults(kind: &str, events: u64) {
    const WARM_UP: u64 = 20_000;
    let emit = match kind {
        "words" => |number| dormouse::event!(e2e.word, number),
        "bytes" => |number| dormouse::event!(e2e.words, number, a = number, b = number, c = number),
        "segments" => |number: u64| dormouse::event!(e2e.texts, number, text = "a text", other = "another"),
        other => panic!("no events of kind `{other}`"),
    };
    (0..WARM_UP).for_each(emit);
    let before = faults_so_far();
    (0..events).for_each(emit);
    let faults = faults_so_far() - before;
    println!("emitted {}\nfaults {faults}", WARM_UP + events);
}

/// Counts like [`faults`], in a child of a process that has traced.
fn faults_of_child(kind: &str, events: u64) {
    dormouse::event!(e2e.word, number = 0u64);
    // SAFETY: this program has started no other thread; the child may continue like any program.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        faults(kind, events);
        return;
    }
    let mut status = 0;
    // SAFETY: `pid` is a child of this process, and `status` has room for the answer (waitpid(2)).
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
}

/// Emits numbered events from several threads at the interval `pace`, until a file exists.
fn until(file: &Path, threads: u32, pace: Duration) {
    println!("ready");
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for number in (0..).take_while(|number| number % 4096 != 0 || !file.exists()) {
                    let start = Instant::now();
                    emit::step(thread, number);
                    while start.elapsed() < pace {
                        std::hint::spin_loop();
                    }
                }
            });
        }
    });
}

/// While the owner is stopped, thread 0 emits events on one CPU, and then thread 1 on another.
fn starve(busy: u64, quiet: u64) {
    let allowed = rustix::thread::sched_getaffinity(None).expect("a set of processors");
    let mut cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let recorder = rustix::process::getppid().expect("a parent");
    let owner = owner_of(recorder.as_raw_nonzero().get() as u32).expect("a session owner");
    let owner = rustix::process::Pid::from_raw(owner as i32).expect("an id");
    rustix::process::kill_process(owner, rustix::process::Signal::STOP).expect("it is ours");
    for (thread, events) in [busy, quiet].into_iter().enumerate() {
        let Some(cpu) = cpus.next() else { break };
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).expect("an allowed processor");
        emit_steps(thread as u32, events);
        println!("{} {events}", ["busy", "quiet"][thread]);
    }
    rustix::process::kill_process(owner, rustix::process::Signal::CONT).expect("it is ours");
}

/// Emits some numbered events, and waits until a FIFO's other end is opened.
fn hold(fifo: &Path, events: u64) {
    emit_steps(0, events);
    println!("ready");
    std::fs::File::open(fifo).expect("a FIFO");
}

/// Emits some numbered events, and ends in the requested way.
fn end(how: &str, events: u64) {
    if how == "ignored" {
        // SAFETY: signal(2) sets an action that is not a function.
        unsafe { libc::signal(libc::SIGTRAP, libc::SIG_IGN) };
    }
    if how == "handled" || how == "given-up" {
        handle_faults(how == "handled");
    }
    emit_steps(0, events);
    match how {
        "exit" => std::process::exit(3),
        "abort" => std::process::abort(),
        "panic" => panic!("as asked"),
        "overflow" => println!("{}", overflow(1)),
        // SAFETY: a deliberate fault: the page is never mapped.
        "segv" => unsafe { std::ptr::without_provenance_mut::<u64>(8).write_volatile(1) },
        // SAFETY: the page is mapped once the handler has run; otherwise the program has ended.
        "handled" | "given-up" => (0..5).for_each(|_| unsafe { page().write_volatile(1) }),
        "thread" => std::thread::spawn(|| println!("{}", overflow(1))).join().expect("the process ends before"),
        // SAFETY: raise(3) sends a signal to this very thread.
        "raise" => drop(unsafe { libc::raise(libc::SIGSEGV) }),
        // SAFETY: the breakpoint only raises a signal; the program may continue after it.
        #[cfg(target_arch = "x86_64")]
        "trap" | "ignored" => unsafe { std::arch::asm!("int3") },
        // SAFETY: the breakpoint raises a signal, and again if the program continues, which is then killed.
        #[cfg(target_arch = "aarch64")]
        "trap" | "ignored" => unsafe { std::arch::asm!("brk 0") },
        "forbidden" => call_forbidden(),
        other => panic!("no end `{other}`"),
    }
}

/// Returns the address of a page of any size at which nothing is mapped, until the handler maps it.
fn page() -> *mut u8 {
    std::ptr::without_provenance_mut(0x1234_0000)
}

/// Installs a handler that maps the missing page, or restores the default action of SIGSEGV.
fn handle_faults(is_mapped: bool) {
    extern "C" fn map(_: c_int) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping at an address that no other code uses; MAP_FIXED_NOREPLACE replaces no mapping.
        unsafe { libc::mmap(page().cast(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    }
    extern "C" fn give_up(signal: c_int) {
        // SAFETY: signal(2) sets an action that is not a function.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let handler = if is_mapped { map } else { give_up } as extern "C" fn(c_int);
    // SAFETY: both handlers only make one system call.
    unsafe { libc::signal(libc::SIGSEGV, handler as usize) };
}

/// Makes a system call that a filter of this program traps.
fn call_forbidden() {
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // Loads the number of the call, at offset 0 of `seccomp_data`.
        instruction((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        instruction((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, libc::SYS_getppid as u32),
        instruction((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_TRAP),
        instruction((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: prctl(2) reads the program and its instructions, which live until it returns.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }, 0);
    // SAFETY: getppid(2) takes no arguments.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

/// Does a list of actions in order, each of which may have a number after `=`.
fn script(fifo: &Path, words: &[String]) {
    for (index, word) in words.iter().enumerate() {
        let (word, number) = word
            .split_once('=')
            .map_or((word.as_str(), 1), |(word, text)| (word, text.parse::<u64>().expect("a number")));
        match word {
            "steps" => emit_steps(0, number),
            "fail" => (0..number).for_each(|number| dormouse::event!(e2e.fail, number)),
            "begin" => dormouse::event!(e2e.begin, number),
            "end" => dormouse::event!(e2e.end, number),
            "tick" => dormouse::event!(e2e.tick, number),
            "pause" => pause(Duration::from_micros(number)),
            "title" => write_over_environment(),
            "name" => {
                let name = [c"worker one", c"a) S\n\x1b[2J\xff"][number as usize - 1];
                rustix::thread::set_name(name).expect("a name that the kernel takes");
            }
            "thread" => std::thread::scope(|scope| drop(scope.spawn(|| script(fifo, &words[index + 1..])))),
            "child" => {
                // SAFETY: the program has only one thread.
                let pid = unsafe { libc::fork() };
                if pid != 0 {
                    return wait(pid);
                }
            }
            "hold" => {
                println!("ready");
                std::fs::File::open(fifo).expect("a FIFO");
            }
            other => panic!("no word `{other}`"),
        }
        if word == "thread" {
            return;
        }
    }
}

/// Overwrites the environment, as programs do that show a title in `ps`.
fn write_over_environment() {
    unsafe extern "C" {
        static environ: *const *mut std::ffi::c_char;
    }
    // SAFETY: `environ` is a null-terminated list that no other code changes: the program has only one thread.
    let mut entry = unsafe { environ };
    loop {
        // SAFETY: the entry is in the list, whose end has not been reached.
        let text = unsafe { *entry };
        if text.is_null() {
            return;
        }
        // SAFETY: the text ends in NUL.
        let len = unsafe { libc::strlen(text) };
        // SAFETY: these are the text's bytes, to which the program may write.
        unsafe { text.write_bytes(b' ', len) };
        // SAFETY: the entry is not the last one, so the next one is in the list.
        entry = unsafe { entry.add(1) };
    }
}

/// Spins until a time has passed, by the program's own clock.
fn pause(duration: Duration) {
    let begin = std::time::Instant::now();
    while begin.elapsed() <= duration {
        std::hint::spin_loop();
    }
}

/// Uses up the stack.
fn overflow(number: u64) -> u64 {
    let page = std::hint::black_box([number; 64]);
    if number == 0 { 0 } else { overflow(number + page[1] - number + 1) + page[63] }
}

fn myself(arguments: &[String]) -> Child {
    let program = std::env::current_exe().expect("a program has a path");
    Command::new(program).args(arguments).spawn().expect("another process")
}

fn words(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| argument.to_string()).collect()
}

/// Emits up to `events_max` events from each thread, and stores after each how many are done. Then waits to be killed.
fn victim(file: &Path, threads: u32, events_max: u64) {
    let file = OpenOptions::new().read(true).write(true).open(file).expect("the file is there");
    let mapping = memmap2::MmapRaw::map_raw(&file).expect("a mapping");
    let base = mapping.as_mut_ptr().cast::<u64>();
    // SAFETY: the file has a page, which is aligned; these words are only accessed as atomics.
    let done = |thread: u32| unsafe { AtomicU64::from_ptr(base.wrapping_add(thread as usize)) };
    let done: Vec<&AtomicU64> = (0..threads).map(done).collect();
    std::thread::scope(|scope| {
        for (thread, done) in (0..threads).zip(done) {
            scope.spawn(move || {
                for number in 0..events_max {
                    emit::step(thread, number);
                    done.store(number + 1, Ordering::Release);
                }
                loop {
                    std::thread::park();
                }
            });
        }
    });
}

/// Number of threads of a victim.
const VICTIM_THREADS: u32 = 2;
/// Maximum number of a victim's events, so that an ample budget holds all of them.
const VICTIM_EVENTS_MAX: u64 = 60_000;

/// Kills one victim after the other in the middle of its events, while siblings emit theirs.
fn kill_rounds(dir: &Path, seed: u64, rounds: u64, events: u64) {
    let mut random = Random(seed);
    for round in 0..rounds {
        let siblings: Vec<Child> = (0..2).map(|_| myself(&words(&["numbers", "2", &events.to_string()]))).collect();
        let path = dir.join(format!("victim-{round}"));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("a file");
        file.set_len(4096).expect("a page");
        let mut victim = myself(&words(&[
            "victim",
            path.to_str().expect("a path of text"),
            &VICTIM_THREADS.to_string(),
            &VICTIM_EVENTS_MAX.to_string(),
        ]));
        let mut first = [0; 8];
        while first == [0; 8] {
            file.read_exact_at(&mut first, 0).expect("the file is there");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(random.below(3_000)));
        victim.kill().expect("the victim is there");
        victim.wait().expect("the victim can be awaited");
        println!("victim {}", victim.id());
        for mut sibling in siblings {
            println!("sibling {}", sibling.id());
            assert!(sibling.wait().expect("a sibling can be awaited").success());
        }
    }
}

/// How often the handler has run.
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_: c_int) {
    let number = HANDLED.fetch_add(1, Ordering::Relaxed);
    dormouse::event!(e2e.signal, number, check = emit::check(emit::HANDLER, number));
}

fn handle(signal: c_int, handler: extern "C" fn(c_int)) {
    // SAFETY: all zeroes is a valid value of this plain C struct: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is complete and live; the handler only does what is async-signal-safe.
    let answer = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    assert_eq!(answer, 0);
}

fn set_timer(microseconds: i64) {
    let interval = libc::timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the timer value is complete and live.
    let answer = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) };
    assert_eq!(answer, 0);
}

/// Emits from threads that are interrupted by two kinds of signals, whose handlers emit too, and that are moved from
/// one CPU to another meanwhile.
fn signals(threads: u32, events: u64) {
    handle(libc::SIGUSR1, on_signal);
    handle(libc::SIGALRM, on_signal);
    set_timer(100);
    let (sender, ids) = std::sync::mpsc::channel();
    let worker = |thread: u32| {
        let sender = sender.clone();
        std::thread::spawn(move || {
            sender.send(rustix::thread::gettid()).expect("the main thread waits");
            emit_steps(thread, events);
        })
    };
    let workers: Vec<_> = (0..threads).map(worker).collect();
    let ids: Vec<_> = ids.iter().take(threads as usize).collect();
    let cpus = rustix::thread::sched_getaffinity(None).expect("the processors that there are");
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)).collect();
    // A thread that has not been joined can be sent signals even after it has ended.
    for round in 0..20_000 {
        if round % 16 == 0 {
            for (thread, id) in ids.iter().enumerate() {
                let mut one = rustix::thread::CpuSet::new();
                one.set(cpus[(round / 16 + thread) % cpus.len()]);
                // Fails once the thread has ended.
                let _ = rustix::thread::sched_setaffinity(Some(*id), &one);
            }
        }
        for worker in workers.iter().filter(|worker| !worker.is_finished()) {
            // SAFETY: the thread has not been joined.
            unsafe { libc::pthread_kill(worker.as_pthread_t(), libc::SIGUSR1) };
        }
        if workers.iter().all(|worker| worker.is_finished()) {
            break;
        }
    }
    for worker in workers {
        worker.join().expect("a worker");
    }
    set_timer(0);
    println!("emitted {}", threads as u64 * events);
    println!("handled {}", HANDLED.load(Ordering::Relaxed));
}

/// Thread number in the events of children and grandchildren; a program that a child executes counts from 0 again.
const CHILD: u32 = 20;
/// See [`CHILD`].
const GRANDCHILD: u32 = 10;

/// Forks while other threads trace. Children emit; every second one forks again, every third executes another program.
fn fork(children: u64, events: u64) {
    let program = std::env::current_exe().expect("a program has a path");
    let program = CString::new(program.as_os_str().as_bytes()).expect("a path");
    let arguments = ["e2e-traced", "numbers", "1"].map(|argument| CString::new(argument).expect("an argument"));
    let last = CString::new(events.to_string()).expect("an argument");
    let mut list: Vec<*const libc::c_char> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    list.extend([last.as_ptr(), std::ptr::null()]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let tracers: Vec<_> = (0..2)
            .map(|thread| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut number = 0;
                    while !stop.load(Ordering::Relaxed) && number < 100_000 {
                        emit::step(thread, number);
                        number += 1;
                    }
                    number
                })
            })
            .collect();
        for child in 0..children {
            // SAFETY: the child only calls functions that are allowed after a fork: events, fork, execv, waitpid,
            // _exit.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                emit_steps(CHILD, events);
                if child % 2 == 1 {
                    grandchild(events);
                }
                if child % 3 == 2 {
                    // SAFETY: the strings end in NUL and the list in null; they were made before the fork.
                    unsafe { libc::execv(program.as_ptr(), list.as_ptr()) };
                }
                // SAFETY: _exit(2) ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(0) };
            }
            println!("child {pid}");
            wait(pid);
        }
        stop.store(true, Ordering::Relaxed);
        for tracer in tracers {
            println!("traced {}", tracer.join().expect("a tracer"));
        }
    });
}

fn wait(pid: libc::pid_t) {
    let mut status = -1;
    // SAFETY: waits for a child of this process and writes its status to a live integer.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0, "child {pid}");
}

fn grandchild(events: u64) {
    // SAFETY: the grandchild only calls functions that are allowed after a fork: events, _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        emit_steps(GRANDCHILD, events);
        // SAFETY: _exit(2) ends the grandchild without running the original program's exit handlers.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: waits for a child of this process and writes its status to a live integer.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    if status != 0 {
        // Does not panic, because that would wait for threads that this process does not have.
        // SAFETY: _exit(2) ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(98) };
    }
}

/// Executes itself again `times` times, in the middle of its threads' events; then emits `events` from one thread.
fn become_again(times: u64, events: u64) {
    use std::os::unix::process::CommandExt;
    if times == 0 {
        numbers(1, events);
        return;
    }
    for thread in 1..4 {
        std::thread::spawn(move || emit_steps(thread, 50_000));
    }
    // Gives the threads time to be in the middle of their events.
    std::thread::sleep(Duration::from_millis(1));
    let program = std::env::current_exe().expect("a program has a path");
    let error = Command::new(program).args(words(&["become", &(times - 1).to_string(), &events.to_string()])).exec();
    panic!("{error}");
}

/// Starts processes that emit, a few at a time, and one that does nothing.
fn many(count: u64, events: u64) {
    let mut running = vec![myself(&words(&["idle"]))];
    for _ in 0..count {
        if running.len() == 4 {
            assert!(running.remove(0).wait().expect("a process").success());
        }
        running.push(myself(&words(&["numbers", "1", &events.to_string()])));
    }
    for mut process in running {
        assert!(process.wait().expect("a process").success());
    }
}

/// Alternately emits its own events and those of a library that it loads.
fn plugin(path: &Path, events: u64) {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
    // SAFETY: the library was built by the tests, and the path ends in NUL.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    // SAFETY: the library is loaded, and the name ends in NUL.
    let symbol = unsafe { libc::dlsym(library, c"dormouse_e2e_plugin_emit".as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: the plugin's function has this type.
    let emit_there = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u64)>(symbol) };
    for number in 0..events {
        emit::step(0, number);
        emit_there(number);
    }
}

/// Emits an event whose argument has a side effect, and prints how often the argument was evaluated.
fn dormant(events: u64) {
    let mut evaluated = 0u64;
    let mut evaluate = || {
        evaluated += 1;
        evaluated
    };
    for _ in 0..events {
        dormouse::event!(e2e.sleeper, value = evaluate());
    }
    println!("evaluated {evaluated}");
}

/// The function that the golden test examines: it contains only one event.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn dormouse_e2e_golden(number: u64) -> u64 {
    dormouse::event!(e2e.golden, number);
    number.wrapping_add(1)
}

/// Length and alignment of an event's site, in bytes.
const SITE_LEN: usize = if cfg!(target_arch = "aarch64") { 4 } else { X86_BRANCH_LEN };
const SITE_ALIGNMENT: usize = if cfg!(target_arch = "aarch64") { 4 } else { 1 };

/// Compares the program's text in memory with the file. Prints the five bytes that begin with each differing byte, with
/// their offset in the file, and the information in the site registry.
fn golden() {
    assert_eq!(dormouse_e2e_golden(1), 2);
    let program = std::env::current_exe().expect("a program has a path");
    let file = std::fs::read(&program).expect("a program can be read");
    for region in regions(&program.to_string_lossy()).iter().filter(|region| region.executable) {
        let len = region.len.min(file.len() - region.file_offset);
        // SAFETY: this is the program's own text, mapped as long as it runs; no thread arms or disarms sites any more.
        let text = unsafe { std::slice::from_raw_parts(region.start as *const u8, len) };
        let on_disk = &file[region.file_offset..][..len];
        let mut begin = 0;
        while let Some(index) = (begin..len).find(|index| text[*index] != on_disk[*index]) {
            let index = index / SITE_ALIGNMENT * SITE_ALIGNMENT;
            begin = index + SITE_LEN;
            let hex = |bytes: &[u8]| {
                bytes[index..begin].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
            };
            println!("differs {:#x}: {} on disk, {} in memory", region.file_offset + index, hex(on_disk), hex(text));
        }
    }
    let status = dormouse_imv::status().expect("no update is under way");
    println!("sites {}", status.count.sites);
    println!("patched {}", status.count.patched);
}

static TERMINATED: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_signal(signal: c_int) {
    TERMINATED.store(signal as u64, Ordering::Release);
}

/// Ends when a signal arrives, and prints which one.
fn await_signal() {
    handle(libc::SIGTERM, note_signal);
    handle(libc::SIGINT, note_signal);
    println!("ready");
    while TERMINATED.load(Ordering::Acquire) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("received {}", TERMINATED.load(Ordering::Acquire));
    std::process::exit(7);
}

/// Copies its input to its output, traces each line, and writes to standard error.
fn echo() {
    for (number, line) in (0..).zip(std::io::stdin().lock().lines()) {
        let line = line.expect("a line");
        emit::step(0, number);
        println!("{line}");
    }
    eprintln!("a complaint");
    std::process::exit(3);
}

/// Emits an event and ends by a signal.
fn die(signal: c_int) {
    emit::step(0, 0);
    // SAFETY: raise(3) sends a signal to this process.
    unsafe { libc::raise(signal) };
    std::thread::sleep(Duration::from_secs(1));
}

/// Emits events that do not fit into a page between others that do: `count` of 100,000 bytes, and one of more than 4
/// GiB.
fn too_big(count: u64) {
    let text = "x".repeat(100_000);
    for number in 0..count {
        emit::step(0, number);
        dormouse::event!(e2e.big, number, text);
    }
    let len = (4usize << 30) + 24;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: `len` bytes that were mapped just now; they are zero, and no code writes to them.
    let huge: &[u8] = unsafe { std::slice::from_raw_parts(start.cast(), len) };
    dormouse::event!(e2e.big, number = count, huge);
    println!("emitted {}", 2 * count + 1);
}

/// A line of `/proc/self/maps`.
struct Region {
    start: usize,
    len: usize,
    file_offset: usize,
    executable: bool,
}

fn regions(name: &str) -> Vec<Region> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process has maps");
    let hex = |text: &str| usize::from_str_radix(text, 16).expect("an address");
    let region = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-').expect("a range");
        Region {
            start: hex(start),
            len: hex(end) - hex(start),
            file_offset: hex(words[2]),
            executable: words[1].contains('x'),
        }
    };
    maps.lines().filter(|line| line.contains(name)).map(region).collect()
}

/// Writes garbage over the session's memory, and continues to emit meanwhile. An even seed leaves the header unchanged,
/// since changes there would soon make all programs leave the session.
fn hostile(seed: u64, stores: u64) {
    let memory = memory::innermost();
    let (words, geometry) = (memory.words(), *memory.geometry());
    let mut random = Random(seed);
    let control_words = geometry.pages_offset() as u64 / 8;
    let mut events = 0;
    let stream_words = (geometry.rings_offset() - geometry.streams_offset()) as u64 / 8;
    for number in 0..stores {
        let index = match random.below(8) {
            0 => random.below(words.len() as u64),
            1 => random.below(HEADER_SIZE_BYTES as u64 / 8),
            2 | 3 => {
                let stream = random.below(stream_words * 8 / STREAM_STRIDE_BYTES as u64);
                geometry.streams_offset() as u64 / 8 + stream * (STREAM_STRIDE_BYTES as u64 / 8) + random.below(40)
            }
            4 => {
                let page = random.below(geometry.page_count.into()) * geometry.page_size_bytes as u64 / 8;
                control_words + page + random.below(12)
            }
            _ => random.below(control_words),
        };
        if seed.is_multiple_of(2) && index < HEADER_SIZE_BYTES as u64 / 8 {
            continue;
        }
        // Zero, all ones, noise, off by one, or a value from elsewhere.
        let old = words[index as usize].load(Ordering::Relaxed);
        let value = match random.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => old.wrapping_add(1),
            3 => old ^ 1 << random.below(64),
            4 => words[random.below(control_words) as usize].load(Ordering::Relaxed),
            _ => random.number(),
        };
        words[index as usize].store(value, Ordering::Relaxed);
        if number % 8 == 0 {
            emit::step(0, number);
            events += 1;
        }
    }
    println!("scribbled {stores}\nbetween {events}");
}

/// Offset of `idx` in the available ring and in the used ring (VirtIO 1.2, 2.7.6 and 2.7.8).
const IDX: usize = 2;

/// Endlessly offers pages that were never filled: the ring is always half full.
fn flood() {
    let memory = memory::innermost();
    let (words, geometry) = (memory.words(), *memory.geometry());
    println!("ready");
    let ring = geometry.rings_offset();
    let (avail, used) = (ring + geometry.ring().avail() + IDX, ring + geometry.ring().used() + IDX);
    let shift = avail % 8 * 8;
    loop {
        let used = words[used / 8].load(Ordering::Relaxed) >> (used % 8 * 8);
        let offered = used.wrapping_add(geometry.ring_size() as u64 / 2) & 0xFFFF;
        let others = words[avail / 8].load(Ordering::Relaxed) & !(0xFFFF << shift);
        words[avail / 8].store(others | offered << shift, Ordering::Relaxed);
    }
}

/// Emits events, and then makes every ring offer more than it can hold, however much its reader takes meanwhile.
fn lie(events: u64) {
    emit_steps(0, events);
    println!("emitted {events}");
    let memory = memory::innermost();
    let (words, geometry) = (memory.words(), *memory.geometry());
    let ring_bytes = geometry.ring_stride_bytes();
    for ring in (geometry.rings_offset()..).step_by(ring_bytes).take(geometry.stream_count as usize) {
        let avail = ring + geometry.ring().avail() + IDX;
        let used = ring + geometry.ring().used() + IDX;
        let (shift, of_used) = (avail % 8 * 8, words[used / 8].load(Ordering::Relaxed) >> (used % 8 * 8));
        let offered = of_used.wrapping_add(0x8000) & 0xFFFF;
        let others = words[avail / 8].load(Ordering::Relaxed) & !(0xFFFF << shift);
        words[avail / 8].store(others | offered << shift, Ordering::Relaxed);
    }
}
