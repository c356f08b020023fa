//! Tests with `qemu-storage-daemon`, an independent implementation, as the device.

mod common;

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dormouse_testing::has;
use dormouse_vring::Features;
use dormouse_vring_vhost::{BlockDevice, DriverOptions, Error, SECTOR_BYTES, Status};
use tempfile::TempDir;

use common::{LONG, Oracle};

const PROGRAM: &str = "qemu-storage-daemon";

/// A daemon with a disk. It is killed on drop.
struct Daemon {
    dir: TempDir,
    queue_count: u16,
    child: Child,
}

impl Daemon {
    fn start(bytes: u64, queue_count: u16) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        std::fs::File::create(dir.path().join("disk.raw")).unwrap().set_len(bytes).unwrap();
        let child = Daemon::spawn(dir.path(), queue_count);
        Daemon { dir, queue_count, child }
    }

    fn spawn(dir: &Path, queue_count: u16) -> Child {
        let export = format!(
            "type=vhost-user-blk,id=e0,node-name=d0,writable=on,num-queues={queue_count},logical-block-size=512,\
             addr.type=unix,addr.path=qsd.sock"
        );
        let mut command = Command::new(PROGRAM);
        command.current_dir(dir).stdin(Stdio::null());
        command.args(["--blockdev", "driver=file,node-name=f0,filename=disk.raw,cache.direct=off"]);
        command.args(["--blockdev", "driver=raw,node-name=d0,file=f0", "--export", &export]);
        // A failing test must leave no daemon behind.
        // SAFETY: between fork and exec, the closure makes one system call that is allowed there (signal-safety(7)).
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
                    .map_err(Into::into)
            })
        };
        command.spawn().unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("qsd.sock")
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.kill();
        self.child = Daemon::spawn(self.dir.path(), self.queue_count);
    }

    /// Returns the disk's contents.
    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("disk.raw")).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const DISK_BYTES: usize = 64 << 20;
const REQUEST_SECTORS_MAX: usize = 512;

/// Returns the total amount of data to move, in MiB.
fn total_mib() -> u64 {
    std::env::var("DORMOUSE_VRING_MIB").map_or(1024, |text| text.parse().expect("DORMOUSE_VRING_MIB is a number"))
}

