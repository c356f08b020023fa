//! The command `dormouse-vring`, which `dormouse vring` runs: arguments in, text out.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use dormouse_terminal::{EXIT_CODES, Output, parse_size};
use dormouse_vring_vhost::{
    BackEnd, BackEndOptions, BenchOptions, BenchReport, Disk, DriverOptions, FileStorage, MemoryStorage, bench,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Share virtqueues with devices and drivers of other programs
#[derive(Debug, Parser)]
#[command(
    name = "dormouse-vring",
    bin_name = "dormouse vring",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(after_help = EXIT_CODES)]
struct Vring {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(Bench),
    Serve(Serve),
}

/// Drive a block device of another process, and print how fast it is
///
/// The device is one that listens on a socket for vhost-user-blk, such as qemu-storage-daemon's. Requests are random; what was
/// written is verified when it is read again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  qemu-storage-daemon --blockdev driver=null-co,node-name=d0,size=1G,read-zeroes=on \\
    --export type=vhost-user-blk,id=e0,node-name=d0,writable=on,addr.type=unix,addr.path=qsd.sock &
  dormouse vring bench --socket qsd.sock                              reads of 4 KiB, 32 at a time
  dormouse vring bench --socket qsd.sock --size 512,64K --depth 1     one at a time: how long a request takes
  dormouse vring bench --socket disk.sock --write 50                  half of them writes: the data of the device is lost")]
struct Bench {
    /// The socket that the device listens on
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Bytes of a request, such as 4K; several, separated by commas, are mixed
    #[arg(long, value_name = "SIZE[,SIZE…]", value_delimiter = ',', value_parser = parse_size, default_value = "4K")]
    size: Vec<u64>,
    /// Requests in all
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    requests: u64,
    /// Requests that each queue has in flight
    #[arg(long, value_name = "N", default_value_t = 32)]
    depth: u16,
    /// Queues, each driven by a thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    queues: u16,
    /// Entries of each queue, a power of two
    #[arg(long, value_name = "N", default_value_t = 256)]
    entries: u16,
    /// How many requests in a hundred are writes, which destroy the data of the device
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
    /// Use packed queues (VIRTIO_F_RING_PACKED) in place of split ones
    #[arg(long)]
    packed: bool,
    /// Poll for completed requests instead of sleeping until the device sends an interrupt; keeps a CPU busy for each queue
    #[arg(long)]
    poll: bool,
    /// When the device ends, wait this many seconds for it to be started again, and go on
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    reconnect: u64,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Serve a block device to other processes, over vhost-user
///
/// Serves one driver after another, such as a virtual machine of QEMU's, until it is interrupted. Then it prints how many requests it
/// served, and how often drivers violated the protocol.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse vring serve --socket disk.sock --memory 1G      a disk in memory, all zeroes at first
  dormouse vring serve --socket disk.sock --file disk.raw
  qemu-system-x86_64 … -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \\
    -chardev socket,id=c0,path=disk.sock -device vhost-user-blk-pci,chardev=c0")]
struct Serve {
    /// The socket to make and to listen on
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Keep the disk's bytes in memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size, required_unless_present = "file", conflicts_with = "file")]
    memory: Option<u64>,
    /// Keep the disk's bytes in a file that is there, or a block device of this machine
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Queues, each served by a thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    queues: u16,
    /// Do not offer event indexes (VIRTIO_F_EVENT_IDX)
    #[arg(long)]
    no_event_idx: bool,
    /// Do not offer indirect tables (VIRTIO_F_INDIRECT_DESC)
    #[arg(long)]
    no_indirect: bool,
    /// Do not offer to use buffers in order (VIRTIO_F_IN_ORDER)
    #[arg(long)]
    no_in_order: bool,
    /// Do not offer packed queues (VIRTIO_F_RING_PACKED)
    #[arg(long)]
    no_packed: bool,
    /// Accept memory that is not sealed against shrinking: a driver that shrinks it kills this command (SIGBUS)
    #[arg(long)]
    unsealed: bool,
    /// At the end, print the counts as JSON
    #[arg(long)]
    json: bool,
}

/// The report, with what follows from it.
#[derive(Debug, Serialize)]
struct ReportJson<'a> {
    iops: f64,
    mib_per_second: f64,
    #[serde(flatten)]
    report: &'a BenchReport,
}

fn main() -> ExitCode {
    dormouse_terminal::main(std::convert::identity, Vring::run)
}

impl Vring {
    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        match self.command {
            Command::Bench(bench) => bench.run(out),
            Command::Serve(serve) => serve.run(out),
        }
    }
}

