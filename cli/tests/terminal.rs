//! Text that programs choose must not control the terminal: names in a running program, answers of a hostile program,
//! and the contents of traces.

use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use dormouse_abi::class::{ClassDecl, FieldType, Kind, Labels};
use dormouse_abi::environment::program_socket_name;
use dormouse_abi::message::{
    ClassInSession, ClassStatus, Edge, OwnerToTool, ProgramToTool, Question, ToolToOwner, ToolToProgram,
};
use dormouse_abi::record::RecordKind;
use dormouse_abi::text::is_printable;
use dormouse_ctf::{Clock, MetadataOptions, Value};
use dormouse_testing::terminal::terminal;
use dormouse_traces::TraceBuilder;
use dormouse_transport::{Conversation, Deadline};

const DORMOUSE: &str = env!("CARGO_BIN_EXE_dormouse");

/// Control sequences that clear the screen and set the window's title, also as single characters (C1).
const HOSTILE: &str = "a\u{1b}[2J\u{1b}]0;b\u{7}\r\u{9b}2J\u{9d}c\u{7f}";
/// A bidirectional override, which reverses the text after it. It must not be printed either.
const REVERSED: &str = "\u{202e}";

/// Answers the question of every connection with the result of `answer`.
fn serve<Q: Question>(path: &Path, edge: Edge, answer: impl Fn(Q) -> Q::Answer + Send + 'static) {
    let listener = UnixListener::bind(path).expect("a socket");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            // Some clients only check whether a process listens.
            let deadline = Deadline::after(Duration::from_secs(60));
            let Ok(mut conversation) = Conversation::answer(stream.into(), &[edge], deadline) else { continue };
            if let Ok(question) = conversation.receive() {
                let _ = conversation.send(&answer(question));
            }
        }
    });
}

#[test]
fn control_characters_in_a_programs_answer_are_replaced() {
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path().join("dormouse");
    std::fs::create_dir(&dir).expect("a directory");
    let session = dir.join("session-1-0.sock");
    let session_name = session.to_str().expect("it is text").to_string();
    serve(&session, Edge::ToolOwner, |_: ToolToOwner| OwnerToTool::Stopped {
        summary: format!("done {HOSTILE}{REVERSED}"),
    });
    // Names of classes and fields are checked when they arrive.
    let fields = vec![("f".into(), FieldType::scalar(Kind::U8))];
    let decl = ClassDecl { provider: "p".into(), name: "e".into(), fields, labels: Labels::new(), level: None };
    let pid = std::process::id();
    serve(&dir.join(program_socket_name(pid, 0)), Edge::ToolProgram, move |question| match question {
        ToolToProgram::List => ProgramToTool::Classes {
            sessions: vec![session_name.clone()],
            classes: vec![ClassStatus {
                decl: decl.clone(),
                site_count: 1,
                patched_count: 1,
                sessions: vec![ClassInSession { is_armed: true, rejected: 0, sampled_out: 0 }],
            }],
            patching: format!("{HOSTILE}{REVERSED}"),
        },
        ToolToProgram::Disarm { patterns, .. } => {
            let matched = u32::from(patterns != ["none"]);
            let sessions = vec![(session_name.clone(), 0)];
            ProgramToTool::Changed { matched, changed: matched, armed: 0, sessions }
        }
        // A path with unprintable characters is refused.
        ToolToProgram::Arm { .. } => {
            ProgramToTool::Changed { matched: 1, changed: 1, armed: 1, sessions: vec![(format!("/{HOSTILE}"), 1)] }
        }
        _ => ProgramToTool::Error { text: format!("{HOSTILE}{REVERSED}") },
    });
    let pid = pid.to_string();
    for (arguments, code, part) in [
        (&["list", &pid][..], 0, "armed    p:e"),
        (&["disarm", &pid, "*"], 0, "done a"),
        (&["disarm", &pid, "none"], 2, "there is p:e"),
        (&["arm", &pid, "*"], 2, "malformed message: a path has characters that cannot be printed"),
        (&["imv", "list", &pid], 2, "a\u{fffd}[2J"),
    ] {
        let output = Command::new(DORMOUSE).args(arguments).env("XDG_RUNTIME_DIR", place.path()).output();
        let output = output.expect("dormouse runs");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).expect("it prints text");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text:?}");
        assert!(text.contains(part), "{arguments:?}: {text:?}");
        assert!(text.lines().all(|line| line.chars().all(is_printable)), "{arguments:?}: {text:?}");
    }
}