/// Moves 1 GiB in requests of 512 bytes to 256 KiB, over depths, event indexes and indirect tables, with one queue and
/// two.
#[test]
fn data_is_read_back_as_written() {
    if !has(PROGRAM) {
        return;
    }
    let mut cases = Vec::new();
    for depth in [1, 4, 32, 128] {
        for event_idx in [true, false] {
            cases.extend([true, false].map(|indirect| (depth, Features { event_idx, indirect, in_order: true })));
        }
    }
    let each = (total_mib() << 20) / cases.len() as u64;
    let mut daemon = Daemon::start(DISK_BYTES as u64, 2);
    let mut bytes = vec![0; DISK_BYTES];
    let mut moved = 0;
    for (index, (depth, features)) in cases.into_iter().enumerate() {
        let queue_count = 1 + index as u16 % 2;
        let options = DriverOptions {
            queue_count,
            depth,
            features,
            request_bytes_max: REQUEST_SECTORS_MAX as u32 * SECTOR_BYTES,
            // Chains of up to 18 descriptors, or one of 66 entries.
            segment_bytes_max: if index % 3 == 0 { 4 << 10 } else { 16 << 10 },
            patience: LONG,
            ..DriverOptions::default()
        };
        let mut device = BlockDevice::connect(&daemon.socket(), options).unwrap();
        let negotiated = device.negotiated();
        assert_eq!((negotiated.event_idx, negotiated.indirect), (features.event_idx, features.indirect));
        assert!(!negotiated.packed && !negotiated.in_order, "the daemon has learnt something new: test it");
        assert_eq!(device.config().capacity_sectors, (DISK_BYTES / 512) as u64);
        let part = DISK_BYTES / usize::from(queue_count);
        let oracles: Vec<Oracle> = std::thread::scope(|scope| {
            let threads: Vec<_> = device
                .queues_mut()
                .iter_mut()
                .zip(bytes.chunks(part))
                .enumerate()
                .map(|(number, (queue, bytes))| {
                    let first_sector = (number * part / 512) as u64;
                    let mut oracle = Oracle::new(first_sector, bytes.to_vec(), 100 * index as u64 + number as u64);
                    scope.spawn(move || {
                        oracle.run(queue, each / u64::from(queue_count), REQUEST_SECTORS_MAX).unwrap();
                        queue.flush(u64::MAX).unwrap();
                        queue.submit().unwrap();
                        assert!(queue.wait(LONG).unwrap());
                        assert_eq!(queue.complete().unwrap().unwrap().status, Status::Ok);
                        oracle
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        moved += oracles.iter().map(|oracle| oracle.moved).sum::<u64>();
        bytes = oracles.into_iter().map(|oracle| oracle.bytes).collect::<Vec<_>>().concat();
    }
    daemon.kill();
    assert!(moved >= total_mib() << 20, "{moved} bytes");
    assert!(daemon.bytes() == bytes, "the disk holds something else");
}

/// The daemon is killed repeatedly while it has requests, and the next daemon executes them.
#[test]
fn bench_continues_after_a_daemon_is_killed_and_restarted() {
    if !has(PROGRAM) {
        return;
    }
    let depth = 32;
    let mut daemon = Daemon::start(DISK_BYTES as u64, 1);
    let options = DriverOptions {
        depth,
        request_bytes_max: REQUEST_SECTORS_MAX as u32 * SECTOR_BYTES,
        segment_bytes_max: 16 << 10,
        patience: LONG,
        ..DriverOptions::default()
    };
    let mut device = BlockDevice::connect(&daemon.socket(), options).unwrap();
    let mut oracle = Oracle::new(0, vec![0; DISK_BYTES], 7);
    for round in 0..8 {
        oracle.run(&mut device.queues_mut()[0], 4 << 20, REQUEST_SECTORS_MAX).unwrap();
        if round % 2 == 0 {
            // A stopped daemon has received all requests, and completed none.
            daemon.signal(rustix::process::Signal::STOP);
        }
        oracle.fill(&mut device.queues_mut()[0], REQUEST_SECTORS_MAX).unwrap();
        daemon.kill();
        let queue = &mut device.queues_mut()[0];
        let gone = loop {
            oracle.complete(queue);
            match queue.wait(LONG) {
                Ok(is_done) => assert!(is_done, "its end is not noticed"),
                Err(error) => break error,
            }
        };
        assert!(matches!(gone, Error::Gone), "{gone}");
        let in_flight = oracle.in_flight.len();
        assert!(round % 2 == 1 || in_flight == usize::from(depth), "{in_flight} in flight");
        assert_eq!(device.queues_mut()[0].in_flight(), in_flight);
        // No device is there yet. The call can be repeated.
        assert!(matches!(device.reconnect(Duration::ZERO), Err(Error::Connect { .. })));
        daemon.child = Daemon::spawn(daemon.dir.path(), 1);
        assert_eq!(device.reconnect(LONG).unwrap(), in_flight);
        oracle.drain(&mut device.queues_mut()[0]).unwrap();
    }
    drop(device);
    daemon.kill();
    assert!(daemon.bytes() == oracle.bytes, "the disk holds something else");
}

/// Requests and options that the daemon does not support are refused with an error.
#[test]
fn features_that_the_daemon_lacks_are_reported() {
    if !has(PROGRAM) {
        return;
    }
    let mut daemon = Daemon::start(1 << 20, 2);
    let options = DriverOptions { patience: LONG, ..DriverOptions::default() };
    let connect = |options| BlockDevice::connect(&daemon.socket(), options).map(drop).unwrap_err().to_string();
    assert_eq!(
        connect(DriverOptions { queue_count: 3, ..options }),
        "the device has 2 queues, not 3; choose --queues 2"
    );
    assert_eq!(
        connect(DriverOptions { is_packed: true, ..options }),
        "the device does not offer packed queues; leave --packed out"
    );
    assert!(connect(DriverOptions { request_bytes_max: 100, ..options }).contains("multiple of 512"));

    let mut device = BlockDevice::connect(&daemon.socket(), DriverOptions { queue_count: 2, ..options }).unwrap();
    let queue = &mut device.queues_mut()[1];
    for (sector, bytes) in [(2048, 512), (2047, 1024), (u64::MAX, 512), (0, 0), (0, 100), (0, 1 << 20)] {
        assert!(matches!(queue.read(sector, bytes, 0), Err(Error::Request { .. })), "{sector} {bytes}");
    }
    queue.get_id(5).unwrap();
    queue.write(2047, &[1; 512], 6).unwrap();
    queue.submit().unwrap();
    let mut done = HashMap::new();
    while done.len() < 2 {
        assert!(queue.wait(LONG).unwrap());
        while let Some(completed) = queue.complete().unwrap() {
            let mut id = [0; 20];
            completed.copy_to(&mut id);
            done.insert(completed.token, (completed.status, id));
        }
    }
    assert_eq!((done[&5].0, done[&6].0), (Status::Ok, Status::Ok));
    assert_ne!(done[&5].1, [0; 20], "it has a name");
    drop(device);
    daemon.restart();
    let mut last = [0; 512];
    std::fs::File::open(daemon.dir.path().join("disk.raw")).unwrap().read_exact_at(&mut last, 2047 * 512).unwrap();
    assert_eq!(last, [1; 512]);
}
