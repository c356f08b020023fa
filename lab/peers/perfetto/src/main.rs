//! Engine `perfetto`: instant track events of the Perfetto SDK, through its Rust bindings with the C++ SDK in the program.
//!
//! # Configuration
//! The in-process backend: the SDK's own service thread moves chunks from the shared-memory buffer to the trace buffer. That is a
//! ring of 64 MiB, as for a flight recorder; the shared-memory buffer has 4 MiB instead of 256 KiB, so that a burst fits. Names are
//! interned, the clock is the SDK's default. Category `armed` is enabled, `dormant` is not.
//!
//! # Cases
//! One event is one packet. Fields are debug annotations; the crate has no other kind for values of an application's own.
//!
//! # Counts
//! When the tracing ends, the trace is read and its packets with track events are counted. What the ring overwrote is not there:
//! the count is exact only as long as everything fits. Losses that the SDK noticed on the way to the ring are counted by
//! the chunks after which they happened, not by events.
//!
//! Source: documentation of perfetto_sdk; protos/perfetto/common/trace_stats.proto.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dormouse_lab_harness::{Case, Engine};
use dormouse_lab_peer::{EMPTY, EMPTY_SITES_CASES, Sites, each, each_site, flat, report, sites, text, version};
use perfetto_sdk::heap_buffer::HeapBuffer;
use perfetto_sdk::pb_decoder::{PbDecoder, PbDecoderField};
use perfetto_sdk::pb_msg::{PbMsg, PbMsgWriter};
use perfetto_sdk::producer::{Backends, Producer, ProducerInitArgsBuilder};
use perfetto_sdk::protos::config::data_source_config::DataSourceConfig;
use perfetto_sdk::protos::config::trace_config::{
    BufferConfigFillPolicy, TraceConfig, TraceConfigBufferConfig, TraceConfigDataSource,
};
use perfetto_sdk::protos::config::track_event::track_event_config::TrackEventConfig;
use perfetto_sdk::tracing_session::TracingSession;
use perfetto_sdk::track_event::{EventContext, TrackEvent, TrackEventDebugArg};
use perfetto_sdk::track_event_instant;

/// The macro's module, whose functions it does not document.
#[allow(missing_docs)]
mod te {
    perfetto_sdk::track_event_categories! {
        pub mod categories {
            ("armed", "Events that are recorded", []),
            ("dormant", "Events that are not", []),
        }
    }
}
use te::categories as perfetto_te_ns;

/// The trace buffer.
const BUFFER_KB: u32 = 64 << 10;
/// The buffer between the threads that record and the service's thread.
const SHARED_KB: u32 = 4 << 10;

// Numbers of fields: `Trace.packet`; `TracePacket.track_event` and `.trace_stats`; `TraceStats.buffer_stats`;
// `BufferStats.chunks_overwritten` and `.trace_writer_packet_loss`.
const PACKET: u32 = 1;
const TRACK_EVENT: u32 = 11;
const TRACE_STATS: u32 = 35;
const BUFFER_STATS: u32 = 1;
const CHUNKS_OVERWRITTEN: u32 = 3;
const PACKET_LOSS: u32 = 19;

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

/// The tracing session.
struct Session(TracingSession);

// SAFETY: the SDK's sessions may be used from any thread, one at a time (perfetto/public/abi/tracing_session_abi.h: the handle
// posts to the SDK's own thread); the mutex above sees to the latter.
unsafe impl Send for Session {}

fn config() -> Vec<u8> {
    let writer = PbMsgWriter::new();
    let heap = HeapBuffer::new(writer.stream_writer());
    let Ok(mut message) = PbMsg::new(&writer) else { return Vec::new() };
    let mut config = TraceConfig { msg: &mut message };
    config.set_buffers(|buffer: &mut TraceConfigBufferConfig| {
        buffer.set_size_kb(BUFFER_KB).set_fill_policy(BufferConfigFillPolicy::RingBuffer);
    });
    config.set_data_sources(|source: &mut TraceConfigDataSource| {
        source.set_config(|source: &mut DataSourceConfig| {
            source.set_name("track_event").set_track_event_config(|events: &mut TrackEventConfig| {
                events.set_enabled_categories("armed").set_disabled_categories("*");
            });
        });
    });
    message.finalize();
    let mut bytes = vec![0; writer.stream_writer().get_written_size()];
    heap.copy_into(&mut bytes);
    bytes
}

extern "C" fn armed_none(iterations: u64, first: u64) {
    each(iterations, first, |_| track_event_instant!("armed", "none"));
}

extern "C" fn armed_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| {
        track_event_instant!("armed", "u64", |event: &mut EventContext| {
            event.add_debug_arg("number", TrackEventDebugArg::Uint64(number));
        });
    });
}

extern "C" fn armed_ints3(iterations: u64, first: u64) {
    each(iterations, first, |number| {
        track_event_instant!("armed", "ints3", |event: &mut EventContext| {
            event.add_debug_arg("a", TrackEventDebugArg::Uint64(number));
            event.add_debug_arg("b", TrackEventDebugArg::Int64(-(number as i64)));
            event.add_debug_arg("c", TrackEventDebugArg::Uint64(u64::from(number as u32)));
        });
    });
}

