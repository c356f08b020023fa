//! Serves a report on loopback: the page, and the data that it requests.
//!
//! ```text
//!   GET /ONE-TIME/        once ─▶ 303 to /TOKEN/
//!   GET /TOKEN/           the page
//!   GET /TOKEN/part?…     items of a part of the time, or with a key      [`Served::part`]
//!   GET /TOKEN/fields?…   the fields of one item                          [`Served::fields`]
//!   GET /TOKEN/find?…     items with a value                              [`Served::find`]
//!   GET /TOKEN/again      reads the trace again, if it still grows
//! ```
//!
//! # Trust
//! Every user and every browser page on this machine can connect. Both tokens are 128 random bits. The first one is in
//! the command line of the program that opens the browser, where other users can read it: it works once, and a later
//! client gets an error. The second one is only in the browser. Requests with a foreign host name (DNS rebinding), from
//! other pages, with other methods, with a body, or with too long a header are rejected before the token is checked. A
//! connection has one request, which must arrive within 5 s, and at most 32 connections are open.

mod http;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::page::policy;
use crate::{Asked, Part, Served};
use http::{Answer, answer, parse, receive};

/// Maximum number of connections. A browser opens six, and a few that it does not use.
const CONNECTIONS_MAX: u32 = 32;

/// Reads the trace again, with what was added since.
pub type Again = Box<dyn Fn() -> Result<Served, String> + Send + Sync>;

/// Reason why the server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was stopped.
    Stopped,
    /// There was no request for the idle time.
    Idle,
}

/// A report that waits for requests.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    port: u16,
    state: Arc<State>,
}

struct State {
    served: RwLock<Arc<Served>>,
    again: Option<Again>,
    /// Held while the trace is read again.
    is_reading: Mutex<()>,
    one_time: String,
    is_used: AtomicBool,
    token: String,
    connections: AtomicU32,
    asked: Mutex<Instant>,
    is_ended: AtomicBool,
}

