//! Records written to a channel: reserved in the buffer of this CPU, written and committed. It overwrites, so that pages are
//! switched, cleared and searched for unfinished records as in a flight recorder.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use dormouse_lab_harness::opaque;
use dormouse_relay_channel::{Channel, Mode, Options, Reservation};

use super::{Shape, Sink, of_unknown_length};

static WRITTEN: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// A channel with eight pages of 64 KiB for each CPU, all of which were written to.
fn channel() -> &'static Channel {
    static CHANNEL: OnceLock<Channel> = OnceLock::new();
    CHANNEL.get_or_init(|| {
        let channel = Channel::new(&Options::new(Mode::Overwrite)).expect("memory for the channel");
        let bytes = vec![1; channel.record_size_max_bytes()];
        (0..8 * channel.buffer_count()).for_each(|_| {
            let mut record = channel.reserve(bytes.len()).expect("a page");
            record.copy_from_slice(&bytes);
            record.commit();
        });
        drain(&channel);
        channel
    })
}

/// Takes all pages, and returns their records in order, for each buffer.
fn drain(channel: &Channel) -> Vec<Vec<Vec<u8>>> {
    let buffer = |buffer| {
        channel.flush(buffer);
        let pages = std::iter::from_fn(|| channel.take(buffer).ok());
        pages.flat_map(|page| page.records().map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
    };
    (0..channel.buffer_count()).map(buffer).collect()
}

/// A record that is written where it was reserved.
struct Reserved<'r, 'c> {
    reservation: &'r mut Reservation<'c>,
    at: usize,
}

impl Sink for Reserved<'_, '_> {
    #[inline(always)]
    fn value<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes(&bytes);
    }

    #[inline(always)]
    fn bytes(&mut self, bytes: &[u8]) {
        self.reservation[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn align(&mut self) {
        self.at = self.at.next_multiple_of(8);
    }
}

/// A record of one field, written by a call; or not at all.
struct Called<'c> {
    channel: Option<&'c Channel>,
    refused: u64,
}

#[inline(never)]
fn called(channel: &Channel, bytes: &[u8]) -> bool {
    channel.write([of_unknown_length(bytes)]).is_err()
}

impl Sink for Called<'_> {
    #[inline(always)]
    fn value<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes(&bytes);
    }

    #[inline(always)]
    fn bytes(&mut self, bytes: &[u8]) {
        match self.channel {
            Some(channel) => self.refused += u64::from(called(channel, bytes)),
            None => drop(opaque(bytes.len() as u64)),
        }
    }

    fn align(&mut self) {}
}

pub extern "C" fn run_empty<S: Shape>(iterations: u64, first: u64) {
    let mut sink = Called { channel: None, refused: 0 };
    dormouse_lab_harness::align();
    for number in first..first.wrapping_add(iterations) {
        S::write(&mut sink, opaque(number));
    }
}

pub extern "C" fn run_called<S: Shape>(iterations: u64, first: u64) {
    let mut sink = Called { channel: Some(channel()), refused: 0 };
    dormouse_lab_harness::align();
    for number in first..first.wrapping_add(iterations) {
        S::write(&mut sink, opaque(number));
    }
    WRITTEN.fetch_add(iterations, Ordering::Relaxed);
    REFUSED.fetch_add(sink.refused, Ordering::Relaxed);
}

pub extern "C" fn run_inlined<S: Shape>(iterations: u64, first: u64) {
    let (channel, mut refused) = (channel(), 0);
    dormouse_lab_harness::align();
    for number in first..first.wrapping_add(iterations) {
        match channel.reserve(S::LEN_MAX) {
            Ok(mut reservation) => {
                S::write(&mut Reserved { reservation: &mut reservation, at: 0 }, opaque(number));
                reservation.commit();
            }
            Err(_) => refused += 1,
        }
    }
    WRITTEN.fetch_add(iterations, Ordering::Relaxed);
    REFUSED.fetch_add(refused, Ordering::Relaxed);
}

/// Returns the number of records that were written.
pub fn written() -> u64 {
    WRITTEN.load(Ordering::Relaxed)
}

/// A record as it is expected.
struct Expected(Vec<u8>);

impl Sink for Expected {
    fn value<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes(&bytes);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn align(&mut self) {}
}

/// Runs a case for more than all pages, and compares what is left with what was written last.
pub fn check<S: Shape>(name: &str, run: extern "C" fn(u64, u64)) -> Result<(), String> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let channel = channel();
    drain(channel);
    let overwritten = || -> u64 {
        let counts = (0..channel.buffer_count()).filter_map(|buffer| channel.counts(buffer));
        counts.map(|counts| counts.overwritten).sum()
    };
    let before = overwritten();
    let (iterations, first) = (100_000, 12_345);
    run(iterations, first);
    WRITTEN.fetch_sub(iterations, Ordering::Relaxed);
    let found = drain(channel);
    let left: usize = found.iter().map(Vec::len).sum();
    if overwritten() - before + left as u64 != iterations || REFUSED.load(Ordering::Relaxed) != 0 {
        return Err(format!("{name}: {left} of {iterations} records are left, and others are not counted"));
    }
    // The thread may have changed its CPU: the numbers of each buffer are in order, and each record is one of those written.
    let mut expected: Vec<Vec<u8>> = (first..first + iterations)
        .map(|number| {
            let mut record = Expected(Vec::new());
            S::write(&mut record, number);
            record.0
        })
        .collect();
    expected.sort_unstable();
    let is_wrong = |record: &&Vec<u8>| expected.binary_search(record).is_err();
    match found.iter().flatten().find(is_wrong) {
        None => Ok(()),
        Some(record) => Err(format!("{name}: nobody wrote the record {record:?}")),
    }
}
