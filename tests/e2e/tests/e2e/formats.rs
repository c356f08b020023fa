//! Sessions whose metadata are in CTF 2: the same events, names and values as in CTF 1.8.

use std::collections::BTreeMap;
use std::process::Command;

use dormouse_ctf::{Format, Metadata, MetadataOptions};
use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, Recording, babeltrace2_lines, dormouse};
use dormouse_e2e::trace::Trace;

use crate::VALUES;

fn record(format: Format, context: &str) -> Recording {
    Record::new().format(format).context(context).run(&[VALUES]).succeeded()
}

/// Returns the values of all events of programs, by class name.
fn values(trace: &Trace) -> BTreeMap<String, Vec<String>> {
    let classes = trace.metadata.classes.events();
    classes.map(|class| (class.full_name.clone(), trace.values(&class.full_name))).collect()
}

fn output(command: &str, recording: &Recording) -> String {
    let output = Command::new(dormouse()).arg(command).arg(&recording.dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn both_formats_have_the_same_events() {
    for context in ["ids", "none"] {
        let [old, new] = [Format::Ctf18, Format::Ctf2].map(|format| record(format, context));
        let (old_trace, old_events, _) = check(&old);
        let (new_trace, new_events, _) = check(&new);
        assert!(old_events > 10 && old_events == new_events, "{old_events}, {new_events}");
        assert_eq!(values(&old_trace), values(&new_trace));
        let names =
            |trace: &Trace| -> Vec<_> { trace.metadata.classes.events().map(|class| class.decl.clone()).collect() };
        assert_eq!(names(&old_trace), names(&new_trace));

        let text = std::fs::read_to_string(new.dir.join("metadata")).unwrap();
        assert!(text.starts_with("\u{1e}{\"type\":\"preamble\",\"version\":2,"), "{text}");
        assert!(output("stats", &new).contains("values:taken"));

        // Dormouse and babeltrace2 print the same streams with metadata in CTF 1.8 identically.
        let shown = output("view", &new);
        assert_eq!(shown.lines().count(), new_trace.events().count());
        if let Some(theirs) = babeltrace2_lines(&new.dir) {
            assert_eq!(shown, theirs);
        }
        let metadata = new_trace.metadata;
        let options = MetadataOptions { format: Format::Ctf18, ..metadata.options.clone() };
        std::fs::write(new.dir.join("metadata"), Metadata { options, ..metadata }.text()).unwrap();
        assert_eq!(output("view", &new), shown);
    }
}

/// Snapshots are written by separate code.
#[test]
fn a_snapshot_has_the_format_of_its_session() {
    let record = Record::new().format(Format::Ctf2).mode("overwrite").option("--snapshot-on").option("exit");
    let recording = record.run(&[VALUES]).succeeded();
    let snapshot = recording.dir.with_file_name("trace-snapshot-1");
    let trace = Trace::read(&snapshot);
    assert_eq!(trace.metadata.options.format, Format::Ctf2);
    assert_eq!(values(&trace), values(&recording.trace()));
}

#[test]
fn an_unknown_format_is_refused() {
    let recording = Record::new().option("--format").option("ctf3").run(&[VALUES]);
    assert_eq!(recording.code(), 2);
    assert!(recording.stderr.contains("ctf1.8"), "{}", recording.stderr);
}
