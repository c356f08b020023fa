//! A pantry: a server that keeps texts under names, one request a line, and that its operator tunes while clients talk to it.
//!
//! ```text
//!   pantry [PORT]
//! ```
//! It prints its process id and its address. Requests are `put NAME TEXT` and `get NAME`. While it runs:
//!
//! ```text
//!   dormouse imv list PID
//!   dormouse imv set PID pantry.batch_size 64 pantry.log_level 3
//!   dormouse imv set PID pantry.show_versions on
//! ```
//!
//! What it reads for every request, log level, batch size and feature flag, stands in its instructions: no request pays for
//! that it can be changed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use dormouse::imv::{StaticKey, imv, imv_read, static_branch, tunable};

const ERRORS: u8 = 0;
const WARNINGS: u8 = 1;
const CONNECTIONS: u8 = 2;
const BATCHES: u8 = 3;

imv! {
    /// Up to which level events are logged.
    static LOG_LEVEL: u8 = WARNINGS;
    /// How many requests of a client are answered under one lock and with one write.
    static BATCH_SIZE: u32 = 16;
}
/// Whether answers tell how often their text has been written.
static SHOW_VERSIONS: StaticKey = StaticKey::new();

tunable!(LOG_LEVEL, "pantry.log_level", "0 errors, 1 bad requests, 2 connections, 3 batches", ERRORS..=BATCHES);
tunable!(BATCH_SIZE, "pantry.batch_size", "requests answered at once", 1..=1024);
tunable!(SHOW_VERSIONS, "pantry.show_versions", "answers tell how often a text was written");

/// A line on stderr, which is made only where it is wanted.
macro_rules! log {
    ($level:expr, $($text:tt)*) => {
        if imv_read!(LOG_LEVEL) >= $level {
            eprintln!($($text)*);
        }
    };
}

#[derive(Debug, Default)]
struct Jar {
    text: String,
    version: u64,
}

#[derive(Debug, Default)]
struct Pantry {
    jars: Mutex<HashMap<String, Jar>>,
}

impl Pantry {
    /// Answers requests, a line each.
    fn answer(&self, requests: &[String]) -> String {
        let mut jars = self.jars.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answers = String::new();
        for request in requests {
            let words: Vec<&str> = request.splitn(3, ' ').collect();
            match *words.as_slice() {
                ["put", name, text] => {
                    let jar = jars.entry(name.into()).or_default();
                    *jar = Jar { text: text.into(), version: jar.version + 1 };
                    answers.push_str("ok");
                }
                ["get", name] => match jars.get(name) {
                    Some(jar) => {
                        answers.push_str(&jar.text);
                        if static_branch!(SHOW_VERSIONS) {
                            answers.push_str(&format!(" (version {})", jar.version));
                        }
                    }
                    None => answers.push_str("nothing there"),
                },
                _ => {
                    log!(WARNINGS, "bad request: {request}");
                    answers.push_str("say `put NAME TEXT` or `get NAME`");
                }
            }
            answers.push('\n');
        }
        answers
    }

    /// Talks to one client until it hangs up.
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let client = stream.peer_addr()?;
        log!(CONNECTIONS, "{client} comes");
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        let mut requests = Vec::new();
        let mut line = String::new();
        // One line is waited for; what has come with it is taken along.
        while reader.read_line(&mut line)? > 0 {
            requests.push(line.trim_end().to_string());
            line.clear();
            if (requests.len() as u32) < imv_read!(BATCH_SIZE) && reader.buffer().contains(&b'\n') {
                continue;
            }
            log!(BATCHES, "{client} has a batch of {}", requests.len());
            dormouse::event!(pantry.batch, port = client.port(), size = requests.len() as u32);
            writer.write_all(self.answer(&requests).as_bytes())?;
            requests.clear();
        }
        log!(CONNECTIONS, "{client} goes");
        Ok(())
    }
}

fn main() -> ExitCode {
    let port = match std::env::args().nth(1).map(|argument| argument.parse()) {
        None => 0,
        Some(Ok(port)) => port,
        Some(Err(_)) => {
            eprintln!("usage: pantry [PORT]");
            return ExitCode::from(2);
        }
    };
    let listening = TcpListener::bind(("127.0.0.1", port)).and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = match listening {
        Ok(listening) => listening,
        Err(error) => {
            eprintln!("cannot listen on port {port}: {error}; another one may be free");
            return ExitCode::FAILURE;
        }
    };
    println!("process {} at {address}", std::process::id());
    let pantry = Pantry::default();
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            let pantry = &pantry;
            scope.spawn(move || {
                if let Err(error) = stream.and_then(|stream| pantry.serve(stream)) {
                    log!(ERRORS, "a client is lost: {error}");
                }
            });
        }
    });
    ExitCode::SUCCESS
}
