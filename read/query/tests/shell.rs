//! The shell, on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::Value;
use dormouse_testing::terminal::terminal;
use dormouse_traces::TraceBuilder;
use rustix::process::{Pid, Signal, kill_process};

/// What shows nothing for so long hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

const INTERRUPT: &str = "\x03";
const END: &str = "\x04";
const UP: &str = "\x1b[A";

/// A shell, and who types.
struct Shell {
    program: Child,
    keys: File,
    shown: Receiver<Vec<u8>>,
    /// What is shown and has not been waited for.
    rest: String,
}

impl Shell {
    fn start(trace: &Path, state: &Path) -> Shell {
        let (person, side) = terminal(120);
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse-query"));
        command.arg(trace).env("TERM", "xterm").env("XDG_STATE_HOME", state);
        command.stdin(side.try_clone().unwrap()).stdout(side.try_clone().unwrap()).stderr(side);
        let program = command.spawn().unwrap();
        let mut screen = person.try_clone().unwrap();
        let (tell, shown) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The error at the end says that the other side is closed.
            while let Ok(count) = screen.read(&mut bytes)
                && tell.send(bytes[..count].to_vec()).is_ok()
            {}
        });
        // The program has the only descriptors of its side: those of the command close them.
        drop(command);
        Shell { program, keys: person, shown, rest: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// What is shown up to this text.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            if let Some((before, behind)) = self.rest.split_once(text) {
                let (before, behind) = (before.to_string(), behind.to_string());
                self.rest = behind;
                return before;
            }
            let bytes = self.shown.recv_timeout(WATCHDOG);
            let bytes = bytes.unwrap_or_else(|error| panic!("no {text:?} after {:?}: {error}", self.rest));
            self.rest += &String::from_utf8_lossy(&bytes);
        }
    }

    /// What the shell shows of a query, up to the prompt behind it.
    fn ask(&mut self, keys: &str) -> String {
        self.press(keys);
        // The terminal's echo has the query, and what the editor writes anew.
        self.wait_for("\r\n");
        self.wait_for("dormouse> ")
    }

    /// Interrupts the query that was typed.
    fn interrupt(&mut self) {
        let pid = Pid::from_child(&self.program);
        while !self.rest.contains("dormouse> ") {
            kill_process(pid, Signal::INT).unwrap();
            // A query that has not begun yet does not hear it: nothing that is shown tells when it has.
            if let Ok(bytes) = self.shown.recv_timeout(Duration::from_millis(100)) {
                self.rest += &String::from_utf8_lossy(&bytes);
            }
        }
        self.wait_for("dormouse> ");
    }

    /// Nobody types any more.
    fn end(mut self, keys: &str) -> ExitStatus {
        self.press(keys);
        while self.shown.recv_timeout(WATCHDOG).is_ok() {}
        self.program.wait().unwrap()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.program.kill();
    }
}

#[test]
fn queries_are_typed_completed_stopped_and_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, state) = (dir.path().join("trace"), dir.path().join("state"));
    std::fs::create_dir(&trace).unwrap();
    let mut builder = TraceBuilder::new();
    let class = builder.class("http", "request", &[("bytes", FieldType::scalar(Kind::U64))]);
    let stream = builder.stream(0);
    for at in 0..2000 {
        builder.event(stream, at, 1, 1, class, &[Value::U64(at)]);
    }
    builder.finish().write(&trace);

    let mut shell = Shell::start(&trace, &state);
    let help = shell.wait_for("dormouse> ");
    assert!(help.contains("ends with a semicolon") && help.contains(".tables"), "{help}");
    let answer = shell.ask("select count(*) as c from events;\r");
    assert!(answer.contains("| 2000 |"), "{answer}");
    // Tab writes the rest of a name, and its quotes.
    let answer = shell.ask("select max(bytes) as m from http\t;\r");
    assert!(answer.contains("| 1999 |"), "{answer}");
    // Of several lines, the last has the semicolon.
    shell.press("select min(bytes) + 7 as m\r");
    let answer = shell.ask("from \"http:request\";\r");
    assert!(answer.contains("| 7 |"), "{answer}");
    let answer = shell.ask("select byte from \"http:request\";\r");
    assert!(answer.contains("there is no column byte; did you mean bytes?"), "{answer}");
    let answer = shell.ask(".tables\r");
    assert!(answer.contains("http:request") && answer.contains("pairs"), "{answer}");
    let answer = shell.ask(".named busiest\r");
    assert!(answer.contains("http:request"), "{answer}");
    // A line is given up.
    let answer = shell.ask(&format!("select 1{INTERRUPT}"));
    assert!(!answer.contains("| 1 |"), "{answer}");

    // A query that takes longer than anybody waits is stopped, and the next one runs.
    shell.press(
        "select count(*) from events a, events b, events c, events d where a.tid + b.tid + c.tid + d.tid > 9;\r",
    );
    shell.wait_for("> 9;");
    shell.wait_for("\r\n");
    shell.interrupt();
    let answer = shell.ask("select 40 + 2 as c;\r");
    assert!(answer.contains("| 42 |"), "{answer}");
    assert_eq!(shell.end(END).code(), Some(0));

    let mut shell = Shell::start(&trace, &state);
    shell.wait_for("dormouse> ");
    let answer = shell.ask(&format!("{UP}\r"));
    assert!(answer.contains("| 42 |"), "{answer}");
    assert_eq!(shell.end(".quit\r").code(), Some(0));
}
