//! Collects the items of a timeline into the contents of a report.

use dormouse_analysis::timeline::{Begin, Counter, End, Flow, Instant, Loss, NameText, Sink, Totals, Track, What};
use dormouse_ctf::Event;
use dormouse_print::FieldTexts;

use crate::compare::Samples;
use crate::contents::{Contents, Fields, Item, Kind};
use crate::scene::{Scene, key};

/// A sink that collects the contents of a report.
#[derive(Debug, Default)]
pub struct Gather {
    scene: Scene,
    texts: FieldTexts,
    fields: Fields,
    is_bare: bool,
    /// Maximum memory of the contents, in bytes.
    memory_bytes: Option<usize>,
    not_kept: u64,
}

/// Data that is kept of the begin of a slice.
#[derive(Debug)]
pub struct Kept {
    fields: Vec<u8>,
    cpu: u32,
}

impl Gather {
    /// Creates the sink for a report with this title. `names`: names of the timeline.
    pub fn new(title: &str, names: &[NameText]) -> Gather {
        Gather { scene: Scene::new(title, names), ..Gather::default() }
    }

    /// Also collects the data for a comparison with another trace. Each event must then be shown to [`Gather::seen`]
    /// too.
    pub fn compared(mut self) -> Gather {
        self.scene.contents.samples = Some(Samples::default());
        self
    }

    /// Collects without fields, for a trace that is only compared.
    pub fn without_fields(self) -> Gather {
        Gather { is_bare: true, ..self }
    }

    /// Takes the next event for the comparison, before the timeline is shown it. `is_wanted`: whether it is selected.
    pub fn seen(&mut self, event: &Event<'_>, is_wanted: bool) {
        if let Some(samples) = &mut self.scene.contents.samples {
            samples.event(event, is_wanted);
        }
    }

    /// Limits the memory to about `bytes`. Further items are counted, and the page reports their number at the top.
    pub fn limit(&mut self, bytes: usize) {
        self.memory_bytes = Some(bytes);
    }

    /// Whether one more item can be kept. An item that cannot is counted.
    fn has_room(&mut self) -> bool {
        let Scene { contents, loss_bytes, .. } = &self.scene;
        let has_room = self.memory_bytes.is_none_or(|max| contents.memory_bytes() + loss_bytes < max);
        self.not_kept += u64::from(!has_room);
        has_room
    }

    /// Returns the contents of the report. `about`: where the trace was recorded; `notes`: notes for the top of the
    /// page.
    pub fn finish(mut self, totals: &Totals, about: Vec<String>, notes: Vec<String>) -> Contents {
        let totals = Totals { items_not_kept: self.not_kept, ..*totals };
        self.scene.finish(&totals, about, notes);
        self.scene.contents
    }

    /// Adds the fields of an event to the current ones, and returns the number of its CPU.
    fn put(&mut self, event: &Event<'_>, cpu: Option<u32>) -> u32 {
        if !self.is_bare {
            self.fields.of(event, &mut self.texts);
        }
        self.scene.cpu(event.stream, cpu)
    }

    /// Stores the current fields and returns their number.
    fn fields(&mut self) -> u32 {
        let fields = self.scene.contents.fields(&self.fields);
        self.fields.0.clear();
        fields
    }
}

impl Sink for Gather {
    type Kept = Kept;

    fn track(&mut self, track: &Track<'_>) {
        self.scene.track(track);
    }

    fn begin(&mut self, begin: &Begin<'_>) -> Kept {
        let cpu = self.put(begin.event, begin.cpu);
        Kept { fields: std::mem::take(&mut self.fields.0), cpu }
    }

    fn kept_bytes(kept: &Kept) -> usize {
        kept.fields.capacity()
    }

    fn end(&mut self, end: &End<'_>, kept: Kept) {
        if !self.has_room() {
            return;
        }
        self.fields.0 = kept.fields;
        match end.event {
            Some(_) if end.is_call => {}
            Some(event) => {
                self.put(event, end.cpu);
            }
            None => self.fields.event(NO_END),
        }
        end.doubt.iter().for_each(|doubt| self.fields.event(doubt.text()));
        let fields = self.fields();
        if let Some(samples) =
            self.scene.contents.samples.as_mut().filter(|_| end.doubt.is_none() && end.event.is_some())
        {
            samples.pair(end.name, end.begin_ns, end.ns.abs_diff(end.begin_ns));
        }
        let Some(place) = self.scene.place(end.track) else { return };
        let item = Item {
            kind: Kind::Slice,
            begin_ns: end.begin_ns,
            duration_ns: end.ns.abs_diff(end.begin_ns),
            name: end.name,
            thread: place.thread,
            lane: place.lane,
            cpu: kept.cpu,
            key: if place.lane.is_some() { key(end.id) } else { 0 },
            fields,
        };
        self.scene.contents.item(item);
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        if !self.has_room() {
            return;
        }
        let cpu = self.put(instant.event, instant.cpu);
        let fields = self.fields();
        let item = Item {
            kind: Kind::Instant,
            begin_ns: instant.ns,
            duration_ns: 0,
            name: instant.name,
            thread: self.scene.place(instant.track).map_or(0, |place| place.thread),
            lane: None,
            cpu,
            key: key_of(&instant.what),
            fields,
        };
        self.scene.contents.item(item);
    }

    fn counter(&mut self, counter: &Counter) {
        if self.has_room() {
            self.scene.counter(counter);
        }
    }

    /// Both ends of a flow are instants with the key of the slice.
    fn flow(&mut self, _: &Flow) {}

    fn loss(&mut self, loss: &Loss) {
        if self.has_room() {
            self.scene.loss(loss);
        }
    }
}

/// Notes that are added to the fields of a slice.
pub(crate) const NO_END: &str = "no end: it was open when the trace ended";

/// Returns the key that an instant shares with the slice that it begins or ends.
pub(crate) fn key_of(what: &What) -> u32 {
    match what {
        What::Plain | What::EndAlone => 0,
        What::Begins(id) | What::Ends(id) | What::EndsElsewhere(id) => key(*id),
    }
}
