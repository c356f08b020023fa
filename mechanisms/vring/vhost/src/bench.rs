//! `dormouse vring bench`: random reads and writes against a block device of another process, measured and verified.

use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use dormouse_terminal::{Output, parse_size};
use dormouse_vring_vhost::{
    BlockDevice, BlockQueue, Config, DriverOptions, Error, Negotiated, Operation, QueueCounters, Request, SECTOR_BYTES,
    Status,
};
use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// Measure a block device of another process
///
/// The device listens on a socket for vhost-user-blk, as those of qemu-storage-daemon do. Requests are random; data that
/// the command wrote is verified when it is read again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qemu-storage-daemon --blockdev driver=null-co,node-name=d0,size=1G,read-zeroes=on \\
    --export type=vhost-user-blk,id=e0,node-name=d0,writable=on,addr.type=unix,addr.path=qsd.sock &
  dormouse vring bench --socket qsd.sock                            reads of 4 KiB, 32 at a time
  dormouse vring bench --socket qsd.sock --size 512,64K --depth 1   one at a time, for their latency
  dormouse vring bench --socket disk.sock --write 50                half are writes: data is lost")]
pub(crate) struct Bench {
    /// Socket on which the device listens
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Size of a request, such as 4K; several sizes, separated by commas, are mixed
    #[arg(long, value_name = "SIZE[,SIZE…]", value_delimiter = ',', value_parser = parse_size, default_value = "4K")]
    size: Vec<u64>,
    /// Total number of requests
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    requests: u64,
    /// Number of requests that each queue has in flight
    #[arg(long, value_name = "N", default_value_t = 32)]
    depth: u16,
    /// Number of queues, each driven by a thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    queues: u16,
    /// Number of entries of each queue, a power of two
    #[arg(long, value_name = "N", default_value_t = 256)]
    entries: u16,
    /// Percentage of requests that are writes, which destroy the device's data
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=100))]
    write: u8,
    /// Use only the first SIZE bytes of the device
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    span: u64,
    /// Do not accept event indexes (VIRTIO_F_EVENT_IDX), which save kicks and interrupts
    #[arg(long)]
    no_event_idx: bool,
    /// Do not accept indirect tables (VIRTIO_F_INDIRECT_DESC), which make a request one descriptor
    #[arg(long)]
    no_indirect: bool,
    /// Use packed queues (VIRTIO_F_RING_PACKED) instead of split ones
    #[arg(long)]
    packed: bool,
    /// Poll for completed requests instead of sleeping until the device sends an interrupt; each queue keeps a CPU busy
    #[arg(long)]
    poll: bool,
    /// If the device ends, wait this many seconds for its restart, and continue
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    reconnect: u64,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Percentiles of the latency of requests, from creation to observed completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
struct Latency {
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    /// Latency of the slowest request.
    max_ns: u64,
}

/// Result of a benchmark.
#[derive(Debug, Serialize)]
struct Report {
    /// Requests per second.
    iops: f64,
    /// Data read and written, in MiB per second.
    mib_per_second: f64,
    device: Config,
    negotiated: Negotiated,
    queue_count: u16,
    /// Maximum number of requests in flight in each queue.
    depth: u16,
    /// Number of completed requests.
    requests: u64,
    /// Time from the first request to the end of the last, without the time spent waiting for a device to be restarted.
    elapsed_ns: u64,
    #[serde(flatten)]
    moved: MovedBytes,
    latency: Latency,
    queues: QueueCounters,
    /// Number of times that the device was gone and came back.
    reconnects: u32,
}

/// Amounts of data moved to and from the device.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct MovedBytes {
    read_bytes: u64,
    written_bytes: u64,
    /// Bytes read that had been written before, and were equal to the written ones.
    verified_bytes: u64,
}

/// Time after which a device that completes nothing counts as stuck.
const STUCK: Duration = Duration::from_secs(30);
/// Interval between two updates of the progress display.
const PROGRESS: Duration = Duration::from_millis(100);
/// Number of attempts to find sectors that are not in flight.
const ATTEMPTS: usize = 16;
const MIB: f64 = (1 << 20) as f64;

