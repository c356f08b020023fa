//! Engine `perfetto`: instant track events of the Perfetto SDK, by its C interface, with the C++ SDK in the program.
//!
//! # Configuration
//! The in-process backend: the SDK's own service thread moves chunks from the shared-memory buffer to the trace buffer.
//! The trace buffer is a ring of 64 MiB, as for a flight recorder; the shared-memory buffer has 4 MiB instead of 256
//! KiB, so that a burst fits. Names are interned, and the clock is the SDK's default. Category `armed` is enabled,
//! `dormant` is not. The C++ is compiled like the release profile (-O3), without its debug checks (NDEBUG);
//! `perfetto-sdk-sys` ensures both.
//!
//! Events are expansions of the C interface's macro `PERFETTO_TE`: arguments on the stack, one call. The macros of the
//! Rust crate make the same call under a process-wide lock, and allocate memory for the list of arguments, for each
//! argument's name, and for the pointers to them.
//!
//! # Where the time goes
//! Measured by `perf record -e cpu-clock` on this engine with 2,250,000 iterations of `armed_u64` (AMD EPYC, a virtual
//! machine of two CPUs that other programs used as well, Linux 6.18, 2026-11-25): 19 % is in the service thread. In the
//! recording thread, 22 % is in `memmove`, 14 % in the tables of interned names, 10 % in reading the clock, and the
//! rest in encoding and the writer's packets. Each full chunk of 4 KiB wakes the service thread. The C interface cannot
//! commit chunks in batches or ask for larger ones (`producer_abi.h`); the C++ interface can do both.
//!
//! # Cases
//! One event is one packet. Fields are debug annotations; the interface has no other kind for an application's own
//! values.
//!
//! # Counts
//! When the tracing ends, the trace is read and its packets with track events are counted. Overwritten packets are not
//! in it, so the count is exact only if everything fits. Losses that the SDK noticed before the ring are counted by the
//! chunks after which they happened, not by events.
//!
//! Source: documentation of perfetto_sdk; perfetto/public/abi/track_event_hl_abi.h; protos/perfetto/common/trace_stats.proto.

use std::ffi::{CStr, c_char};
use std::process::ExitCode;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dormouse_lab_harness::Engine;
use dormouse_lab_peer::{EMPTY, EMPTY_SITES_CASES, Sites, cases, each, each_site, flat, report, sites, text, version};
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
use perfetto_sdk::track_event::TrackEvent;
use perfetto_sdk_sys::{
    PerfettoTeCategoryDescriptor, PerfettoTeCategoryImpl, PerfettoTeCategoryImplCreate,
    PerfettoTeCategoryImplGetEnabled, PerfettoTeHlEmitImpl, PerfettoTeHlExtra, PerfettoTeHlExtraDebugArgInt64,
    PerfettoTeHlExtraDebugArgString, PerfettoTeHlExtraDebugArgUint64,
    PerfettoTeHlExtraType_PERFETTO_TE_HL_EXTRA_TYPE_DEBUG_ARG_INT64 as INT64,
    PerfettoTeHlExtraType_PERFETTO_TE_HL_EXTRA_TYPE_DEBUG_ARG_STRING as STRING,
    PerfettoTeHlExtraType_PERFETTO_TE_HL_EXTRA_TYPE_DEBUG_ARG_UINT64 as UINT64,
    PerfettoTeType_PERFETTO_TE_TYPE_INSTANT as INSTANT,
};

/// Size of the trace buffer, in KiB.
const BUFFER_KB: u32 = 64 << 10;
/// Size of the buffer between the recording threads and the service thread, in KiB.
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

// SAFETY: the SDK's sessions may be used from any thread, one at a time (perfetto/public/abi/tracing_session_abi.h: the
// handle posts to the SDK's own thread); the mutex `SESSION` ensures the latter.
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

/// A category of events.
struct Category {
    is_enabled: AtomicPtr<AtomicBool>,
    registered: AtomicPtr<PerfettoTeCategoryImpl>,
}

static NEVER: AtomicBool = AtomicBool::new(false);
static ARMED: Category = Category::new();
static DORMANT: Category = Category::new();

impl Category {
    const fn new() -> Category {
        let is_enabled = AtomicPtr::new((&raw const NEVER).cast_mut());
        Category { is_enabled, registered: AtomicPtr::new(null_mut()) }
    }

