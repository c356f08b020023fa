//! What a timeline consists of, as the contents of a report.

use dormouse_analysis::Number;
use dormouse_analysis::timeline::{
    Begin, Counter, End, Flow, Instant, Loss, NameText, Sink, Totals, Track, TrackKind, What,
};
use dormouse_ctf::Event;
use dormouse_ctf::text::FieldTexts;

use crate::compare::Samples;
use crate::contents::{self, Contents, Fields, Item, Kind, Process, Thread};

/// Where items of a track are.
#[derive(Debug, Clone, Default)]
struct Place {
    process: u32,
    thread: u32,
    is_lane: bool,
    counter: Option<u32>,
    /// Of losses: the stream's number, and its name.
    stream: Option<(u32, String)>,
}

/// On which CPU a stream's events were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum StreamCpu {
    #[default]
    Unknown,
    One(u32),
    Several,
}

/// Takes what a timeline hands out.
#[derive(Debug, Default)]
pub struct Gather {
    contents: Contents,
    places: Vec<Place>,
    streams: Vec<StreamCpu>,
    losses: Vec<(u32, Loss)>,
    texts: FieldTexts,
    fields: Fields,
    is_bare: bool,
    /// Bytes that the contents may have.
    memory_bytes: Option<usize>,
    loss_bytes: usize,
    not_kept: u64,
}

/// What has begun.
#[derive(Debug)]
pub struct Kept {
    fields: Vec<u8>,
    cpu: u32,
}

impl Gather {
    /// Begins a report that is called so. `names`: those of the timeline.
    pub fn new(title: &str, names: &[NameText]) -> Gather {
        let mut gather = Gather::default();
        gather.contents.title = title.into();
        for name in names {
            gather.contents.add_name(&name.text);
        }
        gather
    }

    /// Has what is needed to compare it with another trace taken note of. Then each event has to be shown by [`Gather::seen`] too.
    pub fn compared(mut self) -> Gather {
        self.contents.samples = Some(Samples::default());
        self
    }

    /// Only what is compared is wanted: fields are passed over.
    pub fn without_fields(self) -> Gather {
        Gather { is_bare: true, ..self }
    }

    /// The next event, before the timeline is shown it; `is_wanted`: it is asked for.
    pub fn seen(&mut self, event: &Event<'_>, is_wanted: bool) {
        if let Some(samples) = &mut self.contents.samples {
            samples.event(event, is_wanted);
        }
    }

    /// Keeps no more than about so many bytes. What comes then is counted, and told at the top of the page.
    pub fn limit(&mut self, bytes: usize) {
        self.memory_bytes = Some(bytes);
    }

    /// Whether one item more can be kept; one that cannot is counted.
    fn has_room(&mut self) -> bool {
        let has_room = self.memory_bytes.is_none_or(|max| self.contents.memory_bytes() + self.loss_bytes < max);
        self.not_kept += u64::from(!has_room);
        has_room
    }

    /// What the report is made of. `about`: where the trace was recorded; `notes`: what is to be said at the top.
    pub fn finish(mut self, totals: &Totals, about: Vec<String>, notes: Vec<String>) -> Contents {
        for (stream, loss) in std::mem::take(&mut self.losses) {
            let place = self.places.get(loss.track as usize);
            let name = place.and_then(|place| place.stream.as_ref()).map(|(_, name)| name.clone());
            let cpu = match self.streams.get(stream as usize) {
                Some(StreamCpu::One(cpu)) => Some(self.contents.cpu(Some(*cpu))),
                _ => None,
            };
            let stream = name.unwrap_or_default();
            let events = loss.count.unwrap_or(0);
            let (begin_ns, end_ns) = (Some(loss.begin_ns), Some(loss.end_ns));
            self.contents.loss(contents::Loss { begin_ns, end_ns, events, cpu, stream, text: loss.text });
        }
        let totals = Totals { items_not_kept: self.not_kept, ..*totals };
        self.contents.about = about;
        self.contents.notes = notes.into_iter().chain(told(&totals)).collect();
        self.contents.events = totals.events;
        self.contents.totals = Some(totals);
        self.contents
    }

    /// Puts down an event, and says on which CPU it was.
    fn put(&mut self, event: &Event<'_>, cpu: Option<u32>) -> u32 {
        if self.streams.len() <= event.stream {
            self.streams.resize(event.stream + 1, StreamCpu::Unknown);
        }
        let of_stream = &mut self.streams[event.stream];
        *of_stream = match (*of_stream, cpu) {
            (StreamCpu::Unknown, Some(cpu)) => StreamCpu::One(cpu),
            (StreamCpu::One(known), Some(cpu)) if known == cpu => *of_stream,
            _ => StreamCpu::Several,
        };
        if self.is_bare {
            return self.contents.cpu(cpu);
        }
        self.fields.event(&event.class.full_name);
        for (name, value) in self.texts.of(event) {
            self.fields.put(name, &String::from_utf8_lossy(value));
        }
        self.contents.cpu(cpu)
    }

    fn place(&mut self, track: u32) -> &mut Place {
        let track = track as usize;
        if self.places.len() <= track {
            self.places.resize(track + 1, Place::default());
        }
        &mut self.places[track]
    }

    fn thread(&mut self, process: u32, tid: Option<u64>, label: Option<String>) -> Place {
        let is_lane = false;
        let thread = self.contents.thread(Thread { process, tid, label });
        Place { process, thread, is_lane, counter: None, stream: None }
    }
}