#[test]
fn control_characters_of_a_trace_are_replaced_only_on_a_terminal() {
    let mut trace = TraceBuilder::with_options(MetadataOptions {
        uuid: [7; 16],
        hostname: HOSTILE.into(),
        clock: Clock {
            name: "monotonic".into(),
            description: String::new(),
            frequency_hz: 1_000_000_000,
            offset_s: 0,
            offset_cycles: 0,
        },
        tracer_version: (0, 1),
        start_time_s: 0,
        record_kind: RecordKind::Ids,
        tags: Vec::new(),
        format: Default::default(),
    });
    let class = trace.class("p", "e", &[("text", FieldType::scalar(Kind::Str))]);
    let stream = trace.stream(0);
    trace.event(stream, 1, 1, 1, class, &[Value::Str(HOSTILE.as_bytes())]);
    trace.event(stream, 2, 1, 1, class, &[Value::Str(b"\x9b2J")]);
    let trace = trace.finish();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("metadata"), &trace.metadata).expect("a file");
    for (name, bytes) in ["state", "cpu_0"].into_iter().zip(&trace.streams) {
        std::fs::write(dir.path().join(name), bytes).expect("a file");
    }
    let view = || {
        let mut command = Command::new(DORMOUSE);
        command.arg("view").arg(dir.path()).env("TZ", "UTC");
        command
    };

    // Output into a pipe is what babeltrace2 prints.
    let piped = view().output().expect("dormouse runs").stdout;
    assert!(piped.windows(HOSTILE.len()).any(|bytes| bytes == HOSTILE.as_bytes()), "{piped:?}");
    if dormouse_testing::has_part("babeltrace2") {
        let output = Command::new("babeltrace2").arg(dir.path()).env("TZ", "UTC").output().expect("babeltrace2 runs");
        assert!(output.stdout == piped, "{:?}\n{:?}", output.stdout, piped);
    }

    for (format, part) in [
        ("babeltrace", "\u{fffd}[2J"),
        ("people", r"a\u{1b}[2J"),
        ("json", r"a\u001b[2J"),
        ("logfmt", r"a\u001b[2J"),
        ("csv", "\u{fffd}[2J"),
    ] {
        let shown = on_terminal(view().args(["--no-pager", "--format", format]).env("NO_COLOR", "1"), 0);
        let count = if format == "csv" { 3 } else { 2 };
        assert_eq!(shown.matches("\r\n").count(), count, "{format}: {shown:?}");
        assert!(!shown.replace("\r\n", "").contains(char::is_control), "{format}: {shown:?}");
        assert!(shown.contains(part), "{format}: {shown:?}");
    }
    // Without --format, a terminal gets lines for people, with colours but no other control sequences.
    let coloured = on_terminal(view().arg("--no-pager").env("TERM", "xterm").env_remove("NO_COLOR"), 0);
    let plain = on_terminal(view().args(["--no-pager", "--color", "never"]), 0);
    assert!(plain.contains(r#"p:e text="a"#) && !plain.contains('\u{1b}'), "{plain:?}");
    let mut rest = String::new();
    for (index, part) in coloured.split('\u{1b}').enumerate() {
        let text = part.split_once('m').map(|(color, text)| (color.trim_start_matches('['), text));
        match text {
            Some((color, text)) if index > 0 && color.bytes().all(|byte| byte.is_ascii_digit()) => rest += text,
            _ => rest += part,
        }
    }
    assert_eq!(rest, plain);
}

/// Runs a command on a terminal with `columns` columns, and returns its output.
fn on_terminal(command: &mut Command, columns: u16) -> String {
    let (mut person, program) = terminal(columns);
    let input = program.try_clone().expect("a descriptor");
    let mut child = command.stdin(input).stdout(program).stderr(Stdio::null()).spawn().expect("dormouse runs");
    // The command must not keep the other side open.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut shown = Vec::new();
    // An error here means that the other side is closed.
    let _ = person.read_to_end(&mut shown);
    child.wait().expect("it ends");
    String::from_utf8(shown).expect("it prints text")
}

#[test]
fn lines_for_people_fit_the_width_of_the_terminal() {
    let mut trace = TraceBuilder::new();
    let fields = [
        ("path", FieldType::scalar(Kind::Str)),
        ("note", FieldType::scalar(Kind::Str)),
        ("bytes", FieldType::scalar(Kind::U64)),
    ];
    let class = trace.class("provider", "an_event_whose_name_is_long", &fields);
    let stream = trace.stream(0);
    for len in 0..300u64 {
        let (path, note) = ("/日本".repeat(len as usize / 3), "x".repeat(len as usize));
        let values = [Value::Str(path.as_bytes()), Value::Str(note.as_bytes()), Value::U64(len)];
        trace.event(stream, len, 123_456, 123_457, class, &values);
    }
    let trace = trace.finish();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("metadata"), &trace.metadata).expect("a file");
    std::fs::write(dir.path().join("cpu_0"), &trace.streams[1]).expect("a file");
    for columns in [20, 80, 120, 200] {
        let mut command = Command::new(DORMOUSE);
        command.args(["view", "--no-pager"]).arg(dir.path()).env("TZ", "UTC").env("NO_COLOR", "1");
        let shown = on_terminal(&mut command, columns);
        let lines: Vec<&str> = shown.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 300);
        // Only the characters `日本` of the paths are two columns wide.
        let width = |line: &str| line.chars().map(|c| if "日本".contains(c) { 2 } else { 1 }).sum::<usize>();
        assert!(lines.iter().all(|line| width(line) <= columns.into()), "{columns}: {shown}");
        let cut = lines.iter().filter(|line| line.contains('…')).count();
        assert!(cut >= 150, "{columns}: {cut}");
        // Long values leave room for the fields after them.
        assert!(columns < 200 || lines.iter().all(|line| line.contains("bytes=")), "{shown}");
    }
}

