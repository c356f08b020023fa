//! The interactive shell on a terminal.

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

/// Time without output after which the shell counts as hung.
const WATCHDOG: Duration = Duration::from_secs(60);

const INTERRUPT: &str = "\x03";
const END: &str = "\x04";
const UP: &str = "\x1b[A";
/// Sequence that turns on bracketed paste, which the editor does while a line is typed.
const LINE_BEGINS: &str = "\x1b[?2004h";

/// A running shell, and the keyboard side of its terminal.
struct Shell {
    program: Child,
    keys: File,
    shown: Receiver<Vec<u8>>,
    /// Output that no call has waited for yet.
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
            // The read fails when the other side is closed.
            while let Ok(count) = screen.read(&mut bytes)
                && tell.send(bytes[..count].to_vec()).is_ok()
            {}
        });
        // Dropping the command closes its descriptors, so that only the program has the terminal open.
        drop(command);
        Shell { program, keys: person, shown, rest: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a text and returns the output before it.
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

    /// Types a query whose result contains `answer`. Returns the output up to the next prompt.
    fn ask(&mut self, keys: &str, answer: &str) -> String {
        self.press(keys);
        self.wait_for(answer) + answer + &self.prompt()
    }

    /// Waits until the next line can be typed. The editor can draw the prompt of a line several times, but it announces
    /// a new line to the terminal once. Input before that can be lost.
    fn prompt(&mut self) -> String {
        self.wait_for(LINE_BEGINS) + &self.wait_for("dormouse> ")
    }

    /// Interrupts the running query.
    fn interrupt(&mut self) {
        let pid = Pid::from_child(&self.program);
        while !self.rest.contains("interrupted") {
            kill_process(pid, Signal::INT).unwrap();
            // A query that has not started yet misses the signal, and no output tells when it has started: send it
            // again.
            if let Ok(bytes) = self.shown.recv_timeout(Duration::from_millis(100)) {
                self.rest += &String::from_utf8_lossy(&bytes);
            }
        }
        self.wait_for("interrupted");
        self.prompt();
    }

    /// Types the last keys, and waits for the shell to exit.
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
fn the_shell_completes_interrupts_and_remembers_queries() {
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
    let help = shell.prompt();
    assert!(help.contains("ends with a semicolon") && help.contains(".tables"), "{help}");
    shell.ask("select count(*) as c from events;\r", "| 2000 |");
    // Tab completes a name with its quotes.
    shell.ask("select max(bytes) as m from http\t;\r", "| 1999 |");
    // A query over several lines ends at the semicolon.
    shell.press("select min(bytes) + 7 as m\r");
    shell.ask("from \"http:request\";\r", "| 7 |");
    shell.ask("select byte from \"http:request\";\r", "there is no column byte; did you mean bytes?");
    let answer = shell.ask(".tables\r", "http:request");
    assert!(answer.contains("pairs"), "{answer}");
    shell.ask(".named busiest\r", "http:request");
    // Ctrl-C discards a line.
    shell.press(&format!("select 11 + 22 as c;{INTERRUPT}"));
    shell.prompt();
    let answer = shell.ask("select 50 + 5 as c;\r", "| 55 |");
    assert!(!answer.contains("| 33 |"), "{answer}");

    // A query that would take very long is interrupted, and the next one runs.
    shell.press(
        "select count(*) from events a, events b, events c, events d where a.tid + b.tid + c.tid + d.tid > 9;\r",
    );
    shell.wait_for("> 9;");
    shell.wait_for("\r\n");
    shell.interrupt();
    shell.ask("select 40 + 2 as c;\r", "| 42 |");
    assert_eq!(shell.end(END).code(), Some(0));

    let mut shell = Shell::start(&trace, &state);
    shell.prompt();
    shell.ask(&format!("{UP}\r"), "| 42 |");
    assert_eq!(shell.end(".quit\r").code(), Some(0));
}
