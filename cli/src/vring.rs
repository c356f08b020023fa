//! `dormouse vring`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use dormouse_consumer::parse_size;
use dormouse_vring_vhost::{BenchOptions, BenchReport, DriverOptions, bench};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Virtqueues, shared with devices of other programs
#[derive(Debug, Args)]
pub(crate) struct Vring {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(Bench),
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
  dormouse vring bench --socket disk.sock --write 50                  half of them writes: what the device holds is lost")]
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
    /// How many requests in a hundred are writes, which destroy what the device holds
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=100))]
    write: u8,
    /// Use only so much of the device, from its beginning on
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    span: u64,
    /// Do not accept event indexes (VIRTIO_F_EVENT_IDX), which spare kicks and interrupts
    #[arg(long)]
    no_event_idx: bool,
    /// Do not accept indirect tables (VIRTIO_F_INDIRECT_DESC), which make a request one descriptor
    #[arg(long)]
    no_indirect: bool,
    /// Use packed queues (VIRTIO_F_RING_PACKED) in place of split ones
    #[arg(long)]
    packed: bool,
    /// Look for what is done all the time, rather than sleep until the device says so; takes a processor for each queue
    #[arg(long)]
    poll: bool,
    /// When the device ends, wait so many seconds for it to be started again, and go on
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    reconnect: u64,
    /// What random numbers are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
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

impl Vring {
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        match self.command {
            Command::Bench(bench) => bench.run(),
        }
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

    fn run(self) -> anyhow::Result<u8> {
        let bar = ProgressBar::new(self.requests);
        bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len} requests, {per_sec}, {eta} left")?);
        let result = bench(&self.options()?, &|done| bar.set_position(done));
        bar.finish_and_clear();
        let report = result?;
        if self.json {
            let mib_per_second = report.bytes_per_second() / MIB;
            println!(
                "{}",
                serde_json::to_string_pretty(&ReportJson { iops: report.iops(), mib_per_second, report: &report })?
            );
        } else {
            self.print(&report);
        }
        Ok(0)
    }

    fn print(&self, report: &BenchReport) {
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
        println!("device    {}: {capacity:.1} MiB in blocks of {} bytes", self.socket.display(), device.block_bytes);
        println!(
            "queues    {} {layout} queue{plural} of {} entries, {} in flight; {with}",
            report.queue_count, self.entries, report.depth
        );
        println!("requests  {} in {:.3} s, {} % writes", report.requests, report.elapsed_ns as f64 / 1e9, self.write);
        println!("IOPS      {:.0}", report.iops());
        println!("MiB/s     {:.1}", report.bytes_per_second() / MIB);
        let us = |ns: u64| ns as f64 / 1e3;
        let latency = &report.latency;
        println!(
            "latency   {:.1} µs median, 90 % {:.1}, 99 % {:.1}, 99.9 % {:.1}, longest {:.1}",
            us(latency.p50_ns),
            us(latency.p90_ns),
            us(latency.p99_ns),
            us(latency.p999_ns),
            us(latency.max_ns)
        );
        println!("wake-ups  {} kicks, {} interrupts", report.queues.kicks, report.queues.interrupts);
        let mib = |bytes: u64| bytes as f64 / MIB;
        print!("data      {:.1} MiB read, {:.1} MiB written; ", mib(report.read_bytes), mib(report.written_bytes));
        if report.written_bytes == 0 {
            println!("nothing was written, so nothing could be verified");
        } else {
            println!("{:.1} MiB were read again and verified", mib(report.verified_bytes));
        }
        if report.reconnects > 0 {
            println!("          the device was gone and came back {} times", report.reconnects);
        }
        if report.queues.lies > 0 {
            println!("          the device broke the rules of VirtIO {} times", report.queues.lies);
        }
    }
}

const MIB: f64 = (1 << 20) as f64;
