//! Channels from outside: operations against a list of records, errors, nested writers, threads with signals, and
//! processes that are killed.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread;

use dormouse_relay_channel::{Channel, ChannelError, Counts, Lost, Mode, Options, Reservation, TakeError, Writers};
use proptest::prelude::*;

const PAGE: usize = 4096;
/// Number of pages of channels with several writers, or more.
const PAGES: usize = 8;

fn options(mode: Mode, buffer_count: usize, page_count: usize) -> Options {
    Options { mode, buffer_count, page_count, page_size_bytes: PAGE, kept_page_count: 0 }
}

fn memfd() -> File {
    // SAFETY: the name is a C string.
    let file = unsafe { libc::memfd_create(c"channel".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(file >= 0);
    // SAFETY: the descriptor was just made, and nobody else has it.
    unsafe { File::from_raw_fd(file) }
}

/// Closes and takes all pages of a buffer, and returns their records.
fn drain(channel: &Channel, buffer: u32) -> Vec<Vec<u8>> {
    channel.flush(buffer);
    let mut records = Vec::new();
    while let Ok(page) = channel.take(buffer) {
        records.extend(page.records().map(<[u8]>::to_vec));
    }
    records
}

#[test]
fn options_that_are_not_valid_are_refused() {
    let valid = options(Mode::Discard, 2, 8);
    assert!(Channel::new(&valid).is_ok());
    for wrong in [
        Options { page_size_bytes: 2048, ..valid },
        Options { page_size_bytes: 12288, ..valid },
        Options { page_size_bytes: 4 << 20, ..valid },
        Options { buffer_count: 0, ..valid },
        Options { page_count: 0, ..valid },
        Options { page_count: 1 << 20, ..valid },
        Options { kept_page_count: 5, ..valid },
        Options { kept_page_count: usize::MAX, ..valid },
        options(Mode::Overwrite, 2, 2),
        Options { kept_page_count: 1, ..options(Mode::Overwrite, 2, 8) },
    ] {
        assert_eq!(Channel::new(&wrong).err(), Some(ChannelError::Options), "{wrong:?}");
    }
    assert!(Channel::new(&Options::new(Mode::Discard)).is_ok());
    assert!(Channel::new(&Options::new(Mode::Overwrite)).is_ok());
}

#[test]
fn a_file_without_a_channel_is_refused() {
    let file = memfd();
    // SAFETY: nobody else has the file.
    assert_eq!(unsafe { Channel::open(file.as_fd()) }.err(), Some(ChannelError::NoChannel));
    file.set_len(1 << 20).unwrap();
    // SAFETY: nobody else has the file.
    assert_eq!(unsafe { Channel::open(file.as_fd()) }.err(), Some(ChannelError::NoChannel));
    drop(Channel::create(file.as_fd(), &options(Mode::Discard, 1, 4)).unwrap());
    // SAFETY: nobody else has the file.
    assert!(unsafe { Channel::open(file.as_fd()) }.is_ok());
    file.set_len(4 * 4096).unwrap();
    // SAFETY: nobody else has the file.
    assert_eq!(unsafe { Channel::open(file.as_fd()) }.err(), Some(ChannelError::NoChannel));
}

#[test]
fn a_record_larger_than_a_page_is_lost_and_counted() {
    let channel = Channel::new(&options(Mode::Discard, 1, 1)).unwrap();
    assert_eq!(channel.record_size_max_bytes(), PAGE - 8);
    assert_eq!(channel.write([&[7; PAGE - 7]]), Err(Lost::Big));
    assert_eq!(channel.reserve(usize::MAX).err(), Some(Lost::Big));
    assert_eq!(channel.write([&[7; PAGE - 8]]), Ok(()));
    assert_eq!(channel.write([]), Err(Lost::Full));
    assert_eq!(channel.counts(0), Some(Counts { lost_full: 1, lost_big: 2, overwritten: 0 }));
    assert_eq!(channel.counts(1), None);
    assert_eq!(drain(&channel, 0), [vec![7; PAGE - 8]]);
}

#[test]
fn a_page_with_a_reserved_record_is_neither_taken_nor_overwritten() {
    for mode in [Mode::Discard, Mode::Overwrite] {
        let channel = Channel::new(&options(mode, 1, 3)).unwrap();
        let mut held = channel.reserve(4).unwrap();
        // What a handler does that interrupts a writer: many times as much as there are pages.
        let written = (0..100u64).filter(|count| channel.write([&count.to_le_bytes(), &[0; 500]]).is_ok()).count();
        assert_eq!(written as u64 + channel.counts(0).unwrap().lost_full, 100);
        // The buffer's oldest page is the one with the reserved record, so all later records are kept.
        assert_eq!((written, channel.counts(0).unwrap().overwritten), (21, 0));
        assert_eq!(channel.take(0).err(), Some(TakeError::Busy));
        held.copy_from_slice(b"held");
        held.commit();
        let records = drain(&channel, 0);
        assert_eq!((records.len(), &records[0][..]), (22, &b"held"[..]));
        assert!(records[1..].iter().zip(0u64..).all(|(record, count)| record[..8] == count.to_le_bytes()));
    }
}

#[test]
fn a_reservation_that_is_dropped_is_skipped() {
    let channel = Channel::new(&options(Mode::Discard, 1, 2)).unwrap();
    channel.write([b"first"]).unwrap();
    drop(channel.reserve(1000).unwrap());
    let mut reserved = channel.reserve(3).unwrap();
    assert_eq!(*reserved, [0; 3]);
    assert_eq!(reserved.as_ptr().addr() % 8, 0);
    // Another thread may commit it.
    thread::scope(|scope| {
        scope.spawn(|| {
            reserved.copy_from_slice(b"two");
            reserved.commit();
        });
    });
    assert_eq!(drain(&channel, 0), [b"first".to_vec(), b"two".to_vec()]);
}

#[test]
fn busy_buffers_leave_the_kept_pages_to_others() {
    let kept = Options { kept_page_count: 2, ..options(Mode::Discard, 2, 8) };
    let channel = Channel::new(&kept).unwrap();
    let fill =
        |buffer| (0..100).filter(|_| channel.reserve_in(buffer, PAGE - 8).map(Reservation::commit).is_ok()).count();
    assert_eq!(fill(0), 6);
    assert_eq!(fill(1), 2);
    // A page goes back to where it is kept.
    drop(channel.take(1).unwrap());
    assert_eq!((fill(0), fill(1)), (0, 1));
}

#[test]
fn the_buffer_with_the_most_pages_is_overwritten() {
    let channel = Channel::new(&options(Mode::Overwrite, 3, 12)).unwrap();
    let fill = |buffer, count| (0..count).for_each(|_| channel.reserve_in(buffer, PAGE - 8).unwrap().commit());
    fill(0, 12);
    fill(1, 4);
    let overwritten = |buffer| channel.counts(buffer).unwrap().overwritten;
    assert_eq!([overwritten(0), overwritten(1), overwritten(2)], [4, 0, 0]);
    fill(1, 100);
    // Both have half; the third gets its first page from one of them.
    fill(2, 1);
    assert!(overwritten(1) > 90 && overwritten(0) < 8 && overwritten(2) == 0);
    // Pages that are missing show in the numbers of the others.
    channel.flush(0);
    assert_eq!(channel.take(0).unwrap().taken().number, overwritten(0) + 1);
}

/// Prints how long a record of 16 bytes takes, pages that are overwritten included: `cargo test --release -- --nocapture`.
#[test]
fn a_million_records_are_all_accounted_for() {
    const COUNT: u64 = 1_000_000;
    let channel = Channel::new(&Options::new(Mode::Overwrite)).unwrap();
    let mut read = 0;
    for round in 1..=3u64 {
        let begin = std::time::Instant::now();
        for number in 0..COUNT {
            channel.write([&number.to_le_bytes(), &round.to_le_bytes()]).unwrap();
        }
        println!("{:.1} ns for each record", begin.elapsed().as_nanos() as f64 / COUNT as f64);
        read += (0..channel.buffer_count()).map(|buffer| drain(&channel, buffer).len() as u64).sum::<u64>();
        assert_eq!(read + total(&channel).overwritten, round * COUNT);
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Write {
        buffer: u32,
        len: usize,
    },
    Cancel {
        buffer: u32,
        len: usize,
    },
    Flush {
        buffer: u32,
    },
    /// Takes a page, and gives it back after this many further pages were taken.
    Take {
        buffer: u32,
    },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let len = prop_oneof![0..40usize, 3000..PAGE - 7];
    let operation = prop_oneof![
        6 => (0..2u32, len.clone()).prop_map(|(buffer, len)| Operation::Write { buffer, len }),
        1 => (0..2u32, len).prop_map(|(buffer, len)| Operation::Cancel { buffer, len }),
        1 => (0..2u32).prop_map(|buffer| Operation::Flush { buffer }),
        1 => (0..2u32).prop_map(|buffer| Operation::Take { buffer }),
    ];
    prop::collection::vec(operation, 0..300)
}

proptest! {
    /// The oracle is a list of the records of each buffer. Records that are missing in it are at its beginning, and counted.
    #[test]
    fn operations_agree_with_a_list(is_overwrite: bool, operations in operations()) {
        let mode = if is_overwrite { Mode::Overwrite } else { Mode::Discard };
        let channel = Channel::new(&options(mode, 2, 6)).unwrap();
        let mut lists: [VecDeque<Vec<u8>>; 2] = Default::default();
        let (mut lost, mut passed) = ([0; 2], [0; 2]);
        let take = |buffer: u32, lists: &mut [VecDeque<Vec<u8>>; 2], passed: &mut [u64; 2]| {
            let Ok(page) = channel.take(buffer) else { return false };
            let records: Vec<_> = page.records().map(<[u8]>::to_vec).collect();
            assert_eq!(records.len() as u64, page.taken().record_count);
            let (list, index) = (&mut lists[buffer as usize], buffer as usize);
            while passed[index] < channel.counts(buffer).unwrap().overwritten {
                passed[index] += 1;
                list.pop_front().expect("an overwritten record");
            }
            records.iter().for_each(|record| assert_eq!(Some(record), list.pop_front().as_ref()));
            true
        };
        for (index, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Write { buffer, len } => match channel.reserve_in(buffer, len) {
                    Ok(mut reservation) => {
                        reservation.iter_mut().zip(index..).for_each(|(byte, value)| *byte = value as u8);
                        lists[buffer as usize].push_back(reservation.to_vec());
                        reservation.commit();
                    }
                    Err(error) => {
                        prop_assert!(error == Lost::Full && !is_overwrite);
                        lost[buffer as usize] += 1;
                    }
                },
                Operation::Cancel { buffer, len } => {
                    lost[buffer as usize] += u64::from(channel.reserve_in(buffer, len).map(drop).is_err());
                }
                Operation::Flush { buffer } => drop(channel.flush(buffer)),
                Operation::Take { buffer } => drop(take(buffer, &mut lists, &mut passed)),
            }
        }
        for buffer in 0..2 {
            channel.flush(buffer);
            while take(buffer, &mut lists, &mut passed) {}
            let counts = channel.counts(buffer).unwrap();
            prop_assert_eq!((counts.lost_full, counts.lost_big), (lost[buffer as usize], 0));
            // What is left was overwritten after the last page was taken.
            let left = lists[buffer as usize].len() as u64;
            prop_assert_eq!(left, counts.overwritten - passed[buffer as usize]);
        }
    }
}

/// Writers from this one on are handlers, whose records have no bytes, because a handler allocates nothing.
const HANDLERS: u64 = 1000;

/// A record of the ledger: writer, sequence, checksum; and bytes of a length and contents that follow from the first two.
fn ledger_record(writer: u64, sequence: u64) -> ([u8; 24], Vec<u8>) {
    let len = (writer.wrapping_mul(31) ^ sequence.wrapping_mul(2_654_435_761)) as usize % 90;
    let len = if writer < HANDLERS { len } else { 0 };
    let bytes: Vec<u8> = (0..len).map(|index| (writer + sequence * 7 + index as u64) as u8).collect();
    let checksum = bytes.iter().fold(writer ^ sequence << 8, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
    let mut header = [0; 24];
    header[..8].copy_from_slice(&writer.to_le_bytes());
    header[8..16].copy_from_slice(&sequence.to_le_bytes());
    header[16..].copy_from_slice(&checksum.to_le_bytes());
    (header, bytes)
}

fn number(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(record[at..at + 8].try_into().unwrap())
}

/// Records that were read, by writer: how many, and in each buffer the last sequence number.
#[derive(Default)]
struct Ledger {
    read: BTreeMap<u64, u64>,
    last: BTreeMap<(u32, u64), u64>,
    unfinished: u64,
}

impl Ledger {
    fn check(&mut self, buffer: u32, record: &[u8]) {
        let (writer, sequence) = (number(record, 0), number(record, 8));
        let (header, bytes) = ledger_record(writer, sequence);
        assert!(record[..24] == header && record[24..] == bytes, "a torn record of {writer}: {sequence}");
        *self.read.entry(writer).or_default() += 1;
        let before = self.last.insert((buffer, writer), sequence);
        assert!(before.is_none_or(|before| before < sequence), "{writer}: {sequence} after {before:?}");
    }

    /// Takes the pages of all buffers. Writers may fill pages as fast as they are taken, so it takes no more than there
    /// were.
    fn take(&mut self, channel: &Channel, writers: Writers) {
        for buffer in 0..channel.buffer_count() {
            channel.flush(buffer);
            for _ in 0..3 * PAGES {
                // SAFETY: callers that say so have waited for the end of all writers.
                let Ok(page) = (unsafe { channel.take_from(buffer, writers) }) else { break };
                self.unfinished += page.taken().unfinished_count;
                page.records().for_each(|record| self.check(buffer, record));
            }
        }
    }
}

fn total(channel: &Channel) -> Counts {
    let counts = (0..channel.buffer_count()).map(|buffer| channel.counts(buffer).unwrap());
    counts.fold(Counts::default(), |sum, more| Counts {
        lost_full: sum.lost_full + more.lost_full,
        lost_big: sum.lost_big + more.lost_big,
        overwritten: sum.overwritten + more.overwritten,
    })
}

/// The channel that the handler writes to.
static SIGNALLED: AtomicPtr<Channel> = AtomicPtr::new(std::ptr::null_mut());
/// Sequence numbers of the handlers' records, by buffer modulo 64; a handler is a writer of its own.
static HANDLED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static HANDLER_LOST: AtomicU64 = AtomicU64::new(0);
/// One at a time: they share the handler.
static SIGNALS: Mutex<()> = Mutex::new(());

thread_local! {
    static WRITER: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

extern "C" fn write_in_handler(_: libc::c_int) {
    // SAFETY: null, or a channel that stays until the signals have ended.
    let Some(channel) = (unsafe { SIGNALLED.load(Ordering::Acquire).as_ref() }) else { return };
    let writer = WRITER.get();
    if writer == 0 {
        return;
    }
    let sequence = HANDLED[writer as usize].fetch_add(1, Ordering::Relaxed);
    let (header, _) = ledger_record(HANDLERS + writer, sequence);
    HANDLER_LOST.fetch_add(u64::from(channel.write([&header]).is_err()), Ordering::Relaxed);
}

/// Threads write, also in handlers that interrupt them anywhere, while a reader takes pages. Every record is read, lost or
/// overwritten, none is torn, and each writer's are in order.
fn stress(mode: Mode, record_count: u64) {
    const WRITERS: u64 = 4;
    let _one = SIGNALS.lock().unwrap();
    let mut channel = Channel::new(&options(mode, 2, PAGES)).unwrap();
    SIGNALLED.store(&raw mut channel, Ordering::Release);
    HANDLED.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    HANDLER_LOST.store(0, Ordering::Relaxed);
    let handler: extern "C" fn(libc::c_int) = write_in_handler;
    // SAFETY: the handler calls only functions that are safe in handlers.
    assert_ne!(unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) }, libc::SIG_ERR);
    let (done, lost, ended) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut ledger = Ledger::default();
    thread::scope(|scope| {
        let (channel, done, lost, ended) = (&channel, &done, &lost, &ended);
        let writers: Vec<_> = (1..=WRITERS)
            .map(|writer| {
                let (send, receive) = std::sync::mpsc::channel();
                let handle = scope.spawn(move || {
                    WRITER.set(writer);
                    // SAFETY: the call has no conditions.
                    send.send(unsafe { libc::pthread_self() }).unwrap();
                    for sequence in 0..record_count {
                        let (header, bytes) = ledger_record(writer, sequence);
                        // Both ways to write.
                        let is_written = if sequence % 2 == 0 {
                            channel.write([&header, &bytes]).is_ok()
                        } else {
                            channel.reserve(24 + bytes.len()).is_ok_and(|mut reservation| {
                                reservation[..24].copy_from_slice(&header);
                                if sequence % 64 == 1 {
                                    // Often on another CPU afterwards.
                                    thread::yield_now();
                                }
                                reservation[24..].copy_from_slice(&bytes);
                                reservation.commit();
                                true
                            })
                        };
                        lost.fetch_add(u64::from(!is_written), Ordering::Relaxed);
                    }
                    WRITER.set(0);
                    ended.fetch_add(1, Ordering::Relaxed);
                    // The thread stays until no signal is sent any more.
                    while !done.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                });
                (handle, receive.recv().unwrap())
            })
            .collect();
        let threads: Vec<_> = writers.iter().map(|(_, thread)| *thread).collect();
        let interrupter = scope.spawn(move || {
            while ended.load(Ordering::Relaxed) < WRITERS {
                for &thread in &threads {
                    // SAFETY: the thread exists until `done` is set, after this loop.
                    unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                }
                thread::yield_now();
            }
            done.store(true, Ordering::Release);
        });
        while !interrupter.is_finished() {
            ledger.take(channel, Writers::Running);
        }
        writers.into_iter().for_each(|(handle, _)| handle.join().unwrap());
        ledger.take(channel, Writers::Running);
    });
    SIGNALLED.store(std::ptr::null_mut(), Ordering::Release);
    let handled: u64 = HANDLED.iter().map(|count| count.load(Ordering::Relaxed)).sum();
    let counts = total(&channel);
    let read: u64 = ledger.read.values().sum();
    println!("{mode:?}: {read} read, {handled} in handlers, {counts:?}");
    assert_eq!(counts.lost_full, lost.into_inner() + HANDLER_LOST.load(Ordering::Relaxed));
    assert_eq!(read + counts.lost_full + counts.overwritten, WRITERS * record_count + handled);
    assert!(handled > 0 && read > 0);
}

#[test]
fn threads_and_signals_that_discard() {
    stress(Mode::Discard, 40_000);
}

#[test]
fn threads_and_signals_that_overwrite() {
    stress(Mode::Overwrite, 40_000);
}

/// Forks a child that writes records of `writer` to buffer 0, and after each the number of those that are not lost to
/// `acknowledged`.
fn writing_child(channel: &Channel, writer: u64, acknowledged: &AtomicU64) -> libc::pid_t {
    // SAFETY: the child calls only functions that are safe after a fork, and is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        for sequence in 0.. {
            let (header, bytes) = ledger_record(writer, sequence);
            loop {
                if let Ok(mut reservation) = channel.reserve_in(0, 24 + bytes.len()) {
                    reservation[..24].copy_from_slice(&header);
                    reservation[24..].copy_from_slice(&bytes);
                    reservation.commit();
                    break;
                }
                std::hint::spin_loop();
            }
            acknowledged.store(sequence + 1, Ordering::Release);
        }
    }
    assert!(child > 0);
    child
}

