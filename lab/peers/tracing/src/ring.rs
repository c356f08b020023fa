//! Engine `tracing-ring`: events of the tracing crate, recorded in a ring for each thread.
//!
//! # Configuration
//! The lab's own layer on tracing-subscriber's registry, under a global filter at level INFO. It does about the minimum
//! that a layer can do: it allocates nothing, converts no numbers to text, and uses no other thread. A thread's ring
//! has 8,192 slots of 128 bytes, 1 MiB, which are allocated and written when the thread first records. An event's slot
//! gets its number, the time (`Instant`), the address of the event's description, and the fields: integers as eight
//! bytes, strings as they are, format arguments (the message) as text. Bytes that do not fit are cut off. Each ring has
//! a lock for a reader, which no other thread takes while the thread records.
//!
//! # Cases
//! The cases of the engine `tracing`; one event is one slot.
//!
//! # Counts
//! The slots of all rings that have the expected number and all fields of their event.
//!
//! Source: documentation of `tracing_subscriber::Layer` and `tracing::field::Visit`.

use std::cell::LazyCell;
use std::fmt::{self, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use cases::{LEVEL, cases};
use dormouse_lab_harness::Engine;
use dormouse_lab_peer::{report, version};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

mod cases;

/// Number of slots of a thread.
const SLOTS: usize = 8192;
/// Number of bytes of a slot that are left for fields.
const FIELD_BYTES: usize = 92;

/// A recorded event.
#[derive(Clone)]
#[repr(align(64))]
struct Slot {
    time: Instant,
    metadata: Option<&'static Metadata<'static>>,
    /// Number of the event, from 1; 0 in a slot without event.
    number: u64,
    len: u32,
    /// Fields: for each its index, its length and its value.
    fields: [u8; FIELD_BYTES],
}

const _: () = assert!(size_of::<Slot>() == 128);

impl Slot {
    fn put(&mut self, bytes: &[u8]) {
        let start = self.len as usize;
        let count = bytes.len().min(FIELD_BYTES - start);
        self.fields[start..start + count].copy_from_slice(&bytes[..count]);
        self.len += count as u32;
    }

    fn field(&mut self, field: &Field, value: &[u8]) {
        self.put(&[field.index() as u8, value.len() as u8]);
        self.put(value);
    }

    /// Whether the slot has a value for each field of its event.
    fn is_whole(&self) -> bool {
        let mut rest = &self.fields[..self.len as usize];
        let mut count = 0;
        while let [_, len, values @ ..] = rest
            && let Some((_, after)) = values.split_at_checked(*len as usize)
        {
            (rest, count) = (after, count + 1);
        }
        rest.is_empty() && self.metadata.is_some_and(|metadata| metadata.fields().len() == count)
    }
}

impl Write for Slot {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}

impl Visit for Slot {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, &value.to_le_bytes());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field, &value.to_le_bytes());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, value.as_bytes());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(field, &[]);
        let start = self.len as usize;
        let _ = write!(self, "{value:?}");
        if let Some(len) = self.fields[..start].last_mut() {
            *len = (self.len as usize - start) as u8;
        }
    }
}

/// A ring of a thread's last events.
struct Ring {
    slots: Vec<Slot>,
    count: u64,
}

impl Ring {
    fn record(&mut self, event: &Event<'_>) {
        let slot = &mut self.slots[self.count as usize % SLOTS];
        self.count += 1;
        (slot.time, slot.metadata, slot.number, slot.len) = (Instant::now(), Some(event.metadata()), self.count, 0);
        event.record(slot);
    }

    fn arrived(&self) -> usize {
        let first = self.count.saturating_sub(SLOTS as u64);
        let is_there = |number: &u64| {
            let slot = &self.slots[*number as usize % SLOTS];
            slot.number == number + 1 && slot.is_whole()
        };
        (first..self.count).filter(is_there).count()
    }
}

static RINGS: Mutex<Vec<Arc<Mutex<Ring>>>> = Mutex::new(Vec::new());

thread_local! {
    static RING: LazyCell<Arc<Mutex<Ring>>> = LazyCell::new(|| {
        let slot = Slot { time: Instant::now(), metadata: None, number: 0, len: 0, fields: [1; FIELD_BYTES] };
        let ring = Arc::new(Mutex::new(Ring { slots: vec![slot; SLOTS], count: 0 }));
        if let Ok(mut rings) = RINGS.lock() {
            rings.push(ring.clone());
        }
        ring
    });
}

/// The layer that records into the rings.
struct Rings;

impl<S: Subscriber> Layer<S> for Rings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        RING.with(|ring| {
            if let Ok(mut ring) = ring.lock() {
                ring.record(event);
            }
        });
    }
}

fn arrived() -> Result<u64, String> {
    let rings = RINGS.lock().map_err(|error| error.to_string())?;
    let counts = rings.iter().map(|ring| ring.lock().map_or(0, |ring| ring.arrived() as u64));
    report(counts.sum(), 0, &format!("slots of {} threads", rings.len()))
}

fn main() -> ExitCode {
    tracing_subscriber::registry().with(Rings).with(LevelFilter::from_level(LEVEL)).init();
    let version = format!("{} with a layer of the lab's own", version("tracing"));
    dormouse_lab_harness::main(&Engine { name: "tracing-ring", version, cases: cases(), arrived: Some(arrived) })
}
