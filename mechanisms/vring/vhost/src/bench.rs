//! Random reads and writes against a block device, measured and verified.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use crate::blk::{Config, Operation, SECTOR_BYTES, Status};
use crate::device::{BlockDevice, BlockQueue, DriverOptions, Negotiated, QueueCounters};
use crate::error::Error;

/// What to ask a device for.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The socket that the device listens on.
    pub socket: PathBuf,
    /// How it is driven; `request_bytes_max` is set to the largest of `sizes_bytes`.
    pub driver: DriverOptions,
    /// Bytes of requests, multiples of 512; each request is of one of them, drawn evenly.
    pub sizes_bytes: Vec<u32>,
    /// Requests in all.
    pub requests: u64,
    /// How many in a hundred are writes. They destroy the contents of the device.
    pub write_percent: u8,
    /// Requests are for this many bytes at the beginning of the device.
    pub span_bytes: u64,
    /// Poll for completions, rather than sleep until the device wakes us.
    pub is_polling: bool,
    /// When the device ends: how long to wait for it to be started again.
    pub patience: Duration,
    /// What random numbers are drawn from.
    pub seed: u64,
}

/// How long requests took, from when they were made until they were found done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[expect(missing_docs, reason = "percentiles, in ns")]
pub struct Latency {
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchReport {
    /// The device's configuration.
    pub device: Config,
    /// What was negotiated.
    pub negotiated: Negotiated,
    /// Queues that were used.
    pub queue_count: u16,
    /// Requests in flight in each, at most.
    pub depth: u16,
    /// Requests that were done.
    pub requests: u64,
    /// From the first request to the end of the last, without waiting for a device to be started again.
    pub elapsed_ns: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Of those that were read: bytes that had been written before, and were what was written.
    pub verified_bytes: u64,
    /// How long requests took.
    pub latency: Latency,
    /// What the queues did.
    pub queues: QueueCounters,
    /// Times that the device was gone and came back.
    pub reconnects: u32,
}

impl BenchReport {
    /// Requests in a second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / (self.elapsed_ns.max(1) as f64 / 1e9)
    }

    /// Bytes in a second, either way.
    pub fn bytes_per_second(&self) -> f64 {
        (self.read_bytes + self.written_bytes) as f64 / (self.elapsed_ns.max(1) as f64 / 1e9)
    }
}

/// How long a device may do nothing at all.
const STUCK: Duration = Duration::from_secs(30);
/// Between two calls of `progress`.
const PROGRESS: Duration = Duration::from_millis(100);
/// Attempts to find sectors that are not in flight.
const ATTEMPTS: u32 = 16;