extern "C" fn armed_str32(iterations: u64, first: u64) {
    each(iterations, first, |number| {
        track_event_instant!("armed", "str32", |event: &mut EventContext| {
            event.add_debug_arg("text", TrackEventDebugArg::String(text(number)));
        });
    });
}

extern "C" fn dormant_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| {
        track_event_instant!("dormant", "u64", |event: &mut EventContext| {
            event.add_debug_arg("number", TrackEventDebugArg::Uint64(number));
        });
    });
}

/// A function of its own, with an event of its own.
macro_rules! site {
    ($category:literal, $number:expr) => {{
        #[inline(never)]
        fn site(value: u64) {
            // Its number is in it, so that no two are the same function; the empty sites have theirs too.
            std::hint::black_box(value ^ $number);
            track_event_instant!($category, "site", |event: &mut EventContext| {
                event.add_debug_arg("number", TrackEventDebugArg::Uint64(value));
            });
        }
        site
    }};
}

macro_rules! dormant_site {
    ($a:literal $b:literal $c:literal) => {
        site!("dormant", $a * 100 + $b * 10 + $c)
    };
}

static DORMANT_SITES: Sites = sites!(dormant_site);

extern "C" fn dormant_sites_10(iterations: u64, first: u64) {
    each_site::<10>(iterations, first, flat(&DORMANT_SITES));
}

extern "C" fn dormant_sites_1000(iterations: u64, first: u64) {
    each_site::<1000>(iterations, first, flat(&DORMANT_SITES));
}

/// The messages that a message has in a field, and its numbers in another.
fn messages(bytes: &[u8], field: u32) -> impl Iterator<Item = &[u8]> {
    PbDecoder::new(bytes).filter_map(move |item| match item {
        Ok((number, PbDecoderField::Delimited(bytes))) if number == field => Some(bytes),
        _ => None,
    })
}

fn number(bytes: &[u8], field: u32) -> u64 {
    let numbers = PbDecoder::new(bytes).filter_map(|item| match item {
        Ok((number, PbDecoderField::Varint(value))) if number == field => Some(value),
        _ => None,
    });
    numbers.sum()
}

fn arrived() -> Result<u64, String> {
    let mut slot = SESSION.lock().map_err(|error| error.to_string())?;
    let Session(mut session) = slot.take().ok_or("the tracing has ended before")?;
    session.flush_blocking(Duration::from_secs(10));
    session.stop_blocking();
    let trace = Arc::new(Mutex::new(Vec::new()));
    let filled = trace.clone();
    session.read_trace_blocking(move |bytes, _| {
        if let Ok(mut trace) = filled.lock() {
            trace.extend_from_slice(bytes);
        }
    });
    let trace = trace.lock().map_err(|error| error.to_string())?;
    let (mut events, mut overwritten, mut losses) = (0, 0, 0);
    for packet in messages(&trace, PACKET) {
        events += messages(packet, TRACK_EVENT).count() as u64;
        for stats in messages(packet, TRACE_STATS) {
            for buffer in messages(stats, BUFFER_STATS) {
                overwritten = number(buffer, CHUNKS_OVERWRITTEN);
                losses = number(buffer, PACKET_LOSS);
            }
        }
    }
    let text = format!("in the ring; {overwritten} chunks overwritten, losses after {losses} chunks");
    report(events, 0, &text)
}

fn start() -> Result<(), String> {
    let arguments = ProducerInitArgsBuilder::new().backends(Backends::IN_PROCESS).shmem_size_hint_kb(SHARED_KB);
    Producer::init(arguments.build());
    TrackEvent::init();
    perfetto_te_ns::register().map_err(|error| error.to_string())?;
    let mut session = TracingSession::in_process().map_err(|error| error.to_string())?;
    session.setup(&config());
    session.start_blocking();
    *SESSION.lock().map_err(|error| error.to_string())? = Some(Session(session));
    Ok(())
}

/// Has the SDK's log, which tells every session's start, go nowhere.
fn hush() -> std::io::Result<()> {
    let nowhere = std::fs::File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stderr(nowhere).map_err(Into::into)
}

fn main() -> ExitCode {
    let stderr = rustix::io::dup(std::io::stderr());
    if let Err(error) = hush().map_err(|error| error.to_string()).and_then(|()| start()) {
        if let Ok(stderr) = stderr {
            let _ = rustix::stdio::dup2_stderr(stderr);
        }
        eprintln!("perfetto: {error}");
        return ExitCode::from(2);
    }
    let mut cases = vec![EMPTY];
    cases.extend(EMPTY_SITES_CASES);
    cases.extend([
        Case { name: "armed_none", run: armed_none, events_per_iteration: 1 },
        Case { name: "armed_u64", run: armed_u64, events_per_iteration: 1 },
        Case { name: "armed_ints3", run: armed_ints3, events_per_iteration: 1 },
        Case { name: "armed_str32", run: armed_str32, events_per_iteration: 1 },
        Case { name: "dormant_u64", run: dormant_u64, events_per_iteration: 0 },
        Case { name: "dormant_sites_10", run: dormant_sites_10, events_per_iteration: 0 },
        Case { name: "dormant_sites_1000", run: dormant_sites_1000, events_per_iteration: 0 },
    ]);
    let version = version("perfetto-sdk");
    dormouse_lab_harness::main(&Engine { name: "perfetto", version, cases, arrived: Some(arrived) })
}
