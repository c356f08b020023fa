//! Engine `tracing-ring`: events of the tracing crate, into a ring of each thread's own.
//!
//! # Configuration
//! The lab's own layer on tracing-subscriber's registry, below a global filter at level INFO. It is about the least that a layer can
//! do: nothing is allocated, no text is made of numbers, no other thread takes part. A thread's ring has 8,192 slots of 128 bytes, 1 MiB,
//! made and written when the thread first records. Into the next slot go its number, the time (`Instant`), where the event's description
//! is, and the fields: integers as eight bytes, strings as they are, what is a format (the message) as text; what does not
//! fit is cut off. A lock of the ring, which nobody else takes while the thread records, is there for a reader to take.
//!
//! # Cases
//! As of the engine `tracing`; one event is one slot.
//!
//! # Counts
//! The slots of all rings that hold the number and the fields that they have to.
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

/// Slots of a thread.
const SLOTS: usize = 8192;
/// What is left of 128 bytes.
const FIELD_BYTES: usize = 92;

/// An event.
#[derive(Clone)]
#[repr(align(64))]
struct Slot {
    time: Instant,
    metadata: Option<&'static Metadata<'static>>,
    /// From 1; 0 where there is none.
    number: u64,
    len: u32,
    /// Of each field its index, its length and its value.
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

    /// Whether it holds a value for each field of its event.
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

/// The last events of a thread.
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

/// The layer.
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
