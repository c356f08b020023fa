//! `dormouse open` of a live session: shows the existing events, and later ones when the trace is read again.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use dormouse_e2e::run::dormouse;
use dormouse_testing::wait_until;

const LIVE: &str = env!("CARGO_BIN_EXE_e2e-live");

/// A child process that is killed when this is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(host: &str, target: &str) -> String {
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_live_session_can_be_read_on() {
    let place = tempfile::tempdir().unwrap();
    let start = |command: &mut Command| {
        command.env("XDG_RUNTIME_DIR", place.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut live = Ended(start(Command::new(LIVE).arg(place.path().join("rounds"))));
    let mut line = String::new();
    BufReader::new(live.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let trace = place.path().join("trace");
    let armed = Command::new(dormouse())
        .args(["arm", &live.0.id().to_string(), "live:*", "-o"])
        .arg(&trace)
        .env("XDG_RUNTIME_DIR", place.path())
        .output()
        .unwrap();
    assert!(armed.status.success(), "{}", String::from_utf8_lossy(&armed.stderr));
    // Opens the trace repeatedly until there are whole packets: no event signals when one is written.
    let mut opened = None;
    wait_until("it is opened", || {
        let mut page = Ended(start(Command::new(dormouse()).arg("open").arg(&trace).arg("--no-browser")));
        let mut url = String::new();
        BufReader::new(page.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
        opened = url.starts_with("http://").then_some((page, url));
        opened.is_some()
    });
    let (opened, url) = opened.unwrap();
    let (host, one_time) = url.trim_end().strip_prefix("http://").unwrap().split_once('/').unwrap();
    let answer = get(host, &format!("/{one_time}"));
    let page = answer.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().to_owned();
    let first = get(host, &page);
    assert!(first.contains("<!doctype html>"), "{first:.200}");
    // Later events change the page.
    wait_until("the session goes on, and so does the page", || {
        let again = get(host, &format!("{page}again"));
        assert!(again.starts_with("HTTP/1.1 200"), "{again:.300}");
        get(host, &page) != first
    });
    drop(opened);
}