/// Returns the directory of a trace with `events` events, `e n=0` and so on.
fn counting(events: u64) -> tempfile::TempDir {
    let mut trace = TraceBuilder::new();
    let class = trace.class("p", "e", &[("n", FieldType::scalar(Kind::U64))]);
    let stream = trace.stream(0);
    (0..events).for_each(|n| trace.event(stream, n, 1, 1, class, &[Value::U64(n)]));
    let dir = tempfile::tempdir().expect("a directory");
    trace.finish().write(dir.path());
    dir
}

/// Runs `dormouse view` with a pager on a terminal. Returns the terminal's output and the exit code.
fn paged(dir: &Path, pager: &str, options: &[&str]) -> (String, Option<i32>) {
    let (mut person, program) = terminal(120);
    let input = program.try_clone().expect("a descriptor");
    let mut command = Command::new(DORMOUSE);
    command.arg("view").arg(dir).args(options).env("PAGER", pager).env("NO_COLOR", "1").env("TZ", "UTC");
    let errors = program.try_clone().expect("a descriptor");
    let mut child = command.stdin(input).stdout(program).stderr(errors).spawn().expect("dormouse runs");
    drop(command);
    let mut shown = Vec::new();
    // An error here means that the other side is closed.
    let _ = person.read_to_end(&mut shown);
    (String::from_utf8(shown).expect("it prints text"), child.wait().expect("it ends").code())
}

/// Numbers of events: few, and more than a pipe holds.
const COUNTS: [u64; 2] = [3, 20_000];

#[test]
fn a_pager_that_fails_loses_nothing() {
    for count in COUNTS {
        let dir = counting(count);
        // A missing program, an immediate failure, a later failure, not a program, a wrong option, a signal.
        for pager in
            ["no-such-pager-of-dormouse", "false", "sleep 0.1; exit 3", "/", "head --no-such-option", "kill -9 $$"]
        {
            let (shown, code) = paged(dir.path(), pager, &[]);
            assert_eq!(code, Some(0), "{pager}: {shown}");
            assert!(shown.contains(&format!("the pager `{pager}` failed")), "{pager}: {shown}");
            let numbers: Vec<u64> =
                shown.lines().filter_map(|line| line.split_once(" n=")?.1.trim().parse().ok()).collect();
            assert!(numbers.iter().copied().eq(0..count), "{pager}: {} of {count}", numbers.len());
        }
    }
}

#[test]
fn a_pager_may_stop_reading_at_any_time() {
    for count in COUNTS {
        let dir = counting(count);
        for (pager, expected) in [
            ("cat", count),
            ("  cat  ", count),
            ("", count),
            ("cat -", count),
            ("sleep 0.1; cat", count),
            ("sed -n '1,2p'", 2),
            ("head -n 1", 1),
            // A failure after it has read something is ignored.
            ("head -n 2; exit 5", 2),
            ("sh -c 'sed s/n=/n=/ | cat'", count),
            ("true", 0),
        ] {
            let (shown, code) = paged(dir.path(), pager, &[]);
            assert_eq!(code, Some(0), "{pager}: {shown}");
            assert!(!shown.contains("has failed"), "{pager}: {shown}");
            assert_eq!(shown.lines().filter(|line| line.contains(" n=")).count() as u64, expected, "{pager}");
        }
    }
    // The exit code depends on the trace, not on the pager.
    let dir = counting(3);
    std::fs::write(dir.path().join("cpu_9"), "no packet").expect("a file");
    for pager in ["cat -", "false"] {
        let (shown, code) = paged(dir.path(), pager, &[]);
        assert!(shown.contains("warning: ") && shown.contains(" n=2"), "{pager}: {shown}");
        assert_eq!(code, Some(1), "{pager}: {shown}");
    }
}