    fn register(&self, name: &'static CStr) {
        let (name, tags) = (name.as_ptr(), null_mut());
        let description = PerfettoTeCategoryDescriptor { name, desc: name, tags, num_tags: 0 };
        let description = Box::leak(Box::new(description));
        // SAFETY: the description and its strings are never freed; the SDK is initialised.
        let category = unsafe { PerfettoTeCategoryImplCreate(description) };
        // SAFETY: the category was just created.
        let is_enabled = unsafe { PerfettoTeCategoryImplGetEnabled(category) };
        self.registered.store(category, Ordering::Relaxed);
        self.is_enabled.store(is_enabled.cast(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn is_enabled(&self) -> bool {
        // SAFETY: `NEVER`, or a flag that the SDK keeps for as long as the category is registered, which is never
        // undone; it is an atomic in the SDK too.
        let is_enabled = unsafe { &*self.is_enabled.load(Ordering::Relaxed) };
        is_enabled.load(Ordering::Relaxed)
    }

    /// # Safety
    /// The category must be registered. `extras` must end with null, and its other pointers must point to structures of
    /// the types that their headers state.
    #[inline(always)]
    unsafe fn emit(&self, name: &'static CStr, extras: &[*mut PerfettoTeHlExtra]) {
        let category = self.registered.load(Ordering::Relaxed);
        // SAFETY: the category is registered, and `extras` ends with null and points to structures of the stated types,
        // as the caller guarantees; the name is static.
        unsafe { PerfettoTeHlEmitImpl(category, INSTANT as i32, name.as_ptr(), extras.as_ptr()) };
    }
}

fn uint64(name: *const c_char, value: u64) -> PerfettoTeHlExtraDebugArgUint64 {
    PerfettoTeHlExtraDebugArgUint64 { header: PerfettoTeHlExtra { type_: UINT64 }, name, value }
}

fn int64(name: *const c_char, value: i64) -> PerfettoTeHlExtraDebugArgInt64 {
    PerfettoTeHlExtraDebugArgInt64 { header: PerfettoTeHlExtra { type_: INT64 }, name, value }
}

fn string(name: *const c_char, value: &[u8; 33]) -> PerfettoTeHlExtraDebugArgString {
    PerfettoTeHlExtraDebugArgString { header: PerfettoTeHlExtra { type_: STRING }, name, value: value.as_ptr().cast() }
}

/// Emits an event with its category, name and fields.
macro_rules! event {
    ($category:ident, $name:literal $(, $field:ident = $kind:ident($value:expr))*) => {
        if $category.is_enabled() {
            $(let mut $field = $kind(concat!(stringify!($field), "\0").as_ptr().cast(), $value);)*
            let extras = [$((&raw mut $field).cast(),)* null_mut()];
            // SAFETY: only a registered category is enabled; each pointer is to a field's description above, which
            // starts with its type.
            unsafe { $category.emit($name, &extras) };
        }
    };
}

extern "C" fn armed_none(iterations: u64, first: u64) {
    each(iterations, first, |_| event!(ARMED, c"none"));
}

extern "C" fn armed_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| event!(ARMED, c"u64", number = uint64(number)));
}

extern "C" fn armed_ints3(iterations: u64, first: u64) {
    each(iterations, first, |number| {
        event!(ARMED, c"ints3", a = uint64(number), b = int64(-(number as i64)), c = uint64(u64::from(number as u32)));
    });
}

extern "C" fn armed_str32(iterations: u64, first: u64) {
    each(iterations, first, |number| {
        // The SDK needs a terminating zero.
        let mut terminated = [0; 33];
        terminated[..32].copy_from_slice(text(number).as_bytes());
        event!(ARMED, c"str32", text = string(&terminated));
    });
}

extern "C" fn dormant_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| event!(DORMANT, c"u64", number = uint64(number)));
}

/// Makes a function with an event of its own.
macro_rules! site {
    ($category:ident, $number:expr) => {{
        #[inline(never)]
        fn site(value: u64) {
            // It contains its number, so that the compiler merges no two functions; the empty sites contain theirs too.
            std::hint::black_box(value ^ $number);
            event!($category, c"site", number = uint64(value));
        }
        site
    }};
}

macro_rules! dormant_site {
    ($a:literal $b:literal $c:literal) => {
        site!(DORMANT, $a * 100 + $b * 10 + $c)
    };
}

static DORMANT_SITES: Sites = sites!(dormant_site);

extern "C" fn dormant_sites_10(iterations: u64, first: u64) {
    each_site::<10>(iterations, first, flat(&DORMANT_SITES));
}

extern "C" fn dormant_sites_1000(iterations: u64, first: u64) {
    each_site::<1000>(iterations, first, flat(&DORMANT_SITES));
}

/// Returns the messages in a field of a message.
fn messages(bytes: &[u8], field: u32) -> impl Iterator<Item = &[u8]> {
    PbDecoder::new(bytes).filter_map(move |item| match item {
        Ok((number, PbDecoderField::Delimited(bytes))) if number == field => Some(bytes),
        _ => None,
    })
}

/// Returns the sum of the numbers in a field of a message.
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
    ARMED.register(c"armed");
    DORMANT.register(c"dormant");
    TrackEvent::publish_categories();
    let mut session = TracingSession::in_process().map_err(|error| error.to_string())?;
    session.setup(&config());
    session.start_blocking();
    *SESSION.lock().map_err(|error| error.to_string())? = Some(Session(session));
    Ok(())
}

/// Discards the SDK's log, which reports every session's start.
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
    cases.extend(cases![
        armed_none,
        armed_u64,
        armed_ints3,
        armed_str32,
        dormant_u64,
        dormant_sites_10,
        dormant_sites_1000
    ]);
    let version = format!("{} (C++ of perfetto-sdk-sys {})", version("perfetto-sdk"), version("perfetto-sdk-sys"));
    dormouse_lab_harness::main(&Engine { name: "perfetto", version, cases, arrived: Some(arrived) })
}
