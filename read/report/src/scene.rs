//! Places of a timeline's tracks in a report, and the data of a report other than its items.

use dormouse_analysis::Number;
use dormouse_analysis::timeline::{Counter, Loss, NameText, Totals, Track, TrackKind};

use crate::contents::{self, Contents, Process, Thread};
use crate::stacks::Owner;

/// Place of a track's items.
#[derive(Debug, Clone, Default)]
pub(crate) struct Place {
    process: u32,
    pub thread: u32,
    pub lane: Option<u32>,
    pub counter: Option<u32>,
    /// Number and name of the stream, for a track of losses.
    stream: Option<(u32, String)>,
}

/// CPU of a stream's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum StreamCpu {
    #[default]
    Unknown,
    One(u32),
    Several,
}

/// Names, processes, threads, CPUs, counters and losses of a timeline.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    pub contents: Contents,
    places: Vec<Place>,
    streams: Vec<StreamCpu>,
    losses: Vec<(u32, Loss)>,
    /// Approximate memory of losses, in bytes.
    pub loss_bytes: usize,
}

impl Scene {
    /// Creates a scene. `names`: names of the timeline.
    pub(crate) fn new(title: &str, names: &[NameText]) -> Scene {
        let mut scene = Scene::default();
        scene.contents.title = title.into();
        for name in names {
            let number = scene.contents.add_name(&name.text);
            scene.contents.doubtful.extend(name.is_doubtful.then_some(number));
            scene.contents.keys.push(name.key.clone());
        }
        scene
    }

    /// Completes the contents. `about`: where the trace was recorded; `notes`: notes for the top of the page.
    pub(crate) fn finish(&mut self, totals: &Totals, about: Vec<String>, notes: Vec<String>) {
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
        self.contents.about = about;
        self.contents.notes = notes.into_iter().chain(told(totals)).collect();
        self.contents.events = totals.events;
        self.contents.totals = Some(*totals);
    }

    /// Returns the number of the CPU of a stream's event.
    pub(crate) fn cpu(&mut self, stream: usize, cpu: Option<u32>) -> u32 {
        if self.streams.len() <= stream {
            self.streams.resize(stream + 1, StreamCpu::Unknown);
        }
        let of_stream = &mut self.streams[stream];
        *of_stream = match (*of_stream, cpu) {
            (StreamCpu::Unknown, Some(cpu)) => StreamCpu::One(cpu),
            (StreamCpu::One(known), Some(cpu)) if known == cpu => *of_stream,
            _ => StreamCpu::Several,
        };
        self.contents.cpu(cpu)
    }

    /// Returns the number of a CPU that was seen before.
    pub(crate) fn known_cpu(&self, cpu: Option<u32>) -> u32 {
        self.contents.cpus.iter().position(|known| *known == cpu).unwrap_or(0) as u32
    }

    /// Returns the place of a track that was announced.
    pub(crate) fn place(&self, track: u32) -> Option<&Place> {
        self.places.get(track as usize)
    }

    fn thread(&mut self, process: u32, tid: Option<u64>, label: Option<String>) -> Place {
        let thread = self.contents.thread(Thread { process, tid, label, name: None });
        Place { process, thread, lane: None, counter: None, stream: None }
    }

    /// Adds a track, or renames a process or thread.
    pub(crate) fn track(&mut self, track: &Track<'_>) {
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
                let place = match known {
                    Some(place) => place,
                    None => {
                        let process = of_parent.unwrap_or_else(|| process("process not known", None));
                        self.thread(process, Some(tid), None)
                    }
                };
                if !track.name.is_empty() {
                    self.contents.name_thread(place.thread, track.name);
                }
                place
            }
            TrackKind::Cpu { cpu } => {
                let process = process(&format!("CPU {cpu}"), None);
                self.thread(process, None, None)
            }
            TrackKind::Trace => {
                let process = process("the trace", None);
                self.thread(process, None, None)
            }
            TrackKind::Lane { number, .. } => {
                let process = of_parent.unwrap_or_else(|| process("the trace", None));
                Place { lane: Some(number), ..self.thread(process, None, Some(track.name.into())) }
            }
            TrackKind::Losses { stream } => Place { stream: Some((stream, track.name.into())), ..Place::default() },
            TrackKind::Counter { .. } => {
                let process = of_parent.unwrap_or_default();
                Place { counter: Some(self.contents.counter(process, track.name)), ..Place::default() }
            }
        };
        let id = track.id as usize;
        if self.places.len() <= id {
            self.places.resize(id + 1, Place::default());
        }
        self.places[id] = place;
    }

    /// Adds a value of a counter.
    pub(crate) fn counter(&mut self, counter: &Counter) {
        if let Some((number, value)) = self.counted(counter) {
            self.contents.count(number, counter.ns, value);
        }
    }

    /// Returns the number of a counter and its value, if a page can show it.
    pub(crate) fn counted(&self, counter: &Counter) -> Option<(u32, f64)> {
        let number = self.place(counter.track)?.counter?;
        let value = match counter.value {
            Number::Whole(value) => value as f64,
            Number::Real(value) => value,
        };
        // JSON cannot express infinity and NaN.
        value.is_finite().then_some((number, value))
    }

    /// Adds a loss.
    pub(crate) fn loss(&mut self, loss: &Loss) {
        let place = self.place(loss.track).and_then(|place| place.stream.as_ref());
        let stream = place.map_or(0, |(stream, _)| *stream);
        self.loss_bytes += 2 * (size_of::<Loss>() + loss.text.len());
        self.losses.push((stream, loss.clone()));
    }
}

/// Returns notes about pairs that a reader must know before trusting the picture.
fn told(totals: &Totals) -> impl Iterator<Item = String> + use<> {
    let lines = [
        (totals.slices_unfinished, "have no end, and are drawn to the end of the trace", "begin", "begins"),
        (totals.ends_unpaired, "have no begin, and are drawn as instants", "end", "ends"),
        (totals.slices_doubtful, "are not certain: begins and ends are on different threads", "slice", "slices"),
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

impl Place {
    /// Returns the thread and the lane of the slices of the track.
    pub(crate) fn owner(&self) -> Owner {
        (self.thread, self.lane.unwrap_or(0))
    }
}

/// Returns the key of a slice; 0 if it does not fit into the column.
pub(crate) fn key(id: u64) -> u32 {
    u32::try_from(id).unwrap_or(0)
}