impl Bench {
    pub(crate) fn run(self, out: &mut Output) -> Result<u8> {
        let bar = ProgressBar::new(self.requests);
        bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} requests, {per_sec}, {eta} left")?);
        let result = self.measure(&bar);
        bar.finish_and_clear();
        let report = result?;
        if self.json {
            out.json(&report)?;
        } else {
            self.print(out, &report)?;
        }
        Ok(0)
    }

    /// Returns the options of the driver, for requests of at most `request_bytes_max` bytes.
    fn driver(&self, request_bytes_max: u32) -> DriverOptions {
        let mut driver = DriverOptions {
            queue_count: self.queues,
            queue_size: self.entries,
            depth: self.depth,
            request_bytes_max,
            is_packed: self.packed,
            ..DriverOptions::default()
        };
        driver.features.event_idx = !self.no_event_idx;
        driver.features.indirect = !self.no_indirect;
        driver
    }

    /// Connects to the device, and reads and writes at random, with a thread for each queue. Requests in flight do not
    /// overlap, so the expected data of each read is known.
    fn measure(&self, bar: &ProgressBar) -> Result<Report> {
        let largest = self.size.iter().max().context("--size names no size")?;
        let largest = u32::try_from(*largest).context("a request has at most 4 GiB; choose a smaller --size")?;
        let mut device = BlockDevice::connect(&self.socket, self.driver(largest))?;
        let config = *device.config();
        let block = config.block_bytes.max(SECTOR_BYTES);
        if let Some(size) = self.size.iter().find(|size| **size == 0 || !size.is_multiple_of(block.into())) {
            bail!("{size} bytes is not a multiple of the device's block size; choose --size {block}");
        }
        ensure!(!config.is_read_only || self.write == 0, "the device is read-only; leave --write out");
        let block_sectors = u64::from(block / SECTOR_BYTES);
        let blocks = config.capacity_sectors.min(self.span / u64::from(SECTOR_BYTES)) / block_sectors;
        let queues = u64::from(self.queues);
        let sectors = blocks / queues * block_sectors;
        ensure!(
            sectors * u64::from(SECTOR_BYTES) >= u64::from(largest),
            "requests of {largest} bytes do not fit; choose a smaller --size, or a larger --span"
        );
        let share = |index: u64| self.requests / queues + u64::from(index < self.requests % queues);
        let mut loads: Vec<Load<'_>> =
            (0..queues).map(|index| Load::new(self, block_sectors, index, sectors, share(index))).collect();
        let (done, mut elapsed, mut reconnects) = (AtomicU64::new(0), Duration::ZERO, 0);
        loop {
            let start = Instant::now();
            let result = drive(device.queues_mut(), &mut loads, &done, bar);
            elapsed += start.elapsed();
            match result {
                Ok(()) => break,
                Err(error) if is_gone(&error) && self.reconnect > 0 => {
                    device.reconnect(Duration::from_secs(self.reconnect))?;
                    reconnects += 1;
                }
                Err(error) => return Err(error),
            }
        }
        let mut queues = QueueCounters::default();
        for counters in device.queues_mut().iter().map(|queue| queue.counters()) {
            queues.requests += counters.requests;
            queues.kicks += counters.kicks;
            queues.interrupts += counters.interrupts;
            queues.violations += counters.violations;
        }
        let mut moved = MovedBytes::default();
        for load in &loads {
            moved.read_bytes += load.moved.read_bytes;
            moved.written_bytes += load.moved.written_bytes;
            moved.verified_bytes += load.moved.verified_bytes;
        }
        let (requests, elapsed_ns) = (done.load(Relaxed), elapsed.as_nanos() as u64);
        let seconds = elapsed_ns.max(1) as f64 / 1e9;
        Ok(Report {
            iops: requests as f64 / seconds,
            mib_per_second: (moved.read_bytes + moved.written_bytes) as f64 / seconds / MIB,
            device: config,
            negotiated: device.negotiated(),
            queue_count: self.queues,
            depth: self.depth,
            requests,
            elapsed_ns,
            moved,
            latency: latency(loads.into_iter().flat_map(|load| load.latencies_ns).collect()),
            queues,
            reconnects,
        })
    }

    fn print(&self, out: &mut Output, report: &Report) -> std::io::Result<()> {
        let (device, negotiated) = (&report.device, &report.negotiated);
        let capacity = device.capacity_sectors as f64 * 512.0 / MIB;
        let plural = if self.queues == 1 { "" } else { "s" };
        let layout = if negotiated.packed { "packed" } else { "split" };
        let with = [
            (negotiated.event_idx, "event indexes"),
            (negotiated.indirect, "indirect tables"),
            (negotiated.in_order, "in order"),
        ];
        let with: Vec<&str> = with.into_iter().filter_map(|(is_on, name)| is_on.then_some(name)).collect();
        let with = if with.is_empty() { "nothing else".into() } else { with.join(", ") };
        writeln!(
            out,
            "device    {}: {capacity:.1} MiB in blocks of {} bytes",
            self.socket.display(),
            device.block_bytes
        )?;
        writeln!(
            out,
            "queues    {} {layout} queue{plural} of {} entries, {} in flight; {with}",
            self.queues, self.entries, self.depth
        )?;
        writeln!(
            out,
            "requests  {} in {:.3} s, {} % writes",
            report.requests,
            report.elapsed_ns as f64 / 1e9,
            self.write
        )?;
        writeln!(out, "IOPS      {:.0}", report.iops)?;
        writeln!(out, "MiB/s     {:.1}", report.mib_per_second)?;
        let us = |ns: u64| ns as f64 / 1e3;
        let latency = &report.latency;
        writeln!(
            out,
            "latency   {:.1} µs median, 90 % {:.1}, 99 % {:.1}, 99.9 % {:.1}, longest {:.1}",
            us(latency.p50_ns),
            us(latency.p90_ns),
            us(latency.p99_ns),
            us(latency.p999_ns),
            us(latency.max_ns)
        )?;
        writeln!(out, "wake-ups  {} kicks, {} interrupts", report.queues.kicks, report.queues.interrupts)?;
        let mib = |bytes: u64| bytes as f64 / MIB;
        write!(
            out,
            "data      {:.1} MiB read, {:.1} MiB written; ",
            mib(report.moved.read_bytes),
            mib(report.moved.written_bytes)
        )?;
        if report.moved.written_bytes == 0 {
            writeln!(out, "nothing was written, so nothing could be verified")?;
        } else {
            writeln!(out, "{:.1} MiB were read again and verified", mib(report.moved.verified_bytes))?;
        }
        if report.reconnects > 0 {
            writeln!(out, "          the device ended and was restarted {} times", report.reconnects)?;
        }
        if report.queues.violations > 0 {
            writeln!(out, "          the device violated the VirtIO protocol {} times", report.queues.violations)?;
        }
        Ok(())
    }
}