/// Connects to a device, and reads and writes at random, with a thread for each queue. `progress` gets how many requests are
/// done, several times a second.
///
/// Requests in flight do not overlap, so that it is known what each read must find.
///
/// # Errors
/// As [`BlockDevice::connect`]; [`Error::Failed`], [`Error::Mismatch`], [`Error::Stuck`], [`Error::Options`], and [`Error::Gone`] when the
/// device ends and nobody starts it again in time.
pub fn bench(options: &BenchOptions, progress: &(dyn Fn(u64) + Sync)) -> Result<BenchReport, Error> {
    let wrong = |text: String| Err(Error::Options(text));
    let Some(largest) = options.sizes_bytes.iter().copied().max() else { return wrong("no sizes".into()) };
    if options.write_percent > 100 {
        return wrong("of a hundred requests at most 100 are writes".into());
    }
    let driver = DriverOptions { request_bytes_max: largest, ..options.driver };
    let mut device = BlockDevice::connect(&options.socket, driver)?;
    let config = *device.config();
    let block = config.block_bytes.max(SECTOR_BYTES);
    if let Some(size) = options.sizes_bytes.iter().find(|size| **size == 0 || !size.is_multiple_of(block)) {
        return wrong(format!(
            "requests of {size} bytes are no multiples of the device's blocks; choose --size {block}"
        ));
    }
    if config.is_read_only && options.write_percent > 0 {
        return wrong("the device cannot be written; leave --write out".into());
    }
    let queue_count = driver.queue_count;
    let blocks =
        config.capacity_sectors.min(options.span_bytes / u64::from(SECTOR_BYTES)) / u64::from(block / SECTOR_BYTES);
    let sectors = blocks / u64::from(queue_count) * u64::from(block / SECTOR_BYTES);
    if sectors * u64::from(SECTOR_BYTES) < u64::from(largest) {
        return wrong(format!(
            "there is no room for requests of {largest} bytes; choose a smaller --size, or a larger --span"
        ));
    }
    let done = AtomicU64::new(0);
    let mut loads: Vec<Load<'_>> = (0..queue_count)
        .map(|index| {
            let share = options.requests / u64::from(queue_count);
            let more = u64::from(u64::from(index) < options.requests % u64::from(queue_count));
            Load::new(options, block, u64::from(index), sectors, share + more)
        })
        .collect();
    let mut elapsed = Duration::ZERO;
    let mut reconnects = 0;
    loop {
        let start = Instant::now();
        let result = std::thread::scope(|scope| {
            let threads: Vec<_> = device
                .queues_mut()
                .iter_mut()
                .zip(&mut loads)
                .map(|(queue, load)| scope.spawn(|| load.run(queue, &done, progress)))
                .collect();
            let results = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            // All threads have ended before an error is reported. An error that says more than that the device is gone comes first.
            let (gone, others): (Vec<_>, Vec<_>) =
                results.filter_map(Result::err).partition(|error| matches!(error, Error::Gone));
            others.into_iter().chain(gone).next()
        });
        elapsed += start.elapsed();
        match result {
            None => break,
            Some(Error::Gone) if options.patience > Duration::ZERO => {
                device.reconnect(options.patience)?;
                reconnects += 1;
            }
            Some(error) => return Err(error),
        }
    }
    progress(done.load(Relaxed));
    let negotiated = device.negotiated();
    let counters = device.queues_mut().iter().map(|queue| queue.counters());
    let queues = counters.fold(QueueCounters::default(), |sum, queue| QueueCounters {
        requests: sum.requests + queue.requests,
        kicks: sum.kicks + queue.kicks,
        interrupts: sum.interrupts + queue.interrupts,
        violations: sum.violations + queue.violations,
    });
    let sum = |of: fn(&Load<'_>) -> u64| loads.iter().map(of).sum();
    let (read_bytes, written_bytes, verified_bytes) =
        (sum(|load| load.read_bytes), sum(|load| load.written_bytes), sum(|load| load.verified_bytes));
    Ok(BenchReport {
        device: config,
        negotiated,
        queue_count,
        depth: driver.depth,
        requests: done.load(Relaxed),
        elapsed_ns: elapsed.as_nanos() as u64,
        read_bytes,
        written_bytes,
        verified_bytes,
        latency: latency(loads.into_iter().map(|load| load.latencies_ns).collect::<Vec<_>>().concat()),
        queues,
        reconnects,
    })
}

fn latency(mut sorted_ns: Vec<u64>) -> Latency {
    sorted_ns.sort_unstable();
    let at = |per_mille: usize| {
        let rank = (sorted_ns.len() * per_mille).div_ceil(1000).max(1) - 1;
        sorted_ns.get(rank).copied().unwrap_or(0)
    };
    Latency { p50_ns: at(500), p90_ns: at(900), p99_ns: at(990), p999_ns: at(999), max_ns: at(1000) }
}

/// What one queue is to do, and what its part of the device holds.
struct Load<'a> {
    options: &'a BenchOptions,
    block_sectors: usize,
    first_sector: u64,
    /// How often each sector was written: what it holds follows from that. 0: it holds what it held before.
    versions: Vec<u32>,
    is_busy: Vec<bool>,
    in_flight: Vec<Option<(Instant, Operation, Range<usize>)>>,
    free: Vec<usize>,
    rng: SmallRng,
    buffer: Vec<u8>,
    left: u64,
    latencies_ns: Vec<u64>,
    read_bytes: u64,
    written_bytes: u64,
    verified_bytes: u64,
}

