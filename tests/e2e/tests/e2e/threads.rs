//! Names of threads.

use std::collections::BTreeMap;
use std::process::Command;

use dormouse_ctf::Format;
use dormouse_e2e::run::{Record, babeltrace2_lines, dormouse};

const NAMED: &str = env!("CARGO_BIN_EXE_e2e-named");

/// The last event of each thread has the last name that the thread gave itself; the main thread has none of its own.
#[test]
fn threads_are_recorded_with_their_names() {
    for format in [Format::Ctf18, Format::Ctf2] {
        let record = Record::new().format(format);
        let dir = record.place().to_path_buf();
        let mut running = record.start(&[NAMED.as_ref(), dir.as_os_str()]);
        let state = running.dir().join("state");
        let recorded = |running: &mut dormouse_e2e::run::Running, name: &str| {
            let text = [name.as_bytes(), b"\0"].concat();
            running.wait_until("waiting for a name in the trace", || {
                let bytes = std::fs::read(&state).unwrap_or_default();
                bytes.windows(text.len()).any(|window| window == text)
            });
        };
        for (name, next) in [("alpha", None), ("beta", Some("rename")), ("gamma", Some("end"))] {
            recorded(&mut running, name);
            next.into_iter().for_each(|next| std::fs::write(dir.join(next), "").unwrap());
        }
        let recording = running.wait().succeeded();
        let tid = |name: &str| -> u64 {
            let line = recording.stdout.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().parse().unwrap()
        };
        let expected = BTreeMap::from([(tid("alpha "), "gamma".to_string()), (tid("beta "), "beta".to_string())]);

        let shown = |arguments: &[&str]| -> Vec<serde_json::Value> {
            let output = Command::new(dormouse()).args(arguments).arg(&recording.dir).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let text = String::from_utf8(output.stdout).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let events = shown(&["view", "--format", "json", "-e", "named:last"]);
        assert_eq!(events.len(), 3);
        for event in &events {
            assert_eq!(event["thread"].as_str(), expected.get(&event["tid"].as_u64().unwrap()).map(String::as_str));
        }

        let out = dir.join("export.json");
        let output = Command::new(dormouse())
            .args(["export", "--to", "chrome", "-o"])
            .args([&out, &recording.dir])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let export: serde_json::Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
        let events = export["traceEvents"].as_array().or(export.as_array()).unwrap();
        let names = events.iter().filter(|event| event["name"] == "thread_name");
        let names =
            names.map(|event| (event["tid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap().to_string()));
        // The last name of a thread counts.
        assert_eq!(names.collect::<BTreeMap<_, _>>(), expected);

        babeltrace2_lines(&recording.dir);
    }
}