impl Serve {
    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let mut options =
            BackEndOptions { has_packed: !self.no_packed, requires_seal: !self.unsealed, ..BackEndOptions::default() };
        options.features.event_idx = !self.no_event_idx;
        options.features.indirect = !self.no_indirect;
        options.features.in_order = !self.no_in_order;
        // Before there is anything to be tidied up.
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot handle signals")?;
        let name = "dormouse";
        let back_end = match &self.file {
            Some(path) => {
                let file = File::options().read(true).write(true).open(path);
                let storage =
                    file.and_then(FileStorage::new).with_context(|| format!("cannot use {}", path.display()))?;
                BackEnd::start(&self.socket, Arc::new(Disk::new(storage, name, self.queues)), options)?
            }
            None => {
                let storage = MemoryStorage::new(self.memory.unwrap_or(0));
                BackEnd::start(&self.socket, Arc::new(Disk::new(storage, name, self.queues)), options)?
            }
        };
        if !self.json {
            writeln!(out, "serving {}; Ctrl-C ends it", self.socket.display())?;
        }
        signals.forever().next();
        let (counters, refusal) = (back_end.counters(), back_end.refusal());
        drop(back_end);
        if self.json {
            out.json(&counters)?;
            return Ok(0);
        }
        writeln!(out, "drivers   {}", counters.connections)?;
        writeln!(out, "requests  {}", counters.buffers)?;
        writeln!(out, "wake-ups  {} kicks, {} interrupts", counters.kicks, counters.interrupts)?;
        if counters.violations > 0 {
            writeln!(out, "          drivers violated the protocol of VirtIO {} times", counters.violations)?;
        }
        if let Some(refusal) = refusal {
            writeln!(
                out,
                "          {} connections were ended because of invalid messages; the last one: {refusal}",
                counters.refused
            )?;
        }
        Ok(0)
    }
}

impl Bench {
    fn options(&self) -> anyhow::Result<BenchOptions> {
        let mut driver = DriverOptions {
            queue_count: self.queues,
            queue_size: self.entries,
            depth: self.depth,
            is_packed: self.packed,
            ..DriverOptions::default()
        };
        driver.features.event_idx = !self.no_event_idx;
        driver.features.indirect = !self.no_indirect;
        let sizes_bytes = self.size.iter().map(|size| u32::try_from(*size)).collect::<Result<_, _>>();
        Ok(BenchOptions {
            socket: self.socket.clone(),
            driver,
            sizes_bytes: sizes_bytes
                .map_err(|_| anyhow::anyhow!("a request has at most 4 GiB; choose a smaller --size"))?,
            requests: self.requests,
            write_percent: self.write,
            span_bytes: self.span,
            is_polling: self.poll,
            patience: Duration::from_secs(self.reconnect),
            seed: self.seed,
        })
    }

    fn run(self, out: &mut Output) -> anyhow::Result<u8> {
        let bar = ProgressBar::new(self.requests);
        bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} requests, {per_sec}, {eta} left")?);
        let result = bench(&self.options()?, &|done| bar.set_position(done));
        bar.finish_and_clear();
        let report = result?;
        if self.json {
            let mib_per_second = report.bytes_per_second() / MIB;
            out.json(&ReportJson { iops: report.iops(), mib_per_second, report: &report })?;
        } else {
            self.print(out, &report)?;
        }
        Ok(0)
    }

    fn print(&self, out: &mut Output, report: &BenchReport) -> std::io::Result<()> {
        let (device, negotiated) = (&report.device, &report.negotiated);
        let capacity = device.capacity_sectors as f64 * 512.0 / MIB;
        let plural = if report.queue_count == 1 { "" } else { "s" };
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
            report.queue_count, self.entries, report.depth
        )?;
        writeln!(
            out,
            "requests  {} in {:.3} s, {} % writes",
            report.requests,
            report.elapsed_ns as f64 / 1e9,
            self.write
        )?;
        writeln!(out, "IOPS      {:.0}", report.iops())?;
        writeln!(out, "MiB/s     {:.1}", report.bytes_per_second() / MIB)?;
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
            mib(report.read_bytes),
            mib(report.written_bytes)
        )?;
        if report.written_bytes == 0 {
            writeln!(out, "nothing was written, so nothing could be verified")?;
        } else {
            writeln!(out, "{:.1} MiB were read again and verified", mib(report.verified_bytes))?;
        }
        if report.reconnects > 0 {
            writeln!(out, "          the device was gone and came back {} times", report.reconnects)?;
        }
        if report.queues.violations > 0 {
            writeln!(out, "          the device broke the rules of VirtIO {} times", report.queues.violations)?;
        }
        Ok(())
    }
}

const MIB: f64 = (1 << 20) as f64;
