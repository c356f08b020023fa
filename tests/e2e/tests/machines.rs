//! A recording made on this machine has the events that recordings of the same program have on every other.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::process::Command;

use dormouse_ctf::Format;
use dormouse_e2e::run::{Record, dormouse};
use dormouse_testing::machines::{self, ENV_KEEP, EVENTS};
use flate2::Compression;
use flate2::write::GzEncoder;

const PROGRAM: &str = env!("CARGO_BIN_EXE_e2e-machine");

#[test]
fn a_recording_has_the_events_that_it_has_on_other_machines() {
    for (rseq, format) in [(true, Format::Ctf18), (false, Format::Ctf18), (false, Format::Ctf2)] {
        let record = Record::new().rseq(rseq).format(format);
        // Its path is in the trace, which may be kept.
        let program = record.place().join("e2e-machine");
        std::fs::copy(PROGRAM, &program).unwrap();
        let recording = record.run(&[&program]).succeeded();
        let output = Command::new(dormouse()).arg("view").arg(&recording.dir).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(machines::events(&String::from_utf8(output.stdout).unwrap()), EVENTS, "rseq: {rseq}, {format:?}");
        if !rseq && format == Format::Ctf18 && std::env::var_os(ENV_KEEP).is_some() {
            let archive = machines::dir().join(format!("{}.tar.gz", std::env::consts::ARCH));
            // Not by tar(1), which emulated machines do not have.
            let file = GzEncoder::new(File::create(archive).unwrap(), Compression::best());
            let mut tar = tar::Builder::new(file);
            tar.mode(tar::HeaderMode::Deterministic);
            tar.append_dir_all(".", &recording.dir).unwrap();
            tar.into_inner().unwrap().finish().unwrap();
        }
    }
}
