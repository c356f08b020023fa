//! What items are on: processes, threads, CPUs, lanes, counters, losses.

use std::collections::{BTreeSet, HashMap};

/// What a track is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum TrackKind {
    /// What has neither process nor CPU.
    Trace,
    Process {
        pid: u64,
    },
    Thread {
        pid: Option<u64>,
        tid: u64,
    },
    /// Events of which only the CPU is known.
    Cpu {
        cpu: u32,
    },
    /// Slices that belong together by a key, of one name. Those that overlap are on lanes of different numbers.
    Lane {
        name: u32,
        number: u32,
    },
    /// The values of a field.
    Counter {
        name: u32,
    },
    /// Where a stream has lost events.
    Losses {
        stream: u32,
    },
}

/// A track. It comes before the first item that is on it, and once more when it gets another name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Track<'a> {
    /// From 0 on, without gaps.
    pub id: u32,
    /// The process or CPU that it belongs to, which has come before.
    pub parent: Option<u32>,
    /// Of which trace, by its index.
    pub trace: usize,
    /// What it is.
    pub kind: TrackKind,
    /// Of a process what it calls itself, of lanes and counters their name, of losses the stream; empty if there is none.
    pub name: &'a str,
}

/// Tracks that are told apart. What is beyond is on the track of its trace.
const TRACKS_MAX: usize = 1 << 20;
/// Lanes of one name and process.
const LANES_MAX: u32 = 4096;
/// Slices in one another on one track.
pub(super) const DEPTH_MAX: usize = 4096;

type Place = (usize, Option<u32>, TrackKind);

/// What a track holds at the moment.
#[derive(Debug, Default)]
struct State {
    parent: Option<u32>,
    /// The slices that are open, outermost first; 0 in place of one that has ended before those in it.
    open: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Tracks {
    ids: HashMap<Place, u32>,
    states: Vec<State>,
    /// Lanes without an open slice, by parent and name, and how many lanes there are.
    lanes: HashMap<(Option<u32>, u32), (BTreeSet<u32>, u32)>,
}

impl Tracks {
    /// The track at a place. `announce` is called with one that is new.
    pub(super) fn at(&mut self, trace: usize, parent: Option<u32>, kind: TrackKind, announce: impl FnOnce(u32)) -> u32 {
        let place = (trace, parent, kind);
        if let Some(id) = self.ids.get(&place) {
            return *id;
        }
        if self.states.len() >= TRACKS_MAX && kind != TrackKind::Trace {
            return parent.unwrap_or(0);
        }
        let id = self.states.len() as u32;
        self.states.push(State { parent, ..State::default() });
        self.ids.insert(place, id);
        announce(id);
        id
    }

    /// That of a process, if it is there.
    pub(super) fn process(&self, trace: usize, pid: u64) -> Option<u32> {
        self.ids.get(&(trace, None, TrackKind::Process { pid })).copied()
    }

    pub(super) fn parent(&self, track: u32) -> Option<u32> {
        self.states[track as usize].parent
    }

    /// How deep a slice is that begins now; `None`: too many are open.
    pub(super) fn begin(&mut self, track: u32, slice: u64) -> Option<u32> {
        let open = &mut self.states[track as usize].open;
        if open.len() >= DEPTH_MAX {
            return None;
        }
        open.push(slice);
        Some(open.len() as u32 - 1)
    }

    /// How many slices are still open that have begun within one that ends.
    pub(super) fn end(&mut self, track: u32, slice: u64) -> u32 {
        let open = &mut self.states[track as usize].open;
        let Some(index) = open.iter().rposition(|id| *id == slice) else { return 0 };
        let above = open[index + 1..].iter().filter(|id| **id != 0).count() as u32;
        open[index] = 0;
        while open.last() == Some(&0) {
            open.pop();
        }
        above
    }

    /// The number of a lane without an open slice; `None`: there are too many.
    pub(super) fn take_lane(&mut self, parent: Option<u32>, name: u32) -> Option<u32> {
        let (free, count) = self.lanes.entry((parent, name)).or_default();
        free.pop_first().or_else(|| {
            *count += 1;
            (*count <= LANES_MAX).then(|| *count - 1)
        })
    }

    pub(super) fn give_lane(&mut self, parent: Option<u32>, name: u32, number: u32) {
        self.lanes.entry((parent, name)).or_default().0.insert(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_overlap_have_different_depths() {
        let mut tracks = Tracks::default();
        let track = tracks.at(0, None, TrackKind::Trace, |_| {});
        assert_eq!([1, 2, 3].map(|slice| tracks.begin(track, slice)), [Some(0), Some(1), Some(2)]);
        assert_eq!(tracks.end(track, 2), 1);
        assert_eq!(tracks.begin(track, 4), Some(3));
        assert_eq!([4, 3, 1].map(|slice| tracks.end(track, slice)), [0, 0, 0]);
        assert_eq!(tracks.begin(track, 5), Some(0));
        assert_eq!(tracks.end(track, 9), 0);
        for slice in 6..6 + DEPTH_MAX as u64 {
            tracks.begin(track, slice);
        }
        assert_eq!(tracks.begin(track, 1 << 20), None);
    }

    #[test]
    fn the_lowest_lane_is_used_again() {
        let mut tracks = Tracks::default();
        assert_eq!([0; 3].map(|_| tracks.take_lane(None, 0)), [Some(0), Some(1), Some(2)]);
        tracks.give_lane(None, 0, 2);
        tracks.give_lane(None, 0, 1);
        assert_eq!([0; 3].map(|_| tracks.take_lane(None, 0)), [Some(1), Some(2), Some(3)]);
        assert_eq!(tracks.take_lane(Some(1), 0), Some(0));
        assert_eq!((4..=LANES_MAX).filter_map(|_| tracks.take_lane(None, 0)).last(), Some(LANES_MAX - 1));
    }
}
