//! A flight recorder of a pool of workers. It keeps the last records of each CPU in a file, prints them at SIGUSR1 while
//! the workers go on, and after a crash or `kill -9` another run prints what the file has.
//!
//! ```text
//!   cargo run --example recorder FILE            works until SIGTERM, and prints at SIGUSR1
//!   cargo run --example recorder FILE crash      works until a worker aborts
//!   cargo run --example recorder -- --read FILE  prints the records of a run that has ended
//! ```

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dormouse_relay_channel::{Channel, Mode, Options, Page, TakeError, Writers};

const WORKER_COUNT: u16 = 4;
const PAGES_PER_CPU: u32 = 8;
const ATTEMPTS: u32 = 1000;
const CRASH_AT: u32 = 50_000;

/// What a record says, before the name of the job.
struct Header {
    time_ns: u64,
    job: u32,
    worker: u16,
    has_ended: bool,
}

impl Header {
    const SIZE_BYTES: usize = 16;

    fn to_bytes(&self) -> [u8; Header::SIZE_BYTES] {
        let mut bytes = [0; Header::SIZE_BYTES];
        bytes[..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.job.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.worker.to_le_bytes());
        bytes[14] = self.has_ended.into();
        bytes
    }
}

fn work(channel: &Channel, worker: u16, next: &AtomicU32, is_stopped: &AtomicBool, has_crash: bool) {
    let begin = Instant::now();
    let record = |job, has_ended, name: &str| {
        let header = Header { time_ns: begin.elapsed().as_nanos() as u64, job, worker, has_ended };
        // If there is no page, it counts the record, and the worker goes on.
        let _ = channel.write([&header.to_bytes(), name.as_bytes()]);
    };
    while !is_stopped.load(Ordering::Relaxed) {
        let job = next.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("resize image {job}");
        record(job, false, &name);
        black_box((0..job % 1000).fold(0u64, |sum, step| black_box(sum + u64::from(step))));
        if has_crash && job == CRASH_AT {
            std::process::abort();
        }
        record(job, true, &name);
    }
}

/// Takes a page. If a worker is in the middle of a record, waits until it has gone on.
///
/// # Safety
/// The condition of [`Channel::take_from`].
unsafe fn take(channel: &Channel, cpu: u32, writers: Writers) -> Option<Page<'_>> {
    for _ in 0..ATTEMPTS {
        // SAFETY: the caller guarantees that no writer is at work, if it says so.
        match unsafe { channel.take_from(cpu, writers) } {
            Ok(page) => return Some(page),
            Err(TakeError::Empty) => return None,
            Err(TakeError::Busy) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// Takes and prints what is there: for each CPU the number of records, and the last one. Workers may fill pages as fast as
/// they are taken, so it takes no more than there were.
///
/// # Safety
/// The condition of [`Channel::take_from`].
unsafe fn print_records(channel: &Channel, writers: Writers) {
    for cpu in 0..channel.buffer_count() {
        channel.flush(cpu);
        let (mut count, mut last) = (0, Vec::new());
        for _ in 0..PAGES_PER_CPU * channel.buffer_count() {
            // SAFETY: the caller guarantees that no writer is at work, if it says so.
            let Some(page) = (unsafe { take(channel, cpu, writers) }) else { break };
            count += page.taken().record_count;
            if let Some(record) = page.records().last() {
                last = record.to_vec();
            }
        }
        if let Some((header, name)) = last.split_at_checked(Header::SIZE_BYTES) {
            let worker = u16::from_le_bytes([header[12], header[13]]);
            let step = if header[14] == 0 { "began" } else { "ended" };
            let overwritten = channel.counts(cpu).unwrap_or_default().overwritten;
            let name = String::from_utf8_lossy(name);
            println!("CPU {cpu}: {count} records, {overwritten} overwritten; the last: worker {worker} {step} {name}");
        }
    }
    println!("--");
}

/// Waits for SIGUSR1 or SIGTERM.
fn wait_for(signals: &libc::sigset_t) -> libc::c_int {
    let mut signal = 0;
    // SAFETY: the set is initialised, and the number may be written.
    unsafe { libc::sigwait(signals, &mut signal) };
    signal
}

/// Blocks SIGUSR1 and SIGTERM in this thread and those that it starts.
fn block_signals() -> libc::sigset_t {
    let mut signals = MaybeUninit::uninit();
    // SAFETY: the set may be written.
    unsafe { libc::sigemptyset(signals.as_mut_ptr()) };
    // SAFETY: the call above has initialised it.
    let mut signals = unsafe { signals.assume_init() };
    for signal in [libc::SIGUSR1, libc::SIGTERM] {
        // SAFETY: the set is initialised.
        unsafe { libc::sigaddset(&mut signals, signal) };
    }
    // SAFETY: the set is initialised, and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) };
    signals
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, has_crash) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--read", path] => {
            let file = File::options().read(true).write(true).open(path)?;
            // SAFETY: nothing truncates the file, and only channels write to it.
            let channel = unsafe { Channel::open(file.as_fd()) }?;
            // SAFETY: the run has ended.
            unsafe { print_records(&channel, Writers::Ended) };
            return Ok(());
        }
        [path] => (path, false),
        [path, "crash"] => (path, true),
        _ => return Err("usage: recorder FILE [crash] | recorder --read FILE".into()),
    };
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    let options = Options::new(Mode::Overwrite);
    let page_count = PAGES_PER_CPU as usize * options.buffer_count;
    let channel = Channel::create(file.as_fd(), &Options { page_size_bytes: 4096, page_count, ..options })?;
    let signals = block_signals();
    let (next, is_stopped) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (channel, next, is_stopped) = (&channel, &next, &is_stopped);
        for worker in 0..WORKER_COUNT {
            scope.spawn(move || work(channel, worker, next, is_stopped, has_crash));
        }
        println!("process {}, {WORKER_COUNT} workers", std::process::id());
        while wait_for(&signals) == libc::SIGUSR1 {
            // SAFETY: the condition is only for `Writers::Ended`.
            unsafe { print_records(channel, Writers::Running) };
        }
        is_stopped.store(true, Ordering::Relaxed);
    });
    // SAFETY: the condition is only for `Writers::Ended`.
    unsafe { print_records(&channel, Writers::Running) };
    Ok(())
}
