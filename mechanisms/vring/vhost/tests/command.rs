//! `dormouse vring` against a qemu-storage-daemon, and against itself.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The command that `dormouse vring` runs.
const VRING: &str = env!("CARGO_BIN_EXE_dormouse-vring");

#[track_caller]
fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("dormouse-vring runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Checks that the command prints nothing but one line, and exits with 2. Returns the line.
#[track_caller]
fn refuse(command: &mut Command) -> String {
    let output = command.output().expect("dormouse-vring runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?}: {error}");
    assert!(output.stdout.is_empty() && error.lines().count() == 1, "{command:?}: {output:?}");
    error
}

/// A program that serves a disk. It is killed on drop.
struct Daemon(Child);

impl Daemon {
    /// Starts a daemon with a disk of 16 MiB. `None`: it is not installed, and not required.
    fn start(dir: &Path) -> Option<(Daemon, PathBuf)> {
        if !dormouse_testing::has("qemu-storage-daemon") {
            return None;
        }
        std::fs::File::create(dir.join("disk.raw")).unwrap().set_len(16 << 20).unwrap();
        let mut command = Command::new("qemu-storage-daemon");
        command.current_dir(dir).stdin(Stdio::null());
        command.args(["--blockdev", "driver=file,node-name=d0,filename=disk.raw"]);
        command.args([
            "--export",
            "type=vhost-user-blk,id=e0,node-name=d0,writable=on,num-queues=2,addr.type=unix,addr.path=qsd.sock",
        ]);
        let daemon = Daemon(command.spawn().unwrap());
        let socket = dir.join("qsd.sock");
        wait_for(&socket);
        Some((daemon, socket))
    }
}

/// Waits until a process listens on the socket.
fn wait_for(socket: &Path) {
    let start = Instant::now();
    while UnixStream::connect(socket).is_err() {
        assert!(start.elapsed() < Duration::from_secs(600), "nobody makes {}", socket.display());
        std::thread::yield_now();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn bench(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(VRING);
    command.args(["bench", "--socket"]).arg(socket).args(arguments);
    command
}

#[test]
fn a_device_is_measured_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let Some((_daemon, socket)) = Daemon::start(dir.path()) else { return };
    for (features, has_event_idx, has_indirect) in
        [(&[][..], true, true), (&["--no-event-idx", "--no-indirect"], false, false)]
    {
        let load =
            ["--requests", "4000", "--write", "50", "--size", "512,16K", "--queues", "2", "--depth", "8", "--json"];
        let output = succeed(bench(&socket, &load).args(features));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["requests"], 4000);
        assert_eq!(report["queues"]["violations"], 0);
        assert_eq!(report["device"]["capacity_sectors"], 32768);
        assert_eq!(report["negotiated"]["event_idx"], has_event_idx);
        assert_eq!(report["negotiated"]["indirect"], has_indirect);
        let bytes = |name: &str| report[name].as_u64().unwrap();
        assert!(bytes("read_bytes") > 0 && bytes("written_bytes") > 0);
        assert!((1..=bytes("read_bytes")).contains(&bytes("verified_bytes")), "{report:#}");
        assert!(report["iops"].as_f64().unwrap() > 0.0);
    }
    let output = succeed(&mut bench(&socket, &["--requests", "200", "--poll"]));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("IOPS") && text.contains("nothing could be verified"), "{text}");
}

#[test]
fn impossible_requests_are_errors_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let error = refuse(&mut bench(&dir.path().join("none.sock"), &[]));
    assert!(error.contains("cannot connect") && error.contains("start the device first"), "{error}");
    let Some((_daemon, socket)) = Daemon::start(dir.path()) else { return };
    for (arguments, remedy) in [
        (&["--packed"][..], "leave --packed out"),
        (&["--queues", "3"], "choose --queues 2"),
        (&["--size", "100"], "multiple of 512"),
        (&["--size", "32M"], "choose a smaller --size"),
        (&["--span", "1K"], "a larger --span"),
        (&["--entries", "100"], "a power of two"),
    ] {
        let error = refuse(&mut bench(&socket, arguments));
        assert!(error.contains(remedy), "{arguments:?}: {error}");
    }
}

/// `serve` and `bench` are two programs that share memory. `serve` ends on a signal, and reports its counters.
#[test]
fn a_disk_is_served_to_successive_drivers() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, disk) = (dir.path().join("disk.sock"), dir.path().join("disk.raw"));
    std::fs::File::create(&disk).unwrap().set_len(4 << 20).unwrap();
    let mut command = Command::new(VRING);
    command.args(["serve", "--queues", "2", "--json", "--socket"]).arg(&socket).arg("--file").arg(&disk);
    let mut serve = Daemon(command.stdout(Stdio::piped()).spawn().unwrap());
    wait_for(&socket);
    for features in [&[][..], &["--packed"], &["--packed", "--no-event-idx", "--no-indirect"]] {
        let load =
            ["--requests", "2000", "--write", "50", "--size", "512,16K", "--queues", "2", "--depth", "8", "--json"];
        let output = succeed(bench(&socket, &load).args(features));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["requests"], &report["queues"]["violations"]), (&2000.into(), &0.into()));
        assert_eq!(report["negotiated"]["packed"], features.contains(&"--packed"));
    }
    assert!(std::fs::read(&disk).unwrap().iter().any(|byte| *byte != 0));
    let pid = rustix::process::Pid::from_child(&serve.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut text = String::new();
    serve.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(serve.0.wait().unwrap().success());
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&report["buffers"], &report["violations"], &report["refused"]), (&6000.into(), &0.into(), &0.into()));
    assert!(!socket.exists());
    let error = refuse(Command::new(VRING).args(["serve", "--memory", "1M", "--socket"]).arg(dir.path()));
    assert!(error.contains("cannot listen"), "{error}");
}

#[test]
fn the_reference_of_commands_is_current() {
    dormouse_testing::commands::check(VRING, "dormouse vring");
}