/// What a person has to know of the pairs before the picture is believed.
fn told(totals: &Totals) -> impl Iterator<Item = String> + use<> {
    let lines = [
        (totals.slices_unfinished, "have no end, and are drawn to the end of the trace", "begin", "begins"),
        (totals.ends_unpaired, "have no begin, and are drawn as instants", "end", "ends"),
        (totals.slices_across_losses, "have losses between begin and end: the end can be another's", "slice", "slices"),
        (
            totals.events_without_key,
            "do not have the fields that they are paired by, and are instants",
            "event",
            "events",
        ),
        (totals.begins_not_followed, "are drawn as instants, because too many slices were open", "begin", "begins"),
        (totals.events_without_time, "have no time, and are not in the report", "event", "events"),
        (
            totals.items_not_kept,
            "are not in the report nor in its tables: --memory has no room for them",
            "item",
            "items",
        ),
        (
            totals.events_on_other_tracks,
            "are on the row of another thread: --memory has no room for theirs",
            "event",
            "events",
        ),
        (
            totals.names_not_kept,
            "are not known: --memory has no room for them",
            "name of a process",
            "names of processes",
        ),
    ];
    lines.into_iter().filter(|(count, ..)| *count > 0).map(|(count, what, one, many)| match count {
        1 => format!("1 {one} of those that {what}"),
        count => format!("{count} {many} {what}"),
    })
}

/// Of a slice whose key fits into a column.
fn key(id: u64) -> u32 {
    u32::try_from(id).unwrap_or(0)
}

impl Sink for Gather {
    type Kept = Kept;

    fn track(&mut self, track: &Track<'_>) {
        let known = self.places.get(track.id as usize).cloned();
        let of_parent = track.parent.and_then(|parent| self.places.get(parent as usize)).map(|place| place.process);
        let mut process = |name: &str, pid| self.contents.process(Process { name: name.into(), pid });
        let place = match track.kind {
            TrackKind::Process { pid } => match known {
                Some(place) => {
                    self.contents.rename(place.process, track.name);
                    return;
                }
                None => {
                    let process = process(track.name, Some(pid));
                    self.thread(process, Some(pid), None)
                }
            },
            TrackKind::Thread { tid, .. } => {
                let process = of_parent.unwrap_or_else(|| process("process not known", None));
                self.thread(process, Some(tid), None)
            }
            TrackKind::Cpu { cpu } => {
                let process = process(&format!("CPU {cpu}"), None);
                self.thread(process, None, None)
            }
            TrackKind::Trace => {
                let process = process("the trace", None);
                self.thread(process, None, None)
            }
            TrackKind::Lane { .. } => {
                let process = of_parent.unwrap_or_else(|| process("the trace", None));
                Place { is_lane: true, ..self.thread(process, None, Some(track.name.into())) }
            }
            TrackKind::Losses { stream } => Place { stream: Some((stream, track.name.into())), ..Place::default() },
            TrackKind::Counter { .. } => {
                let process = of_parent.unwrap_or_default();
                Place { counter: Some(self.contents.counter(process, track.name)), ..Place::default() }
            }
        };
        *self.place(track.id) = place;
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
            Some(event) => {
                self.put(event, end.cpu);
            }
            None => self.fields.event("no end: it was open when the trace ended"),
        }
        if !end.is_believed {
            self.fields.event("events were lost between begin and end: the end can be that of another");
        }
        let fields = self.contents.fields(&self.fields);
        self.fields.0.clear();
        if let Some(samples) = self.contents.samples.as_mut().filter(|_| end.is_believed && end.event.is_some()) {
            samples.pair(end.name, end.begin_ns, end.ns.abs_diff(end.begin_ns));
        }
        let place = self.place(end.track);
        let item = Item {
            kind: Kind::Slice,
            begin_ns: end.begin_ns,
            duration_ns: end.ns.abs_diff(end.begin_ns),
            name: end.name,
            thread: place.thread,
            cpu: kept.cpu,
            key: if place.is_lane { key(end.id) } else { 0 },
            fields,
        };
        self.contents.item(item);
    }

    fn instant(&mut self, instant: &Instant<'_>) {
        if !self.has_room() {
            return;
        }
        let cpu = self.put(instant.event, instant.cpu);
        let fields = self.contents.fields(&self.fields);
        self.fields.0.clear();
        let item = Item {
            kind: Kind::Instant,
            begin_ns: instant.ns,
            duration_ns: 0,
            name: instant.name,
            thread: self.place(instant.track).thread,
            cpu,
            key: match instant.what {
                What::Plain | What::EndAlone => 0,
                What::Begins(id) | What::Ends(id) | What::EndsElsewhere(id) => key(id),
            },
            fields,
        };
        self.contents.item(item);
    }

    fn counter(&mut self, counter: &Counter) {
        if let Some(number) = self.place(counter.track).counter {
            let value = match counter.value {
                Number::Whole(value) => value as f64,
                Number::Real(value) => value,
            };
            // JSON has no word for what is no number.
            if value.is_finite() && self.has_room() {
                self.contents.count(number, counter.ns, value);
            }
        }
    }

    /// Both of its ends are instants with the key of the slice.
    fn flow(&mut self, _: &Flow) {}

    fn loss(&mut self, loss: &Loss) {
        let stream = self.place(loss.track).stream.as_ref().map_or(0, |(stream, _)| *stream);
        if self.has_room() {
            self.loss_bytes += 2 * (size_of::<Loss>() + loss.text.len());
            self.losses.push((stream, loss.clone()));
        }
    }
}
