//! `dormouse open`: the program that serves the page.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::Value;
use dormouse_traces::TraceBuilder;
use tempfile::TempDir;

use crate::DORMOUSE;

fn trace() -> TempDir {
    let mut builder = TraceBuilder::new();
    let class = builder.class("app", "tick", &[("id", FieldType::scalar(Kind::U64))]);
    let cpu = builder.stream(0);
    for id in 0..10 {
        builder.event(cpu, 1000 * id, 7, 7, class, &[Value::U64(id)]);
    }
    let dir = tempfile::tempdir().unwrap();
    builder.finish().write(dir.path());
    dir
}

/// Starts the command, and reads the address that it prints.
fn open(trace: &TempDir, options: &[&str]) -> (Child, String) {
    let mut child = Command::new(DORMOUSE)
        .arg("open")
        .arg(trace.path())
        .args(options)
        // No browser is opened, because standard output is not a terminal.
        .env("DISPLAY", ":0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
    (child, url.trim_end().to_owned())
}

fn get(host: &str, target: &str) -> String {
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn end(child: Child, signal: i32) -> (Option<i32>, String) {
    // SAFETY: kill(2) accesses no memory of this process. The child has not been waited for, so its id cannot belong to
    // another process.
    unsafe { libc::kill(child.id() as i32, signal) };
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn open_prints_an_address_and_ends_at_signals() {
    let trace = trace();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let (child, url) = open(&trace, &["--no-browser"]);
        let (host, one_time) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        assert!(host.starts_with("127.0.0.1:") && one_time.len() == 33, "{url}");
        let answer = get(host, &format!("/{one_time}"));
        let page = answer.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().to_owned();
        assert!(get(host, &page).contains("<!doctype html>"));
        // The trace is closed, so there is nothing more to read.
        assert!(get(host, &format!("{page}again")).starts_with("HTTP/1.1 404"));
        let (code, errors) = end(child, signal);
        assert_eq!(code, Some(0), "{errors}");
        assert!(errors.ends_with("dormouse: this address works once; Ctrl-C ends it\n"), "{errors}");
    }
}

#[test]
fn open_ends_after_the_idle_timeout() {
    let (child, _) = open(&trace(), &["--idle-timeout", "1ms"]);
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.ends_with("dormouse: no requests for --idle-timeout\n"), "{errors}");
}

#[test]
fn open_reports_what_it_cannot_serve() {
    let trace = trace();
    let (child, url) = open(&trace, &[]);
    let port = url.split([':', '/']).nth(4).unwrap();
    let cases: [(&[&str], &str); 4] = [
        (&["--port", port], "cannot listen on 127.0.0.1, port"),
        (&["-e", "no:*"], "no event class of this trace matches no:*"),
        (&["--pairs", "app:tick..none"], "none"),
        (&["--idle-timeout", "soon"], "soon"),
    ];
    for (options, expected) in cases {
        let output = Command::new(DORMOUSE).arg("open").arg(trace.path()).args(options).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {errors}");
        assert!(errors.contains(expected) && output.stdout.is_empty(), "{options:?}: {errors}");
    }
    end(child, libc::SIGINT);
}
