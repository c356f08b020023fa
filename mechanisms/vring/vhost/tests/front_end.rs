//! Tests of the driver with faulty devices.

mod common;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use dormouse_vring::{Chain, Features};
use dormouse_vring_vhost::{
    BackEnd, BackEndOptions, BlockDevice, Cursor, Disk, DriverOptions, Error, FileStorage, InvalidBuffer, Memory,
    ServedDevice, Status, Storage,
};
use serde_json::Value;
use tempfile::TempDir;

use common::{LONG, Oracle};

const DISK_BYTES: u64 = 4 << 20;

fn directory() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vh.sock");
    (dir, socket)
}

fn serve(socket: &Path, storage: impl Storage + 'static) -> BackEnd {
    BackEnd::start(socket, Arc::new(Disk::new(storage, "", 1)), BackEndOptions::default()).unwrap()
}

/// Devices that accept the connection and send nothing, close it, or speak another protocol.
#[test]
fn a_device_that_does_not_answer_is_given_up() {
    let (_dir, socket) = directory();
    let listener = UnixListener::bind(&socket).unwrap();
    let options = DriverOptions { answer_timeout: Duration::from_millis(50), ..DriverOptions::default() };
    assert!(matches!(BlockDevice::connect(&socket, options), Err(Error::Silent)));
    drop(listener.accept().unwrap());

    let patient = DriverOptions { answer_timeout: LONG, ..options };
    let answer = |bytes: Vec<u8>| {
        std::thread::scope(|scope| {
            let listener = &listener;
            scope.spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                // SET_OWNER and GET_FEATURES consist of their headers.
                stream.read_exact(&mut [0; 24]).unwrap();
                stream.write_all(&bytes).unwrap();
            });
            BlockDevice::connect(&socket, patient).map(drop).unwrap_err()
        })
    };
    let error = answer(vec![]);
    assert!(matches!(error, Error::Gone | Error::Protocol { .. }), "{error}");
    let error = answer(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    // A valid answer to another request: 8 bytes, for GET_QUEUE_NUM.
    let error = answer([17_u32, 5, 8, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect());
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    // No features at all: a device from before 2016.
    let error = answer([1_u32, 5, 8, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect());
    assert!(matches!(error, Error::NotOffered { .. }), "{error}");
}

/// A device that came back with other properties gets no requests. They wait for the right one.
#[test]
fn a_changed_device_gets_no_requests() {
    let (_dir, socket) = directory();
    let disk = Arc::new(Disk::new(FileStorage::in_memory(DISK_BYTES).unwrap(), "", 1));
    let start = |options| BackEnd::start(&socket, Arc::clone(&disk), options).unwrap();
    let back_end = start(BackEndOptions::default());
    let mut driver = BlockDevice::connect(&socket, DriverOptions { depth: 4, ..DriverOptions::default() }).unwrap();
    let mut oracle = Oracle::new(0, vec![0; DISK_BYTES as usize], 1);
    oracle.run(&mut driver.queues_mut()[0], 1 << 20, 16).unwrap();
    drop(back_end);
    // These requests are made while no device is there.
    oracle.fill(&mut driver.queues_mut()[0], 16).unwrap();

    let smaller = serve(&socket, FileStorage::in_memory(DISK_BYTES / 2).unwrap());
    assert!(matches!(driver.reconnect(LONG), Err(Error::Changed(_))));
    drop(smaller);
    let with_less = start(BackEndOptions { features: Features::default(), ..BackEndOptions::default() });
    assert!(matches!(driver.reconnect(LONG), Err(Error::Changed(_))));
    drop(with_less);
    assert_eq!(driver.queues_mut()[0].in_flight(), 4);
    let _back_end = start(BackEndOptions::default());
    assert_eq!(driver.reconnect(LONG).unwrap(), 4);
    oracle.drain(&mut driver.queues_mut()[0]).unwrap();
    oracle.run(&mut driver.queues_mut()[0], 1 << 20, 16).unwrap();
    let mut bytes = vec![0; DISK_BYTES as usize];
    disk.storage().read(0, &mut bytes).unwrap();
    assert!(bytes == oracle.bytes);
}

/// Fault of a disk, which begins after a given number of reads (for [`Fault::Loses`], writes).
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// Reads fail.
    Fails,
    /// Reads return one wrong bit.
    Flips,
    /// Later writes are lost.
    Loses,
}

struct Faulty {
    storage: FileStorage,
    fault: Fault,
    left: AtomicU64,
}

impl Faulty {
    fn new(fault: Fault, after: u64) -> Faulty {
        Faulty { storage: FileStorage::in_memory(DISK_BYTES).unwrap(), fault, left: AtomicU64::new(after) }
    }

    fn is_due(&self) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

impl Storage for Faulty {
    fn len_bytes(&self) -> u64 {
        self.storage.len_bytes()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.storage.read(offset, to)?;
        match self.fault {
            Fault::Fails if self.is_due() => return Err(io::Error::other("worn out")),
            Fault::Flips if self.is_due() => to[to.len() / 2] ^= 1,
            _ => {}
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        if matches!(self.fault, Fault::Loses) && self.is_due() { Ok(()) } else { self.storage.write(offset, from) }
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The verification of `bench` can fail.
#[test]
fn bench_reports_a_failing_disk() {
    let run = |fault, after| {
        let (_dir, socket) = directory();
        let _back_end = serve(&socket, Faulty::new(fault, after));
        let mut bench = Command::new(env!("CARGO_BIN_EXE_dormouse-vring"));
        bench.args(["bench", "--json", "--size", "512,4K", "--requests", "20000", "--write", "50", "--span", "1M"]);
        let output = bench.args(["--depth", "4", "--seed", "3", "--socket"]).arg(socket).output().unwrap();
        match output.status.code() {
            Some(0) => Ok(serde_json::from_slice::<Value>(&output.stdout).unwrap()),
            Some(2) => Err(String::from_utf8(output.stderr).unwrap()),
            _ => panic!("{output:?}"),
        }
    };
    let report = run(Fault::Fails, u64::MAX).unwrap();
    assert_eq!((&report["requests"], &report["queues"]["violations"]), (&20_000.into(), &0.into()));
    let bytes = |name: &str| report[name].as_u64().unwrap();
    assert!(bytes("verified_bytes") > bytes("read_bytes") / 2, "{report:#}");
    let error = |fault| run(fault, 3000).unwrap_err();
    let found = error(Fault::Fails);
    assert!(found.contains("the device failed a request at sector") && found.contains("IoError"), "{found}");
    for fault in [Fault::Flips, Fault::Loses] {
        let found = error(fault);
        assert!(found.contains("does not contain what was written to it"), "{found}");
    }
}

/// A device that writes wrong statuses and lengths.
struct Rude(FileStorage);

impl ServedDevice for Rude {
    fn features(&self) -> u64 {
        0
    }

    fn queue_count(&self) -> u16 {
        1
    }

    fn config(&self) -> Vec<u8> {
        (self.0.len_bytes() / 512).to_le_bytes().to_vec()
    }

    /// Depending on the sector, returns a request untouched, writes a status that does not exist, or reports a length
    /// beyond the end.
    fn serve(&self, _queue: u16, chain: &Chain, memory: &Memory, _scratch: &mut Vec<u8>) -> Result<u32, InvalidBuffer> {
        let mut header = [0; 16];
        Cursor::readable(chain, memory).load(&mut header)?;
        let len = chain.writable_len() - 1;
        let mut status = Cursor::writable(chain, memory);
        status.skip(len);
        let (code, said) = match header[8] {
            0 => return Ok(0),
            1 => (77, len + 1),
            2 => (0, len + 1000),
            _ => (0, len + 1),
        };
        status.store(&[code])?;
        Ok(said as u32)
    }
}

#[test]
fn protocol_violations_of_a_device_are_counted() {
    for is_packed in [false, true] {
        let (_dir, socket) = directory();
        let device = Arc::new(Rude(FileStorage::in_memory(DISK_BYTES).unwrap()));
        let _back_end = BackEnd::start(&socket, device, BackEndOptions::default()).unwrap();
        let options = DriverOptions { is_packed, ..DriverOptions::default() };
        let mut driver = BlockDevice::connect(&socket, options).unwrap();
        let queue = &mut driver.queues_mut()[0];
        for (sector, status, violations) in [
            (3, Status::Ok, 0),
            (0, Status::Invalid(0xFF), 1),
            (1, Status::Invalid(77), 2),
            (2, Status::Ok, 3),
            (3, Status::Ok, 3),
        ] {
            queue.read(sector, 512, sector).unwrap();
            queue.submit().unwrap();
            assert!(queue.wait(LONG).unwrap());
            let completed = queue.complete().unwrap().unwrap();
            assert_eq!((completed.token, completed.status), (sector, status));
            assert_eq!(queue.counters().violations, violations, "sector {sector}, packed {is_packed}");
        }
    }
}
