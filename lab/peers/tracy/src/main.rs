//! Engine `tracy`: zones, plots and messages of Tracy's client.
//!
//! # Configuration
//! The client's thread and its connection, without the crate's extras: no sampling, no system tracing, no crash
//! handler, no broadcast, on the loopback address. Its clock is the timestamp counter. Without a server the client
//! keeps everything in memory for ever, so a thread of this program is the server ([`server`]). It takes and counts the
//! data, if possible on another CPU than the first measured one.
//!
//! # Cases
//! `armed_zone`: a zone, which is two events, its begin and its end. `armed_u64`: a point of a plot, which is a double.
//! `armed_str32`: a message, which the client copies to memory that it allocates. There is no dormant case: a client
//! that is compiled in always records while a server is connected.
//!
//! # Counts
//! The items of these kinds that come out of the connection.
//!
//! Source: Tracy's manual; TracyProtocol.hpp and TracyQueue.hpp of tracy-client-sys.

mod server;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock};

use dormouse_lab_harness::{Case, Engine};
use dormouse_lab_peer::{EMPTY, each, report, settled, text, version};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use tracy_client::{Client, plot_name, span_location};

static CLIENT: OnceLock<Client> = OnceLock::new();
/// Reason why the server ended early.
static FAILURE: Mutex<Option<String>> = Mutex::new(None);

extern "C" fn armed_zone(iterations: u64, first: u64) {
    let Some(client) = CLIENT.get() else { return };
    let location = span_location!("zone");
    each(iterations, first, |_| {
        let _zone = client.clone().span(location, 0);
    });
}

extern "C" fn armed_u64(iterations: u64, first: u64) {
    let Some(client) = CLIENT.get() else { return };
    each(iterations, first, |number| client.plot(plot_name!("u64"), number as f64));
}

extern "C" fn armed_str32(iterations: u64, first: u64) {
    let Some(client) = CLIENT.get() else { return };
    each(iterations, first, |number| client.message(text(number), 0));
}

fn arrived() -> Result<u64, String> {
    let events = settled(|| server::EVENTS.load(Ordering::Relaxed));
    match FAILURE.lock().map_err(|error| error.to_string())?.take() {
        Some(failure) => Err(failure),
        None => report(events, 0, "items of the connection"),
    }
}

/// Keeps the calling thread off the first measured CPU, if there are others.
fn step_aside() {
    let processors = std::env::args().skip_while(|argument| argument != "--cpus").nth(1);
    let first = processors.as_deref().and_then(|list| list.split(',').next()?.parse().ok());
    if let (Some(first), Ok(mut set)) = (first, sched_getaffinity(None)) {
        set.unset(first);
        if set.count() > 0 {
            // If this is refused, the scheduler decides.
            let _ = sched_setaffinity(None, &set);
        }
    }
}

fn start() -> Result<(), String> {
    let _ = CLIENT.set(Client::start());
    let stream = server::connect()?;
    std::thread::spawn(move || {
        step_aside();
        if let Err(error) = server::drain(stream)
            && let Ok(mut failure) = FAILURE.lock()
        {
            *failure = Some(error);
        }
    });
    Ok(())
}

fn main() -> ExitCode {
    if let Err(error) = start() {
        eprintln!("tracy: {error}");
        return ExitCode::from(2);
    }
    let cases = vec![
        EMPTY,
        Case { name: "armed_zone", run: armed_zone, events_per_iteration: 2 },
        Case { name: "armed_u64", run: armed_u64, events_per_iteration: 1 },
        Case { name: "armed_str32", run: armed_str32, events_per_iteration: 1 },
    ];
    let version = version("tracy-client-sys");
    dormouse_lab_harness::main(&Engine { name: "tracy", version, cases, arrived: Some(arrived) })
}