fn is_gone(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Gone))
}

/// Runs each load on its queue, in a thread of its own, until it is done. All threads have ended when this returns. Of
/// several errors, one other than [`Error::Gone`] is returned first.
fn drive(queues: &mut [BlockQueue], loads: &mut [Load<'_>], done: &AtomicU64, bar: &ProgressBar) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            queues.iter_mut().zip(loads).map(|(queue, load)| scope.spawn(|| load.run(queue, done, bar))).collect();
        let results =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let (gone, others): (Vec<_>, Vec<_>) = results.filter_map(Result::err).partition(is_gone);
        others.into_iter().chain(gone).next().map_or(Ok(()), Err)
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

/// The requests of one queue, and the expected contents of its part of the device.
struct Load<'a> {
    options: &'a Bench,
    block_sectors: usize,
    first_sector: u64,
    /// Number of writes to each sector, which determines its contents. 0: the sector has its original contents.
    versions: Vec<u32>,
    is_busy: Vec<bool>,
    rng: SmallRng,
    buffer: Vec<u8>,
    left: u64,
    /// Time origin: a request's token is its creation time, in nanoseconds after it.
    begun: Instant,
    latencies_ns: Vec<u64>,
    moved: MovedBytes,
}

impl<'a> Load<'a> {
    fn new(options: &'a Bench, block_sectors: u64, index: u64, sectors: u64, requests: u64) -> Load<'a> {
        Load {
            options,
            block_sectors: block_sectors as usize,
            first_sector: index * sectors,
            versions: vec![0; sectors as usize],
            is_busy: vec![false; sectors as usize],
            rng: SmallRng::seed_from_u64(options.seed.wrapping_add(index)),
            buffer: Vec::new(),
            left: requests,
            begun: Instant::now(),
            latencies_ns: Vec::new(),
            moved: MovedBytes::default(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn run(&mut self, queue: &mut BlockQueue, done: &AtomicU64, bar: &ProgressBar) -> Result<()> {
        let mut told = Instant::now();
        let mut active = told;
        while self.left > 0 || queue.in_flight() > 0 {
            while self.left > 0 && self.add(queue)? {}
            queue.submit()?;
            let completed = self.complete(queue)?;
            done.fetch_add(completed, Relaxed);
            let now = Instant::now();
            if completed > 0 {
                active = now;
            } else if now - active > STUCK {
                let (in_flight, seconds) = (queue.in_flight(), STUCK.as_secs());
                bail!("the device has had {in_flight} requests for {seconds} s and has completed none");
            } else if !self.options.poll {
                queue.wait(STUCK)?;
            } else if queue.is_gone()? {
                return Err(Error::Gone.into());
            }
            if self.first_sector == 0 && now - told > PROGRESS {
                bar.set_position(done.load(Relaxed));
                told = now;
            }
        }
        Ok(())
    }

    /// Makes a request. False: there is no room for one.
    fn add(&mut self, queue: &mut BlockQueue) -> Result<bool> {
        if !queue.has_room() {
            return Ok(false);
        }
        let size = self.options.size[self.rng.random_range(0..self.options.size.len())];
        let count = (size / u64::from(SECTOR_BYTES)) as usize;
        let blocks = (self.versions.len() - count) / self.block_sectors;
        let rng = &mut self.rng;
        let places = std::iter::repeat_with(|| rng.random_range(0..=blocks) * self.block_sectors).take(ATTEMPTS);
        let mut places = places.map(|start| start..start + count);
        let Some(sectors) = places.find(|sectors| !self.is_busy[sectors.clone()].contains(&true)) else {
            return Ok(false);
        };
        let is_write = self.rng.random_range(0..100) < self.options.write;
        let (sector, token) = (self.first_sector + sectors.start as u64, self.now_ns());
        let added = if is_write {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.resize(size as usize, 0);
            for (index, bytes) in sectors.clone().zip(buffer.chunks_exact_mut(SECTOR_BYTES as usize)) {
                self.content(index, self.versions[index].wrapping_add(1)).write(bytes);
            }
            self.buffer = buffer;
            queue.write(sector, &self.buffer, token)
        } else {
            queue.read(sector, size as u32, token)
        };
        match added {
            Err(Error::Full) => return Ok(false),
            added => added?,
        }
        if is_write {
            // After the last version number, the contents are unknown.
            self.versions[sectors.clone()].iter_mut().for_each(|version| *version = version.wrapping_add(1));
        }
        self.is_busy[sectors].fill(true);
        self.left -= 1;
        Ok(true)
    }

    /// Checks all completed requests, and returns their number.
    fn complete(&mut self, queue: &mut BlockQueue) -> Result<u64> {
        let mut count = 0;
        while let Some(completed) = queue.complete()? {
            self.latencies_ns.push(self.now_ns() - completed.token);
            let (Request { operation, sector, len }, status) = (completed.request, completed.status);
            ensure!(
                status == Status::Ok,
                "the device failed a request at sector {sector}: {status:?}; its log may say why"
            );
            let start = (sector - self.first_sector) as usize;
            let sectors = start..start + (len / SECTOR_BYTES) as usize;
            self.is_busy[sectors.clone()].fill(false);
            if operation == Operation::Write {
                self.moved.written_bytes += u64::from(len);
            } else {
                self.moved.read_bytes += u64::from(len);
                self.buffer.resize(len as usize, 0);
                completed.copy_to(&mut self.buffer);
                self.verify(sectors)?;
            }
            count += 1;
        }
        Ok(count)
    }

    fn verify(&mut self, sectors: Range<usize>) -> Result<()> {
        for (index, bytes) in sectors.zip(self.buffer.chunks_exact(SECTOR_BYTES as usize)) {
            let version = self.versions[index];
            if version > 0 {
                let sector = self.first_sector + index as u64;
                ensure!(
                    self.content(index, version).is(bytes),
                    "sector {sector} does not contain what was written to it; check whether another program writes to the device"
                );
                self.moved.verified_bytes += u64::from(SECTOR_BYTES);
            }
        }
        Ok(())
    }

    /// Returns the contents of a sector of this part of the device after `version` writes.
    fn content(&self, index: usize, version: u32) -> Content {
        Content::new(self.options.seed, self.first_sector + index as u64, version)
    }
}

/// Contents of a sector: words that depend on seed, sector and version.
#[derive(Debug, Clone, Copy)]
struct Content(u64);

impl Content {
    /// Increment of SplitMix64 (Steele, Lea, Flood, 2014).
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

/// Computes the finalizer of SplitMix64.
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
    fn percentiles_are_values_at_their_ranks() {
        let of = |count: u64| latency((1..=count).rev().collect());
        assert_eq!(of(1000), Latency { p50_ns: 500, p90_ns: 900, p99_ns: 990, p999_ns: 999, max_ns: 1000 });
        assert_eq!(of(1), Latency { p50_ns: 1, p90_ns: 1, p99_ns: 1, p999_ns: 1, max_ns: 1 });
        assert_eq!(of(0), Latency::default());
    }

    #[test]
    fn content_depends_on_seed_sector_and_version() {
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
