//! The network device with drivers of other people: DPDK's virtio-user, and a Linux guest's virtio_net.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use dormouse_testing::guest::{self, Guest, VIRTIO_PCI};
use dormouse_testing::{Lack, has, skip};
use dormouse_vring_vhost::{BackEnd, BackEndOptions, FRAME_BYTES_MAX, Network, NetworkCounters};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Addresses of the Ethernet header: the device's, and the test's.
const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
/// Number of frames that are on the way at the same time. The link has room for them.
const WINDOW: u64 = 64;

/// Returns the two ends of a link on which each read and each write has one frame.
fn link() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// Returns the next frame from the link. `state` describes the device, if none comes.
#[track_caller]
fn read_frame(link: &OwnedFd, state: &dyn Fn() -> String) -> Vec<u8> {
    let mut fds = [PollFd::new(link, PollFlags::IN)];
    let long = Timespec { tv_sec: 300, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&long)), Ok(1), "no frame comes: {}", state());
    let mut frame = vec![0; 2 * FRAME_BYTES_MAX];
    let len = rustix::io::read(link, &mut frame[..]).unwrap();
    frame.truncate(len);
    frame
}

/// Sends a probe now and then until one comes back. Returns how many were sent, and how many came back. A driver may drop
/// what arrives while it starts: DPDK's empties its queue once its buffers are there.
fn probe(link: &OwnedFd, probe: impl Fn(u64) -> Vec<u8>, state: &dyn Fn() -> String) -> [u64; 2] {
    let pause = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    for sent in 1..1_500 {
        rustix::io::write(link, &probe(sent)).unwrap();
        if poll(&mut [PollFd::new(link, PollFlags::IN)], Some(&pause)) == Ok(1) {
            // What follows the first that came back comes back too.
            let answered = (1..).find(|_| read_frame(link, state) == probe(sent));
            return [sent, answered.unwrap_or_default()];
        }
    }
    panic!("no probe comes back: {}", state());
}

/// Sends `count` frames, and checks that each is answered once. `number_of` checks an answer, and returns the frame's number.
fn exchange(
    link: &OwnedFd,
    count: u64,
    frame: impl Fn(u64) -> Vec<u8>,
    mut number_of: impl FnMut(&[u8]) -> u64,
    state: &dyn Fn() -> String,
) {
    let mut is_answered = vec![false; count as usize];
    let mut sent = 0;
    for answered in 0..count {
        while sent < count && sent < answered + WINDOW {
            rustix::io::write(link, &frame(sent)).unwrap();
            sent += 1;
        }
        let number = number_of(&read_frame(link, state));
        let was_answered = std::mem::replace(&mut is_answered[number as usize], true);
        assert!(!was_answered && number < sent, "frame {number} is answered again: {}", state());
    }
}

/// A process that is killed on drop.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `dpdk-testpmd` sends all frames back: to queues that are polled, and to queues that wait for kicks.
#[test]
fn dpdk_sends_all_frames_back() {
    const PROGRAM: &str = "dpdk-testpmd";
    const FRAMES: u64 = 4_000;
    if !has(PROGRAM) {
        return;
    }
    if std::thread::available_parallelism().is_ok_and(|count| count.get() < 2) {
        return skip(Lack::machine(format!("{PROGRAM} needs two CPUs"), "a machine with two"));
    }
    for (packed, in_order, is_polling) in [(0, 0, true), (1, 0, false), (0, 1, false), (1, 1, true)] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("vh.sock");
        let (mine, its) = link();
        let device = Arc::new(Network::new(its, MAC).unwrap());
        // Without huge pages, DPDK shares memory that is not sealed.
        let options = BackEndOptions { requires_seal: false, is_polling, ..BackEndOptions::default() };
        let back_end = BackEnd::start(&socket, Arc::clone(&device), options).unwrap();
        let vdev =
            format!("net_virtio_user0,path={},packed_vq={packed},in_order={in_order},queue_size=256", socket.display());
        let mut command = Command::new(PROGRAM);
        command.env("XDG_RUNTIME_DIR", dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Other tests may run DPDK at the same time, whose files have the same names.
        command.arg(format!("--file-prefix=vring-{}", std::process::id()));
        command.args(["-l", "0,1", "--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--vdev", &vdev]);
        command.args(["--", "--forward-mode=io", "--no-flush-rx", "--total-num-mbufs=4096", "--no-mlockall"]);
        let mut driver = Driver(command.spawn().unwrap());
        let frame = |number: u64| {
            let mut rng = SmallRng::seed_from_u64(number);
            let mut frame = vec![0; rng.random_range(60..=FRAME_BYTES_MAX)];
            rng.fill(&mut frame[..]);
            frame[..12].copy_from_slice(&ADDRESSES);
            frame[14..22].copy_from_slice(&number.to_le_bytes());
            frame
        };
        // DPDK keeps the order.
        let mut next = 0;
        let mut number_of = |answer: &[u8]| {
            assert!(answer == frame(next), "frame {next} comes back as {answer:x?}");
            next += 1;
            next - 1
        };
        let state = || format!("{:?} {:?} {:?}", device.counters(), back_end.counters(), back_end.refusal());
        let [sent, answered] = probe(&mine, |number| frame(u64::MAX - number), &state);
        exchange(&mine, FRAMES, frame, &mut number_of, &state);
        // A frame that is too long is not for a driver.
        rustix::io::write(&mine, &[0; FRAME_BYTES_MAX + 1]).unwrap();
        assert_eq!(rustix::io::write(&mine, &frame(FRAMES)), Ok(frame(FRAMES).len()));
        assert_eq!(number_of(&read_frame(&mine, &state)), FRAMES);
        // DPDK ends when it reads a line, and prints its counts.
        driver.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut text = String::new();
        driver.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(driver.0.wait().unwrap().success(), "{text}");
        let count = |name: &str| -> u64 {
            let mut words = text.split_whitespace().skip_while(|word| *word != name);
            words.nth(1).unwrap().parse().unwrap()
        };
        let case = format!("packed {packed}, in order {in_order}, polling {is_polling}");
        let (received, sent) = (sent + FRAMES + 1, answered + FRAMES + 1);
        assert_eq!((count("RX-packets:"), count("TX-packets:")), (sent, sent), "{case}: {text}");
        assert_eq!(
            device.counters(),
            NetworkCounters { received, sent, dropped: 1 },
            "{case}: {:?}",
            back_end.refusal()
        );
        let counters = back_end.counters();
        assert_eq!((counters.buffers, counters.violations), (received + sent, 0), "{case}");
        // A queue that is polled asks for no kicks. The driver may send one to each before it sees that.
        assert!(if is_polling { counters.kicks <= 2 } else { counters.kicks > 2 }, "{case}: {counters:?}");
    }
}

