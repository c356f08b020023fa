//! DPDK's virtio-user, an independent driver, with a network device of this test: split and packed queues, in order and
//! not.
//!
//! The device fills each buffer that it gets for a received packet immediately, with a numbered packet. `dpdk-testpmd`
//! sends all packets back, and the device checks them.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dormouse_testing::{Lack, has, skip};
use dormouse_vring::{Chain, Features};
use dormouse_vring_vhost::{BackEnd, BackEndOptions, Cursor, InvalidBuffer, Memory, ServedDevice};

const PROGRAM: &str = "dpdk-testpmd";
/// Time after which the test counts as hanging.
const LONG: Duration = Duration::from_secs(600);
/// Number of packets that must come back: about a hundred laps of the ring or more.
const PACKETS: u64 = 50_000;

/// `VIRTIO_NET_F_MRG_RXBUF` (5.1.3).
const MRG_RXBUF: u64 = 1 << 15;
/// Bytes of `struct virtio_net_hdr` (5.1.6), including `num_buffers`, its last two bytes.
const HEADER_BYTES: usize = 12;
const PACKET_BYTES: usize = 64;

/// A network device that sends numbered packets to itself, through the driver.
#[derive(Default)]
struct Packets {
    sent: AtomicU64,
    received: AtomicU64,
    /// Number of the last packet that came back, plus one.
    next: AtomicU64,
    wrong: AtomicU64,
}

fn packet(number: u64) -> [u8; PACKET_BYTES] {
    let mut bytes = [number as u8; PACKET_BYTES];
    // Local addresses, and an EtherType for experiments.
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xB5]);
    bytes[14..22].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl ServedDevice for Packets {
    fn features(&self) -> u64 {
        MRG_RXBUF
    }

    fn queue_count(&self) -> u16 {
        2
    }

    fn config(&self) -> Vec<u8> {
        vec![2, 0, 0, 0, 0, 1]
    }

    fn serve(&self, queue: u16, chain: &Chain, memory: &Memory, _scratch: &mut Vec<u8>) -> Result<u32, InvalidBuffer> {
        let mut header = [0; HEADER_BYTES];
        if queue == 0 {
            // The packet is in one buffer (5.1.6.4.1).
            header[10] = 1;
            let mut to = Cursor::writable(chain, memory);
            let number = self.sent.fetch_add(1, Relaxed);
            to.store(&header)?;
            to.store(&packet(number))?;
            return Ok((HEADER_BYTES + PACKET_BYTES) as u32);
        }
        let mut from = Cursor::readable(chain, memory);
        let mut bytes = [0; PACKET_BYTES];
        let is_whole = from.load(&mut header).and_then(|()| from.load(&mut bytes)).is_ok();
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[14..22]);
        let number = u64::from_le_bytes(number);
        // Packets may be dropped on the way, but not reordered or duplicated.
        let is_next = number >= self.next.swap(number.wrapping_add(1), Relaxed);
        let is_right = is_whole
            && is_next
            && chain.readable_len() == (HEADER_BYTES + PACKET_BYTES) as u64
            && bytes == packet(number);
        self.wrong.fetch_add(u64::from(!is_right), Relaxed);
        self.received.fetch_add(1, Relaxed);
        Ok(0)
    }
}

/// A DPDK process. It is killed on drop.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn dpdk_drives_our_device() {
    if !has(PROGRAM) {
        return;
    }
    if std::thread::available_parallelism().is_ok_and(|count| count.get() < 2) {
        return skip(Lack::machine(format!("{PROGRAM} needs two CPUs"), "a machine with two"));
    }
    for (packed, in_order) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("vh.sock");
        let device = Arc::new(Packets::default());
        // Without huge pages, DPDK shares memory that is not sealed.
        let options = BackEndOptions { requires_seal: false, ..BackEndOptions::default() };
        let back_end = BackEnd::start(&socket, Arc::clone(&device), options).unwrap();
        let vdev =
            format!("net_virtio_user0,path={},packed_vq={packed},in_order={in_order},queue_size=256", socket.display());
        let mut command = Command::new(PROGRAM);
        command.env("XDG_RUNTIME_DIR", dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Other tests may run DPDK at the same time, whose files have the same names.
        command.arg(format!("--file-prefix=vring-{}", std::process::id()));
        command.args(["-l", "0,1", "--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--vdev", &vdev]);
        command.args(["--", "--forward-mode=io", "--total-num-mbufs=4096", "--no-mlockall"]);
        let mut driver = Driver(command.spawn().unwrap());
        let start = Instant::now();
        while device.received.load(Relaxed) < PACKETS {
            let has_ended = driver.0.try_wait().unwrap().is_some();
            if has_ended || start.elapsed() > LONG {
                let _ = driver.0.kill();
                let (mut text, mut errors) = (String::new(), String::new());
                driver.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
                driver.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
                panic!(
                    "packed {packed}, in order {in_order}: {} packets came back of {}\n{:?} {:?}\n{text}\n{errors}",
                    device.received.load(Relaxed),
                    device.sent.load(Relaxed),
                    back_end.counters(),
                    back_end.refusal()
                );
            }
            std::thread::yield_now();
        }
        // DPDK ends when it reads a line.
        driver.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut text = String::new();
        driver.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(driver.0.wait().unwrap().success(), "{text}");
        let has = |bit: u64| u8::from(back_end.accepted() & bit != 0);
        assert_eq!((has(Features::PACKED), has(Features::IN_ORDER)), (packed, in_order));
        let counters = back_end.counters();
        assert_eq!(device.wrong.load(Relaxed), 0, "packed {packed}, in order {in_order}");
        assert_eq!((counters.violations, counters.refused), (0, 0), "{:?}", back_end.refusal());
    }
}
