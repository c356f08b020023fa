//! Memory does not grow with the size of the trace.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::Value;
use dormouse_reader::TraceFiles;
use dormouse_testing::Lack;
use dormouse_traces::TraceBuilder;

const STREAMS: u64 = 3;
/// 64 MiB, and 1 MiB for each stream.
const BOUND_KIB: u64 = (64 + STREAMS) << 10;
/// Set for the child process, which is the same program: path of the trace, and how to read it.
const ENV: [&str; 2] = ["DORMOUSE_TEST_TRACE", "DORMOUSE_TEST_WHAT"];

#[test]
fn peak_memory_stays_below_its_bound_for_a_larger_trace() {
    if let [Ok(dir), Ok(what)] = ENV.map(std::env::var) {
        return read_and_tell(dir.as_ref(), &what);
    }
    let dir = tempfile::tempdir().unwrap();
    let mut size_bytes = 0;
    let mut metadata = String::new();
    for cpu in 0..STREAMS {
        // Each stream is written before the next one is made. Its packets are as large as the test can make them.
        let mut builder = TraceBuilder::new();
        let class = builder.class("p", "e", &[("text", FieldType::scalar(Kind::Str))]);
        for other in 0..cpu {
            builder.stream(other as u32);
        }
        let stream = builder.stream(cpu as u32);
        let text = vec![b'x'; 4000];
        for n in 0..12_000 {
            builder.event(stream, n, 1, 2, class, &[Value::Str(&text)]);
        }
        let trace = builder.finish();
        metadata = trace.metadata.clone();
        let mut file = std::fs::File::create(dir.path().join(format!("cpu_{cpu}"))).unwrap();
        file.write_all(&trace.streams[stream]).unwrap();
        size_bytes += trace.streams[stream].len() as u64;
    }
    std::fs::write(dir.path().join("metadata"), metadata).unwrap();
    assert!(size_bytes > 2 * (BOUND_KIB << 10), "{size_bytes}");
    for what in ["events", "stats", "counts"] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "peak_memory_stays_below_its_bound_for_a_larger_trace", "--nocapture"]);
        child.env(ENV[0], dir.path()).env(ENV[1], what);
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        let numbers: Vec<u64> = said
            .lines()
            .find_map(|line| line.strip_prefix("events, KiB: "))
            .unwrap()
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect();
        assert_eq!(numbers[0], STREAMS * 12_000, "{what}");
        if dormouse_testing::is_emulated() {
            let lack = Lack::emulated("the emulator's memory counts as the program's");
            dormouse_testing::skip_part(format!("memory of {what}"), lack);
        } else {
            assert!(numbers[1] <= BOUND_KIB, "{what}: {} KiB", numbers[1]);
        }
    }
}

fn read_and_tell(dir: &Path, what: &str) {
    let files = TraceFiles::open(dir).unwrap();
    let events = match what {
        "events" => {
            let (mut events, mut count) = (files.events(), 0);
            while let Some(item) = events.next_event() {
                count += u64::from(item.is_ok());
            }
            count
        }
        "stats" => files.stats().events,
        _ => files.counts().events(),
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!("\nevents, KiB: {events} {}", peak.trim().trim_end_matches(" kB"));
}