/// Guest's script: sends one request to say that it is ready, and waits until it has answered all.
const SCRIPT: &str = "
echo 1 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6
ip addr add 10.0.0.2/24 dev eth0
ip link set eth0 up
arp -s 10.0.0.1 02:00:00:00:00:02
ping -c 1 -W 1 10.0.0.1 > /dev/null
while [ $(cat /sys/class/net/eth0/statistics/tx_packets) -lt 1001 ]; do usleep 100000; done
echo counts $(cat /sys/class/net/eth0/statistics/rx_packets /sys/class/net/eth0/statistics/tx_packets)
";

/// Returns the internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    (!sum as u16).to_be_bytes()
}

/// Returns an ICMP echo request, or the answer to it (RFC 792).
fn echo(number: u64, is_answer: bool) -> Vec<u8> {
    let mut icmp = vec![if is_answer { 0 } else { 8 }, 0, 0, 0, 0x12, 0x34];
    icmp.extend((number as u16).to_be_bytes());
    icmp.extend((0..number * 37 % 1400).map(|index| (index + number) as u8));
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    let mut ip = vec![0x45, 0];
    ip.extend((20 + icmp.len() as u16).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let mut frame = ADDRESSES.to_vec();
    if is_answer {
        ip[12..].rotate_left(4);
        frame.rotate_left(6);
    }
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    [frame, vec![8, 0], ip, icmp].concat()
}

/// Checks the answer to an echo request, and returns its number. Identification, flags and checksum of the IP header are the
/// guest's own.
fn number_of(frame: &[u8]) -> u64 {
    let number = u64::from(frame[40]) << 8 | u64::from(frame[41]);
    let mut expected = echo(number, true);
    for own in [18..22, 24..26] {
        expected[own.clone()].copy_from_slice(&frame[own]);
    }
    // The sum over a header with its checksum is zero.
    assert!(frame == expected && checksum(&frame[14..34]) == [0, 0], "{frame:x?} is not an answer");
    number
}

/// A guest's kernel checks and answers 1,000 echo requests. Its counts, and the device's, are those of the test.
#[test]
fn a_linux_guest_answers_all_requests() {
    const REQUESTS: u64 = 1000;
    let modules = [&VIRTIO_PCI[..], &["failover", "net_failover", "virtio_net"]].concat();
    let Some(guest) = Guest::new(&modules, &[], SCRIPT) else { return };
    for (packed, is_polling) in [("off", false), ("on", true)] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("vh.sock");
        let (mine, its) = link();
        let device = Arc::new(Network::new(its, MAC).unwrap());
        let options = BackEndOptions { is_polling, ..BackEndOptions::default() };
        let back_end = BackEnd::start(&socket, Arc::clone(&device), options).unwrap();
        let mut command = guest.command();
        command.arg("-chardev").arg(format!("socket,id=c0,path={}", socket.display()));
        command.args(["-netdev", "vhost-user,id=n0,chardev=c0", "-device"]);
        // Without MSI-X: with it, QEMU 7.2 crashes in `msix_set_vector_notifiers` unless KVM is used.
        command.arg(format!("virtio-net-pci,netdev=n0,mac=02:00:00:00:00:01,vectors=0,packed={packed}"));
        let running = guest::Running::start(&mut command);
        let state = || format!("{:?} {:?} {:?}", device.counters(), back_end.counters(), back_end.refusal());
        let ready = read_frame(&mine, &state);
        assert_eq!(ready[14 + 20], 8, "the guest sends an echo request");
        exchange(&mine, REQUESTS, |number| echo(number, false), number_of, &state);
        let console = running.console();
        let [received, sent] = [REQUESTS, REQUESTS + 1].map(|number| number.to_string());
        assert_eq!(guest::line(&console, "counts")[1..], [received, sent], "packed {packed}");
        assert_eq!(device.counters(), NetworkCounters { received: REQUESTS, sent: REQUESTS + 1, dropped: 0 });
        let counters = back_end.counters();
        assert_eq!((counters.buffers, counters.violations, counters.refused), (2 * REQUESTS + 1, 0, 0));
    }
}
