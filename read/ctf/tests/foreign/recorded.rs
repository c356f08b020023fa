//! Traces that other programs write during the test.

use std::path::Path;
use std::process::Command;

use dormouse_testing::lttng::LttngSession;

use super::{agree, output};

/// Groups of fields, by the beginnings of their names. babeltrace2's writer cannot write all of them at once, and it
/// writes variants that babeltrace2 does not read.
const FIELDS: [&[&str]; 4] = [
    &["u", "i"],
    &["f32", "f64", "text"],
    &["inner", "none", "fixed", "nothing"],
    &["len", "counted", "free", "pairs"],
];

#[test]
fn traces_that_babeltrace2_writes_are_read_alike() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/write.py");
    let has_module = Command::new("/usr/bin/python3").args(["-c", "import bt2"]).output();
    if !has_module.is_ok_and(|output| output.status.success()) {
        // The lack is a Python module and not a program, so it is reported as a lack of the machine.
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

#[test]
fn recordings_of_lttng_are_read_alike() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = dormouse_testing::lttng::sample_program(directory.path()) else { return };
    let contexts = ["vpid", "vtid", "procname", "ip", "pthread_id", "vuid", "vgid", "pid_ns", "net_ns"];
    // LTTng writes compact headers for few classes, and large ones for many.
    for (name, channel, events, contexts) in [
        ("uid", "--buffers-uid", &["mine:*"][..], &contexts[..6]),
        ("pid", "--buffers-pid", &["mine:*"], &contexts[..6]),
        ("few", "--buffers-uid", &["mine:ev", "mine:small"], &contexts),
        ("snapshot", "--buffers-uid --overwrite", &["mine:*"], &contexts[..6]),
        ("rotation", "--buffers-uid", &["mine:*"], &[]),
    ] {
        let options = format!("{channel} --subbuf-size=4096");
        let session = match LttngSession::start(&options, events, contexts, directory.path()) {
            Ok(session) => session,
            Err(why) => {
                return dormouse_testing::skip(dormouse_testing::Lack::machine(why, "run it outside of containers"));
            }
        };
        let run = || {
            let output = Command::new(&program).envs(session.env()).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        run();
        if name == "rotation" {
            session.rotate().unwrap();
            run();
        }
        let trace = session.keep().unwrap();
        let traces = super::traces_below(&trace);
        assert_eq!(traces.len(), if name == "rotation" { 2 } else { 1 }, "{name}: {traces:?}");
        // Consecutive traces of a rotation are read separately, because they have the same streams.
        for trace in traces {
            let Some(notices) = agree(&trace) else { return };
            assert_eq!(notices, [""; 0], "{name}");
        }
        if name == "pid" || name == "uid" {
            filters_find_what_a_search_finds(&trace);
        }
    }
}

#[test]
fn conversions_of_perf_are_read_alike() {
    let directory = tempfile::tempdir().unwrap();
    let mut record = Command::new("perf");
    record.args([
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-F",
        "5000",
        "-o",
        "data",
        "--",
        "sh",
        "-c",
        "ls -R /usr/share/doc",
    ]);
    let Some(recorded) = output(record.current_dir(directory.path()), "perf") else { return };
    let mut convert = Command::new("perf");
    convert.args(["data", "convert", "--all", "-i", "data", "--to-ctf=trace"]).current_dir(directory.path());
    let is_converted = recorded.status.success() && convert.output().is_ok_and(|output| output.status.success());
    if !is_converted || !directory.path().join("trace/metadata").is_file() {
        let lack = "perf records no clock here, or does not write CTF";
        return dormouse_testing::skip(dormouse_testing::Lack::machine(lack, "kernel.perf_event_paranoid, linux-perf"));
    }
    let Some(notices) = agree(&directory.path().join("trace")) else { return };
    assert_eq!(notices, [""; 0]);
}

/// Compares the results of filters with searches in the text of babeltrace2.
fn filters_find_what_a_search_finds(directory: &Path) {
    let Some(text) = output(Command::new("babeltrace2").arg(directory), "babeltrace2") else { return };
    let text = String::from_utf8(text.stdout).expect("it prints text");
    let with = |parts: &[&str]| text.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count();
    let all = text.lines().count();
    let large = ["mine:ev", "h = 0x"];
    let ev = with(&large);
    assert!(ev > 8 && ev < all, "{text}");
    let lengths =
        |at_least: usize| (at_least..4).map(|len| with(&["mine:ev", &format!("_seq_length = {len},")])).sum::<usize>();
    for (filter, expected) in [
        ("event == \"mine:ev\"", ev),
        ("event ~ \"*:small\"", with(&["mine:small"])),
        ("not event == \"mine:ev\"", all - ev),
        ("col == \"BLUE\"", with(&["\"BLUE\""])),
        ("col ~ \"*N*\" and col >= 2", with(&["\"MANY\""])),
        ("not col == \"BLUE\"", ev - with(&["\"BLUE\""])),
        ("h == 0x4D and fields.h == 77", with(&["h = 0x4D,"])),
        ("net == 0x34120000", with(&["net = 0x34120000,"])),
        ("i < 0", with(&["{ i = -"])),
        ("arr[1] == 2", ev),
        ("arr[2] == 2", 0),
        ("seq[0] == 1", lengths(1)),
        ("seq[2] == 3", lengths(3)),
        ("d == 1.5", with(&[" d = 1.5,"])),
        ("f > 1.4 and f < 1.6", with(&[" f = 1.5,"])),
        ("txt == \"he\\\"l\" and stxt ~ \"he?\"", ev),
        ("s ~ \"he*o\"", ev),
        ("process == \"program\" and procname == comm", all),
        ("vpid == pid and pid > 1", all),
        ("tid == vtid and tid == pid", all),
        ("context.vtid == tid", all),
        ("cpu == 0", with(&["cpu_id = 0 "])),
        ("time > 1000000000s and time < 10000000000s", all),
    ] {
        assert_eq!(wanted(directory, filter), expected, "{filter}");
    }
}

/// Returns how many events of a trace, or of the traces below its directory, a filter selects.
fn wanted(directory: &Path, filter: &str) -> usize {
    use dormouse_ctf::{Merge, Selection, StreamReader, Trace, Writers};
    if !directory.join("metadata").is_file() {
        let entries = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
        return entries
            .filter(|path| path.is_dir() && !path.ends_with("index"))
            .map(|path| wanted(&path, filter))
            .sum();
    }
    let trace = Trace::decode(&std::fs::read(directory.join("metadata")).expect("metadata")).expect("a trace");
    let entries = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    let files = entries.filter(|path| path.is_file() && !path.ends_with("metadata"));
    let streams: Vec<Vec<u8>> = files.map(|path| std::fs::read(path).expect("a stream")).collect();
    let filter = dormouse_filter::Filter::parse(filter).unwrap_or_else(|error| panic!("{error}"));
    let mut selection =
        Selection::new(Vec::new(), vec![filter], [(&trace).into()]).unwrap_or_else(|error| panic!("{error}"));
    let readers = streams.iter().enumerate().map(|(index, bytes)| StreamReader::new(&trace, index, bytes));
    let mut writers = Writers::default();
    Merge::new(readers)
        .map(|item| item.expect("no notice"))
        .filter(|event| selection.wants(event, &mut writers))
        .count()
}
