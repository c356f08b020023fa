//! The examples in C of a device and of a driver, built with the library alone, with programs of other people on the
//! other side.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use dormouse_testing::c_library::WARNINGS;
use dormouse_testing::c_programs::{install_only, pkg_config, stdout, succeed};
use dormouse_testing::guest::{self, Guest, VIRTIO_PCI};
use dormouse_testing::{Lack, has, has_part, skip, wait_until};

/// A program that is killed on drop.
struct Running(Child);

impl Running {
    /// Starts a program that listens on a socket.
    fn listen(command: &mut Command, socket: &Path) -> Running {
        let running = Running(command.stdin(Stdio::null()).spawn().unwrap());
        // An attempt to connect would be a driver.
        wait_until("the socket", || {
            let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
            // The fourth field is the flags: `__SO_ACCEPTCON` is set once it listens.
            let listens = |line: &&str| line.split_whitespace().nth(3) == Some("00010000");
            sockets.lines().filter(listens).any(|line| line.ends_with(&*socket.to_string_lossy()))
        });
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compiles an example in C, with warnings as errors.
fn compile(compiler: &str, example: &str, directory: &Path) -> PathBuf {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    let prefix = PREFIX.get_or_init(|| install_only("vring", "vring-only-prefix"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{example}.c"));
    let program = directory.join(format!("{example}-{compiler}"));
    let mut command = Command::new(compiler);
    command.arg("-O2").args(WARNINGS).arg("-o").arg(&program).arg(source);
    command.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    succeed(command.args(pkg_config(prefix, &["--cflags", "--libs", "dormouse-vring"])));
    program
}

/// Starts the device on `device.sock`, with a disk if there is a file. Its counts come from the reader.
fn start_device(compiler: &str, directory: &Path, disk: Option<&Path>) -> (Running, PathBuf, impl BufRead + use<>) {
    let socket = directory.join("device.sock");
    let mut command = Command::new(compile(compiler, "vhost_device", directory));
    let mut device = Running::listen(command.arg(&socket).args(disk).stdout(Stdio::piped()), &socket);
    let counts = BufReader::new(device.0.stdout.take().unwrap());
    (device, socket, counts)
}

/// Returns the next driver's counts: buffers, dropped frames, violations.
fn counts(device: &mut impl BufRead) -> [u64; 3] {
    let mut line = String::new();
    device.read_line(&mut line).unwrap();
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{line}"))
}

/// Returns the CPU time of a process, in ticks of which a second has 100.
fn cpu_ticks(process: &Child) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let (_, fields) = text.rsplit_once(')').unwrap();
    // proc_pid_stat(5): the state is the third field; `utime` and `stime` are the 14th and the 15th.
    fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

fn make_disk(directory: &Path, bytes: u64) -> PathBuf {
    let disk = directory.join("disk.raw");
    std::fs::File::create(&disk).unwrap().set_len(bytes).unwrap();
    disk
}

/// Guest's script: four programs write at the same time, and four read back what they wrote.
const SCRIPT: &str = r"
for part in 0 1 2 3; do head -c 2097152 /dev/urandom > /tmp/$part; done
for part in 0 1 2 3; do
    dd if=/tmp/$part of=/dev/vda bs=48k seek=$((part * 2048 + 100))k oflag=direct,seek_bytes conv=fsync 2>/dev/null &
done
wait
for part in 0 1 2 3; do
    dd if=/dev/vda of=/tmp/read$part bs=4k skip=$((part * 512 + 25)) count=512 iflag=direct 2>/dev/null &
done
wait
echo written $(cat /tmp/0 /tmp/1 /tmp/2 /tmp/3 | sha256sum)
echo read $(cat /tmp/read0 /tmp/read1 /tmp/read2 /tmp/read3 | sha256sum)
";

#[test]
fn a_linux_guest_drives_the_device() {
    let modules = [&VIRTIO_PCI[..], &["virtio_blk"]].concat();
    let Some(guest) = Guest::new(&modules, &[], SCRIPT) else { return };
    let directory = tempfile::tempdir().unwrap();
    let disk = make_disk(directory.path(), 16 << 20);
    let (_device, socket, mut device) = start_device("gcc", directory.path(), Some(&disk));
    for packed in ["off", "on"] {
        let mut command = guest.command();
        command.arg("-chardev").arg(format!("socket,id=c0,path={}", socket.display()));
        command.arg("-device").arg(format!("vhost-user-blk-pci,chardev=c0,num-queues=2,packed={packed}"));
        let console = guest::Running::start(&mut command).console();
        // The host's own sum over what is in the file.
        let mut bytes = vec![0; 8 << 20];
        std::fs::File::open(&disk).unwrap().read_exact_at(&mut bytes, 100 << 10).unwrap();
        let part = directory.path().join("part");
        std::fs::write(&part, bytes).unwrap();
        let sum = stdout(&succeed(Command::new("sha256sum").arg(part)));
        let sum = sum.split_whitespace().next().unwrap();
        assert_eq!(
            (guest::line(&console, "written")[1], guest::line(&console, "read")[1]),
            (sum, sum),
            "packed {packed}: {console}"
        );
        // QEMU connects once to ask for features, and once more.
        let [buffers, _, violations] = loop {
            let counts = counts(&mut device);
            if counts[0] > 0 {
                break counts;
            }
        };
        assert!(buffers > 8 << 20 >> 17 && violations == 0, "{buffers} buffers, {violations} violations");
    }
}

/// `dpdk-testpmd` sends a burst of frames, and sends each frame that comes back again. Both sides count.
#[test]
fn dpdk_drives_the_device() {
    const PROGRAM: &str = "dpdk-testpmd";
    if !has(PROGRAM) {
        return;
    }
    if std::thread::available_parallelism().is_ok_and(|count| count.get() < 2) {
        return skip(Lack::machine(format!("{PROGRAM} needs two CPUs"), "a machine with two"));
    }
    let directory = tempfile::tempdir().unwrap();
    let (device_process, socket, mut device) = start_device("gcc", directory.path(), None);
    for (packed, in_order) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let vdev =
            format!("net_virtio_user0,path={},packed_vq={packed},in_order={in_order},queue_size=256", socket.display());
        let mut command = Command::new(PROGRAM);
        command.env("XDG_RUNTIME_DIR", directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Other tests may run DPDK at the same time, whose files have the same names.
        command.arg(format!("--file-prefix=vring-{}", std::process::id()));
        command.args(["-l", "0,1", "--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--vdev", &vdev]);
        command.args(["--", "--forward-mode=io", "--tx-first", "--total-num-mbufs=4096", "--no-mlockall"]);
        let mut driver = Running(command.stderr(Stdio::null()).spawn().unwrap());
        // The device prints its counts only when the driver has gone. It uses the CPU only for frames.
        let end = cpu_ticks(&device_process.0) + 50;
        wait_until("the device serves frames", || cpu_ticks(&device_process.0) >= end);
        // DPDK ends when it reads a line.
        driver.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut text = String::new();
        driver.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(driver.0.wait().unwrap().success(), "{text}");
        // Its statistics have lines such as `RX-packets: 1234  RX-dropped: 0`.
        let count = |line: &str, name: &str| -> Option<u64> {
            let mut words = line.split_whitespace().skip_while(|word| *word != name);
            words.nth(1)?.parse().ok()
        };
        let last = |name: &str| text.lines().rev().find_map(|line| count(line, name)).expect("it prints its counts");
        let (received, sent) = (last("RX-packets:"), last("TX-packets:"));
        let [buffers, dropped, violations] = counts(&mut device);
        assert_eq!((buffers, violations), (sent, 0), "packed {packed}, in order {in_order}");
        // What the driver had not taken when it ended is in its ring.
        assert!(
            received >= 10_000 && received + dropped <= sent && sent - dropped - received <= 256,
            "{sent} sent, {dropped} dropped, {received} received"
        );
    }
}

/// Checks that each word of eight bytes is its own number, as the driver's documentation says.
fn check_disk(disk: &Path) {
    let bytes = std::fs::read(disk).unwrap();
    let (words, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty() && words.iter().enumerate().all(|(index, word)| u64::from_le_bytes(*word) == index as u64));
}

#[test]
fn the_driver_drives_qemu_storage_daemon() {
    if !has("qemu-storage-daemon") {
        return;
    }
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has_part(compiler)) {
        let directory = tempfile::tempdir().unwrap();
        let (disk, socket) = (make_disk(directory.path(), 32 << 20), directory.path().join("daemon.sock"));
        let export =
            format!("type=vhost-user-blk,id=e0,node-name=d0,writable=on,addr.type=unix,addr.path={}", socket.display());
        let mut command = Command::new("qemu-storage-daemon");
        command.arg("--blockdev").arg(format!("driver=file,node-name=d0,filename={}", disk.display()));
        let daemon = Running::listen(command.arg("--export").arg(export), &socket);
        let text = stdout(&succeed(Command::new(compile(compiler, "vhost_driver", directory.path())).arg(socket)));
        assert_eq!(text, "8192 blocks written, 0 wrong\n");
        drop(daemon);
        check_disk(&disk);
    }
}

#[test]
fn the_driver_drives_the_device() {
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has_part(compiler)) {
        let directory = tempfile::tempdir().unwrap();
        let disk = make_disk(directory.path(), 32 << 20);
        let (_device, socket, mut device) = start_device(compiler, directory.path(), Some(&disk));
        let program = compile(compiler, "vhost_driver", directory.path());
        assert_eq!(stdout(&succeed(Command::new(program).arg(socket))), "8192 blocks written, 0 wrong\n");
        assert_eq!(counts(&mut device), [2 * 8192 + 1, 0, 0]);
        check_disk(&disk);
    }
}
