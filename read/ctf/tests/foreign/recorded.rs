//! Traces that other programs write while the test runs.

use std::path::Path;
use std::process::Command;

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
        return dormouse_testing::skip(dormouse_testing::Lack::program("python3-bt2"));
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
