//! Encodes batches as bytes.

use std::sync::Arc;

use dormouse_analysis::timeline::NameText;

use crate::chrome::Chrome;
use crate::op::Batch;
use crate::perfetto::{Known, Perfetto};

/// Encodes batches as bytes. Several encoders of a trace can work concurrently.
#[derive(Debug)]
pub struct Encoder(Kind);

#[derive(Debug)]
enum Kind {
    Perfetto(Box<Perfetto>),
    Chrome(Box<Chrome>),
}

impl Encoder {
    pub(crate) fn perfetto(known: &Arc<Known>) -> Encoder {
        Encoder(Kind::Perfetto(Box::new(Perfetto::new(known))))
    }

    pub(crate) fn chrome(names: &Arc<Vec<NameText>>, base_ns: i64) -> Encoder {
        Encoder(Kind::Chrome(Box::new(Chrome::new(names, base_ns))))
    }

    /// Appends the bytes before all batches.
    pub fn begin(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Kind::Perfetto(perfetto) => perfetto.begin(out),
            Kind::Chrome(chrome) => chrome.begin(out),
        }
    }

    /// Appends the bytes after all batches.
    pub fn end(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Kind::Perfetto(_) => {}
            Kind::Chrome(_) => Chrome::end(out),
        }
    }

    /// Encodes a batch into its `out`.
    pub fn encode(&mut self, batch: &mut Batch<'_>) {
        match &mut self.0 {
            Kind::Perfetto(perfetto) => perfetto.encode(batch),
            Kind::Chrome(chrome) => chrome.encode(batch),
        }
    }
}