fn kill(child: libc::pid_t) {
    // SAFETY: a child of this process, which was not waited for.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    // SAFETY: the status is not asked for.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

/// A word that a child shares with this process.
fn shared_word() -> &'static AtomicU64 {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    // SAFETY: the mapping is never unmapped, aligned, and zero.
    unsafe { AtomicU64::from_ptr(memory.cast()) }
}

#[test]
fn what_a_killed_process_has_committed_is_read_by_another() {
    for round in 0..40 {
        let file = memfd();
        let mode = if round % 2 == 0 { Mode::Discard } else { Mode::Overwrite };
        let channel = Channel::create(file.as_fd(), &options(mode, 1, 6)).unwrap();
        // SAFETY: nobody truncates the file.
        let reader = unsafe { Channel::open(file.as_fd()) }.unwrap();
        let acknowledged = shared_word();
        let child = writing_child(&channel, 1, acknowledged);
        let mut ledger = Ledger::default();
        while acknowledged.load(Ordering::Acquire) < 300 * round {
            ledger.take(&reader, Writers::Running);
        }
        kill(child);
        drop(channel);
        let at_least = acknowledged.load(Ordering::Acquire);
        ledger.take(&reader, Writers::Ended);
        let read = ledger.read.get(&1).copied().unwrap_or(0);
        let last = ledger.last.get(&(0, 1)).map_or(0, |last| last + 1);
        let overwritten = reader.counts(0).unwrap().overwritten;
        // One more may be committed than the child could say.
        assert!((at_least..=at_least + 1).contains(&last), "{mode:?}: {last} of {at_least}");
        if mode == Mode::Discard {
            assert_eq!((read, overwritten), (last, 0));
        } else {
            // A page that it was overwriting is not counted; it has at most this many records.
            let uncounted = last - read - overwritten;
            assert!(uncounted <= PAGE as u64 / 32, "{read} + {overwritten} of {last}");
        }
    }
}