impl std::fmt::Debug for State {
    /// Does not show the tokens.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

/// Returns 128 random bits in hexadecimal.
fn token() -> std::io::Result<String> {
    let mut bytes = [0_u8; 16];
    // So few bytes are never returned in part.
    if getrandom(&mut bytes, GetRandomFlags::empty())? != bytes.len() {
        return Err(std::io::Error::other("the system has no random numbers"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares in time that does not depend on the position of a difference.
fn is_same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

impl Server {
    /// Listens on 127.0.0.1. `port` 0 picks a free one. `again`: reads the trace again, if it grows.
    ///
    /// # Errors
    /// The port is in use or not permitted.
    pub fn new(port: u16, served: Served, again: Option<Again>) -> std::io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        // `accept` must not block if a connection is gone by the time it is called.
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let state = State {
            served: RwLock::new(Arc::new(served)),
            again,
            is_reading: Mutex::new(()),
            one_time: token()?,
            is_used: AtomicBool::new(false),
            token: token()?,
            connections: AtomicU32::new(0),
            asked: Mutex::new(Instant::now()),
            is_ended: AtomicBool::new(false),
        };
        Ok(Server { listener, port, state: Arc::new(state) })
    }

    /// Returns the address for the browser. It works once.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.state.one_time)
    }

    /// Serves until `stop` is readable, or until there was no request for the time `idle`.
    ///
    /// # Errors
    /// Waiting for connections failed.
    pub fn run(&self, stop: impl AsFd, idle: Option<Duration>) -> std::io::Result<Ended> {
        loop {
            let left = match idle {
                None => None,
                Some(idle) => match idle.checked_sub(self.idle()).filter(|left| !left.is_zero()) {
                    Some(left) => Some(left),
                    None => return Ok(Ended::Idle),
                },
            };
            let timeout =
                left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            let mut fds =
                [&self.listener.as_fd(), &stop.as_fd()].map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !fds[1].revents().is_empty() {
                return Ok(Ended::Stopped);
            }
            if let Ok((stream, _)) = self.listener.accept() {
                self.connected(stream);
            }
        }
    }

    /// Returns the time since the last request.
    fn idle(&self) -> Duration {
        let asked = self.state.asked.lock().map_or_else(|poisoned| *poisoned.into_inner(), |asked| *asked);
        asked.elapsed()
    }

    fn connected(&self, mut stream: TcpStream) {
        let (state, port) = (Arc::clone(&self.state), self.port);
        // A connection above the limit is closed. The count is one of running threads; a stale value is off by a few
        // connections.
        if state.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            state.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let counted = Arc::clone(&state);
        let work = move || {
            let _ = stream.set_nonblocking(false);
            // A browser connects before it sends a request. A request that arrives after the end gets no response, so
            // that the page reports that the server is gone.
            if let Some(head) = receive(&mut stream).filter(|_| !state.is_ended.load(Ordering::Relaxed)) {
                let given = parse(&head, port).map_or_else(|refused| refused, |request| state.answer(&request.target));
                // Failure means that the client is gone.
                let _ = answer(&mut stream, &given);
            }
            state.connections.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().spawn(work).is_err() {
            counted.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.state.is_ended.store(true, Ordering::Relaxed);
    }
}

impl State {
    fn answer(&self, target: &str) -> Answer {
        let nothing = || Answer::refused("404 Not Found", "there is nothing here");
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let Some((token, rest)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
            return nothing();
        };
        if is_same(token, &self.one_time) && rest.is_empty() && query.is_empty() {
            if self.is_used.swap(true, Ordering::Relaxed) {
                let why = "this address works once, and has been used: the page is in the browser that has opened it first. If that was not yours, end \
                           `dormouse open`. Otherwise `dormouse open` makes another address.";
                return Answer::refused("410 Gone", why);
            }
            let location = Some(format!("/{}/", self.token));
            return Answer { location, ..Answer::refused("303 See Other", "the page is elsewhere") };
        }
        if !is_same(token, &self.token) {
            return nothing();
        }
        if let Ok(mut asked) = self.asked.lock() {
            *asked = Instant::now();
        }
        let served =
            self.served.read().map_or_else(|poisoned| Arc::clone(&poisoned.into_inner()), |served| Arc::clone(&served));
        let numbers = numbers(query);
        let number = |name: &str| numbers.as_ref().and_then(|numbers| numbers.get(name)).copied();
        let small = |name: &str| number(name).and_then(|number| u32::try_from(number).ok());
        match rest {
            "" if query.is_empty() => Answer {
                status: "200 OK",
                kind: "text/html; charset=utf-8",
                policy: Some(policy(true)),
                location: None,
                body: served.page().to_vec(),
            },
            "part" => {
                let (Some(begin), Some(end), Some(is_cpu)) = (number("begin"), number("end"), number("cpu")) else {
                    return nothing();
                };
                let is_cpu = is_cpu == 1;
                let part = match (number("step"), number("key"), small("key")) {
                    (Some(step), None, None) => Part::Time { begin, end, is_cpu, step },
                    (None, Some(_), Some(key)) => Part::Key { key, is_cpu, begin, end },
                    _ => return nothing(),
                };
                served.part(part).map_or_else(|why| failed(&why), Answer::bytes)
            }
            "fields" => {
                let asked = (small("thread"), small("name"), number("slice"), number("begin"), number("duration"));
                let (Some(thread), Some(name), Some(is_slice), Some(begin), Some(duration)) = asked else {
                    return nothing();
                };
                match served.fields(&Asked { thread, name, is_slice: is_slice == 1, begin, duration }) {
                    Ok(Some(fields)) => Answer::bytes(fields),
                    Ok(None) => nothing(),
                    Err(why) => failed(&why),
                }
            }
            "find" => match find_of(query) {
                Some((text, is_cpu)) => served.find(&text, is_cpu).map_or_else(|why| failed(&why), Answer::bytes),
                None => nothing(),
            },
            "again" if query.is_empty() => self.again(),
            _ => nothing(),
        }
    }

    fn again(&self) -> Answer {
        let Some(again) = &self.again else { return Answer::refused("404 Not Found", "there is nothing here") };
        // Requests during a reading wait, and then read again.
        let Ok(_reading) = self.is_reading.lock() else {
            return Answer::refused("500 Internal Server Error", "reading has failed");
        };
        match again() {
            Ok(served) => {
                if let Ok(mut kept) = self.served.write() {
                    *kept = Arc::new(served);
                }
                Answer::bytes(Vec::new())
            }
            Err(why) => failed(&why),
        }
    }
}

fn failed(why: &str) -> Answer {
    Answer::refused("500 Internal Server Error", why)
}

/// Parses `text=HEX&cpu=N`, with the hexadecimal bytes of a text; `None` for anything else.
fn find_of(query: &str) -> Option<(String, bool)> {
    let (digits, cpu) = query.strip_prefix("text=")?.split_once("&cpu=")?;
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs.iter().map(|pair| byte(pair)).collect();
    let text = String::from_utf8(bytes.filter(|_| is_plain && rest.is_empty())?).ok()?;
    Some((
        text,
        match cpu {
            "0" => false,
            "1" => true,
            _ => return None,
        },
    ))
}

/// Parses `a=1&b=2`; `None` for anything else.
fn numbers(query: &str) -> Option<BTreeMap<&str, u64>> {
    let pair = |pair: &'_ str| {
        let (name, number) = pair.split_once('=')?;
        let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        Some((pair.get(..name.len())?.len(), is_plain.then(|| number.parse().ok())??))
    };
    let mut numbers = BTreeMap::new();
    for text in query.split('&') {
        let (len, number) = pair(text)?;
        // A name that occurs twice is an error.
        if numbers.insert(&text[..len], number).is_some() {
            return None;
        }
    }
    Some(numbers)
}
