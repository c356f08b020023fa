//! Recordings of one program that other machines have made: each has the same events here, and in babeltrace2.

use std::path::Path;
use std::process::Command;

use dormouse_print::{ClockFormat, Formatter};
use dormouse_reader::TraceFiles;
use dormouse_testing::machines::{self, EVENTS};

/// Returns the lines of a trace, or archive of one.
fn view(trace: &Path) -> String {
    let files = TraceFiles::open(trace).unwrap();
    let mut formatter = Formatter::new(ClockFormat::TimeOfDay, |_| 0);
    let (mut out, mut events) = (Vec::new(), files.events());
    while let Some(item) = events.next_event() {
        match item {
            Ok(event) => formatter.event(&event, &mut out),
            Err(notice) => panic!("{}: {notice}", trace.display()),
        }
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn recordings_of_all_machines_have_the_same_events() {
    let archives = std::fs::read_dir(machines::dir()).unwrap().map(|entry| entry.unwrap().path());
    let archives: Vec<_> = archives.filter(|path| path.extension().is_some_and(|end| end == "gz")).collect();
    let names: Vec<_> = archives.iter().map(|path| path.file_name().unwrap().to_string_lossy()).collect();
    for machine in ["aarch64", "riscv64", "s390x", "x86_64"] {
        assert!(names.contains(&format!("{machine}.tar.gz").into()), "{names:?}");
    }
    for archive in &archives {
        let ours = view(archive);
        assert_eq!(machines::events(&ours), EVENTS, "{}", archive.display());
        if !["babeltrace2", "tar"].into_iter().all(dormouse_testing::has_part) {
            continue;
        }
        let place = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        assert!(tar.arg("-xzf").arg(archive).arg("-C").arg(place.path()).status().unwrap().success());
        let mut theirs = Command::new("babeltrace2");
        let theirs = theirs.arg(place.path()).env("TZ", "UTC").env("LC_ALL", "C.UTF-8").output().unwrap();
        assert!(theirs.status.success(), "{}", String::from_utf8_lossy(&theirs.stderr));
        assert_eq!(ours, String::from_utf8(theirs.stdout).unwrap(), "{}", archive.display());
    }
}