impl<'a> Load<'a> {
    fn new(options: &'a BenchOptions, block_bytes: u32, index: u64, sectors: u64, requests: u64) -> Load<'a> {
        let depth = usize::from(options.driver.depth);
        Load {
            options,
            block_sectors: (block_bytes / SECTOR_BYTES) as usize,
            first_sector: index * sectors,
            versions: vec![0; sectors as usize],
            is_busy: vec![false; sectors as usize],
            in_flight: vec![None; depth],
            free: (0..depth).rev().collect(),
            rng: SmallRng::seed_from_u64(options.seed.wrapping_add(index)),
            buffer: Vec::new(),
            left: requests,
            latencies_ns: Vec::new(),
            read_bytes: 0,
            written_bytes: 0,
            verified_bytes: 0,
        }
    }

    fn run(&mut self, queue: &mut BlockQueue, done: &AtomicU64, progress: &(dyn Fn(u64) + Sync)) -> Result<(), Error> {
        let mut told = Instant::now();
        let mut active = told;
        while self.left > 0 || self.free.len() < self.in_flight.len() {
            while self.left > 0 && self.add(queue)? {}
            queue.submit()?;
            let completed = self.complete(queue)?;
            done.fetch_add(completed, Relaxed);
            let now = Instant::now();
            if completed > 0 {
                active = now;
            } else if now - active > STUCK {
                return Err(Error::Stuck { in_flight: queue.in_flight(), seconds: STUCK.as_secs() });
            } else if !self.options.is_polling {
                queue.wait(STUCK)?;
            } else if queue.is_gone()? {
                return Err(Error::Gone);
            }
            if self.first_sector == 0 && now - told > PROGRESS {
                progress(done.load(Relaxed));
                told = now;
            }
        }
        Ok(())
    }

    /// Makes a request; false: there is no room for one.
    fn add(&mut self, queue: &mut BlockQueue) -> Result<bool, Error> {
        let Some(&token) = self.free.last() else { return Ok(false) };
        let size = self.options.sizes_bytes[self.rng.random_range(0..self.options.sizes_bytes.len())];
        let count = (size / SECTOR_BYTES) as usize;
        let blocks = (self.versions.len() - count) / self.block_sectors;
        let rng = &mut self.rng;
        let places =
            std::iter::repeat_with(|| rng.random_range(0..=blocks) * self.block_sectors).take(ATTEMPTS as usize);
        let mut places = places.map(|start| start..start + count);
        let Some(sectors) = places.find(|sectors| !self.is_busy[sectors.clone()].contains(&true)) else {
            return Ok(false);
        };
        let is_write = self.rng.random_range(0..100) < self.options.write_percent;
        let sector = self.first_sector + sectors.start as u64;
        let added = if is_write {
            self.buffer.resize(size as usize, 0);
            for (index, bytes) in sectors.clone().zip(self.buffer.chunks_exact_mut(SECTOR_BYTES as usize)) {
                let content = Content::new(
                    self.options.seed,
                    self.first_sector + index as u64,
                    self.versions[index].wrapping_add(1),
                );
                content.write(bytes);
            }
            queue.write(sector, &self.buffer, token as u64)
        } else {
            queue.read(sector, size, token as u64)
        };
        match added {
            Err(Error::Full) => return Ok(false),
            added => added?,
        }
        if is_write {
            // After the last version number it holds something unknown.
            self.versions[sectors.clone()].iter_mut().for_each(|version| *version = version.wrapping_add(1));
        }
        self.is_busy[sectors.clone()].fill(true);
        let operation = if is_write { Operation::Write } else { Operation::Read };
        self.in_flight[token] = Some((Instant::now(), operation, sectors));
        self.free.pop();
        self.left -= 1;
        Ok(true)
    }

    /// Checks all that is done, and tells how many requests that were.
    fn complete(&mut self, queue: &mut BlockQueue) -> Result<u64, Error> {
        let mut count = 0;
        while let Some(completed) = queue.complete()? {
            let now = Instant::now();
            let token = completed.token as usize;
            let Some((start, operation, sectors)) = self.in_flight[token].take() else { continue };
            self.free.push(token);
            self.is_busy[sectors.clone()].fill(false);
            if completed.status != Status::Ok {
                return Err(Error::Failed { sector: completed.request.sector, status: completed.status });
            }
            let bytes = u64::from(completed.request.len);
            if operation == Operation::Write {
                self.written_bytes += bytes;
            } else {
                self.read_bytes += bytes;
                self.buffer.resize(bytes as usize, 0);
                completed.copy_to(&mut self.buffer);
                self.verify(sectors)?;
            }
            self.latencies_ns.push((now - start).as_nanos() as u64);
            count += 1;
        }
        Ok(count)
    }

    fn verify(&mut self, sectors: Range<usize>) -> Result<(), Error> {
        for (index, bytes) in sectors.zip(self.buffer.chunks_exact(SECTOR_BYTES as usize)) {
            let (version, sector) = (self.versions[index], self.first_sector + index as u64);
            if version > 0 {
                if !Content::new(self.options.seed, sector, version).is(bytes) {
                    return Err(Error::Mismatch { sector });
                }
                self.verified_bytes += u64::from(SECTOR_BYTES);
            }
        }
        Ok(())
    }
}

/// What is written to a sector: words that tell seed, sector and version apart.
#[derive(Debug, Clone, Copy)]
struct Content(u64);

impl Content {
    /// What SplitMix64 steps by (Steele, Lea, Flood, 2014).
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

    fn new(seed: u64, sector: u64, version: u32) -> Content {
        Content(mix(mix(mix(seed).wrapping_add(sector)).wrapping_add(version.into())))
    }

    fn word(self, index: usize) -> [u8; 8] {
        self.0.wrapping_add(Content::STEP.wrapping_mul(index as u64)).to_ne_bytes()
    }

    fn write(self, bytes: &mut [u8]) {
        for (index, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = self.word(index);
        }
    }

    fn is(self, bytes: &[u8]) -> bool {
        bytes.as_chunks::<8>().0.iter().enumerate().all(|(index, word)| *word == self.word(index))
    }
}

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let of = |count: u64| latency((1..=count).rev().collect());
        assert_eq!(of(1000), Latency { p50_ns: 500, p90_ns: 900, p99_ns: 990, p999_ns: 999, max_ns: 1000 });
        assert_eq!(of(1), Latency { p50_ns: 1, p90_ns: 1, p99_ns: 1, p999_ns: 1, max_ns: 1 });
        assert_eq!(of(0), Latency::default());
    }

    #[test]
    fn content_tells_seed_sector_and_version_apart() {
        let mut seen = HashSet::new();
        let mut bytes = [0; 512];
        for (seed, sector, version) in (0..4).flat_map(|a| (0..16).flat_map(move |b| (1..5).map(move |c| (a, b, c)))) {
            let content = Content::new(seed, sector, version);
            content.write(&mut bytes);
            assert!(content.is(&bytes));
            assert!(seen.insert(bytes));
            bytes[511] ^= 1;
            assert!(!content.is(&bytes));
        }
    }
}
