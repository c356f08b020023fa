//! A pantry: a server that stores texts by name, takes one request per line, and is tuned by its operator while clients
//! use it.
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
//! Log level, batch size and feature flag are read for every request. They are immediate values and a static branch, so
//! a request does not pay for their being changeable.

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
    /// Highest level at which events are logged.
    static LOG_LEVEL: u8 = WARNINGS;
    /// Number of requests of a client that are answered under one lock and with one write.
    static BATCH_SIZE: u32 = 16;
}
/// Whether answers say how often their text has been written.
static SHOW_VERSIONS: StaticKey = StaticKey::new();

tunable!(LOG_LEVEL, "pantry.log_level", "0 errors, 1 bad requests, 2 connections, 3 batches", ERRORS..=BATCHES);
tunable!(BATCH_SIZE, "pantry.batch_size", "requests answered per batch", 1..=1024);
tunable!(SHOW_VERSIONS, "pantry.show_versions", "answers include a text's write count");

/// Prints a line on stderr. The line is formatted only if its level is logged.
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
    /// Returns the answers to requests, one line each.
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

    /// Serves one client until it closes the connection.
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let client = stream.peer_addr()?;
        log!(CONNECTIONS, "{client} comes");
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut writer = stream;
        let mut requests = Vec::new();
        let mut line = String::new();
        // Waits for one line, and adds the lines that the buffer already holds, up to the batch size.
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
