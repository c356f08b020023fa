//! The command `dormouse-vring`, which `dormouse vring` runs.

mod bench;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use dormouse_terminal::{EXIT_CODES, Output, parse_size};
use dormouse_vring_vhost::{BackEnd, BackEndOptions, Disk, FileStorage};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Test and serve block devices over vhost-user, with Dormouse's virtqueues
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
    Bench(bench::Bench),
    Serve(Serve),
}

/// Serve a block device to other processes, over vhost-user
///
/// The command serves one driver after another, such as QEMU's virtual machines, until it is interrupted. Then it prints how many requests it
/// served, and how often drivers violated the protocol.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dormouse vring serve --socket disk.sock --memory 1G      a disk in memory, all zeroes at first
  dormouse vring serve --socket disk.sock --file disk.raw
  qemu-system-x86_64 … -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \\
    -chardev socket,id=c0,path=disk.sock -device vhost-user-blk-pci,chardev=c0")]
struct Serve {
    /// Socket to create and listen on
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Keep the disk's contents in memory, in this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size, required_unless_present = "file", conflicts_with = "file")]
    memory: Option<u64>,
    /// Keep the disk's contents in an existing file, or in a block device of this machine
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Number of queues, each served by a thread
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
    /// Accept memory that is not sealed against shrinking; a driver that shrinks it kills this command (SIGBUS)
    #[arg(long)]
    unsealed: bool,
    /// Print the counts as JSON at the end
    #[arg(long)]
    json: bool,
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
        // Installed before there is a socket that must be removed.
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot handle signals")?;
        let storage = match &self.file {
            Some(path) => {
                let file = File::options().read(true).write(true).open(path);
                file.and_then(FileStorage::new).with_context(|| format!("cannot use {}", path.display()))?
            }
            None => FileStorage::in_memory(self.memory.unwrap_or(0)).context("cannot allocate memory for the disk")?,
        };
        let disk = Arc::new(Disk::new(storage, "dormouse", self.queues));
        let back_end = BackEnd::start(&self.socket, disk, options)?;
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
            writeln!(out, "          drivers violated the VirtIO protocol {} times", counters.violations)?;
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