#[test]
fn a_killed_writer_does_not_stop_another_process() {
    let file = memfd();
    // Each of the killed ones may keep a page or two.
    let channel = Channel::create(file.as_fd(), &options(Mode::Discard, 1, 3 * PAGES)).unwrap();
    let mut ledger = Ledger::default();
    let other = shared_word();
    let survivor = writing_child(&channel, 100, other);
    for writer in 1..PAGES as u64 {
        let acknowledged = shared_word();
        let mut take_until = |word: &AtomicU64, count| {
            let begin = std::time::Instant::now();
            while word.load(Ordering::Acquire) < count {
                // The page that the buffer waits for is given up at last.
                let is_stuck = begin.elapsed() > std::time::Duration::from_millis(100);
                ledger.take(&channel, if is_stuck { Writers::Stuck } else { Writers::Running });
            }
        };
        let child = writing_child(&channel, writer, acknowledged);
        take_until(acknowledged, 50);
        kill(child);
        take_until(other, other.load(Ordering::Acquire) + 1000);
        let last = ledger.last.get(&(0, writer)).map_or(0, |last| last + 1);
        assert!(last <= acknowledged.load(Ordering::Acquire) + 1);
    }
    kill(survivor);
    ledger.take(&channel, Writers::Ended);
    let (read, written) = (ledger.read[&100], other.load(Ordering::Acquire));
    // A record in a page that was given up may have been the survivor's.
    assert!((written - ledger.unfinished..=written + 1).contains(&read), "{read} of {written}");
}

#[test]
fn a_page_that_was_given_up_is_never_used_again() {
    let channel = Channel::new(&options(Mode::Discard, 1, 1)).unwrap();
    channel.write([b"committed"]).unwrap();
    let mut late = channel.reserve(4).unwrap();
    channel.flush(0);
    assert_eq!(channel.take(0).err(), Some(TakeError::Busy));
    let page = channel.take_stuck(0).unwrap();
    assert_eq!((page.records().collect::<Vec<_>>(), page.taken().unfinished_count), (vec![&b"committed"[..]], 1));
    drop(page);
    assert_eq!(channel.write([b"more"]), Err(Lost::Full));
    // Its writer was alive after all, and does no harm.
    late.copy_from_slice(b"late");
    late.commit();
}
