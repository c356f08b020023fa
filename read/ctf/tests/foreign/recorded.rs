//! Traces that other programs write while the test runs.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{agree, output};

/// Groups of fields, by the beginnings of their names. All at once they are too much for babeltrace2's writer, and it writes variants
/// that babeltrace2 does not read.
const FIELDS: [&[&str]; 4] = [
    &["u", "i"],
    &["f32", "f64", "text"],
    &["inner", "none", "fixed", "nothing"],
    &["len", "counted", "free", "pairs"],
];

#[test]
fn what_babeltrace2_writes_is_read_alike() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/write.py");
    let has_module = Command::new("/usr/bin/python3").args(["-c", "import bt2"]).output();
    if !has_module.is_ok_and(|output| output.status.success()) {
        // No program tells whether it is there, so nobody can be asked for it.
        let lack = dormouse_testing::Lack::machine("Python has no module bt2", "`apt-get install python3-bt2`");
        return dormouse_testing::skip(lack);
    }
    for fields in FIELDS {
        for frequency in ["1000000000", "1000", "2899999999"] {
            let directory = tempfile::tempdir().unwrap();
            let trace = directory.path().join("trace");
            let mut command = Command::new("/usr/bin/python3");
            command.arg(&script).arg(&trace).arg(frequency).args(fields);
            let Some(output) = output(&mut command, "python3") else { return };
            assert!(output.status.success(), "{fields:?}: {}", String::from_utf8_lossy(&output.stderr));
            let Some(notices) = agree(&trace) else { return };
            assert_eq!(notices, [""; 0]);
        }
    }
}

/// A session daemon of LTTng, ended with its children.
struct SessionDaemon(std::process::Child);

impl Drop for SessionDaemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

#[test]
fn what_lttng_records_is_read_alike() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign");
    let lacks = |what: &str| dormouse_testing::skip(dormouse_testing::Lack::program(what));
    let program = at("program");
    let mut compiler = Command::new("cc");
    compiler.arg("-I").arg(&source).arg("-o").arg(&program).arg(source.join("lttng.c")).args(["-llttng-ust", "-ldl"]);
    if !compiler.output().is_ok_and(|output| output.status.success()) {
        return lacks("liblttng-ust-dev");
    }
    let ready = at("ready");
    let mut daemon = Command::new("lttng-sessiond");
    daemon.args(["--no-kernel", "--pidfile"]).arg(&ready).env("LTTNG_HOME", directory.path());
    daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(daemon) = daemon.spawn() else { return lacks("lttng-sessiond") };
    let mut daemon = SessionDaemon(daemon);
    let lttng = |arguments: &[&str]| {
        let mut command = Command::new("lttng");
        command.arg("--no-sessiond").args(arguments).env("LTTNG_HOME", directory.path()).stdin(Stdio::null());
        command.output().expect("lttng runs")
    };
    // It answers when it is ready. One that runs already ends ours, and answers too.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !lttng(&["list"]).status.success() && std::time::Instant::now() < deadline {
        // Nothing tells when it listens: its signal would go to a parent, and this process has other children.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let _ = daemon.0.try_wait();
    }
    for (name, buffers) in [("uid", "--buffers-uid"), ("pid", "--buffers-pid")] {
        let session = format!("dormouse-test-{name}-{}", std::process::id());
        let trace = at(name);
        let create = format!("--output={}", trace.display());
        let steps: [&[&str]; 5] = [
            &["create", &session, &create],
            &["enable-channel", "-s", &session, "-u", buffers, "--subbuf-size=4096", "channel"],
            &["enable-event", "-s", &session, "-u", "-c", "channel", "mine:*"],
            &["add-context", "-s", &session, "-u", "-c", "channel", "-t", "vpid", "-t", "vtid", "-t", "procname"],
            &["start", &session],
        ];
        for step in steps {
            let output = lttng(step);
            assert!(output.status.success(), "{step:?}: {output:?}");
        }
        let output = Command::new(&program).env("LTTNG_HOME", directory.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        for step in [["stop", &session], ["destroy", &session]] {
            assert!(lttng(&step).status.success(), "{step:?}");
        }
        let Some(notices) = agree(&trace) else { return };
        assert_eq!(notices, [""; 0]);
    }
}
