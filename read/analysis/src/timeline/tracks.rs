//! The tracks of items: processes, threads, CPUs, lanes, counters, losses.

use std::collections::{BTreeSet, HashMap};

use super::room::Room;

/// Kind of a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum TrackKind {
    /// Items without process and CPU.
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
    /// Slices of one name that are matched by a key. Slices that overlap are on lanes with different numbers.
    Lane {
        name: u32,
        number: u32,
    },
    /// Values of a field.
    Counter {
        name: u32,
    },
    /// Losses of a stream.
    Losses {
        stream: u32,
    },
}

/// A track. It is announced before its first item, and again when its name changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Track<'a> {
    /// Number of the track, from 0 on, without gaps.
    pub id: u32,
    /// Track of the process or CPU that it belongs to, which is announced earlier.
    pub parent: Option<u32>,
    /// Index of the trace.
    pub trace: usize,
    /// Kind of the track.
    pub kind: TrackKind,
    /// Name of the process, thread, lane or counter; for losses, of the stream; empty if there is none.
    pub name: &'a str,
}

/// Maximum number of tracks. Items of further ones are put on the parent's track, or on the first track.
const TRACKS_MAX: usize = 1 << 20;
/// Maximum number of lanes of one name and process.
const LANES_MAX: u32 = 4096;
/// Maximum number of nested slices on a track.
pub(super) const DEPTH_MAX: usize = 4096;

type Place = (usize, Option<u32>, TrackKind);

/// An open slice.
#[derive(Debug, Clone)]
pub(super) struct Slice<K> {
    /// Number of the slice; 0 once it has ended while slices that began within it are open.
    pub id: u64,
    pub name: u32,
    /// Its begin, if its ends are matched by thread.
    pub begin: Option<Begun<K>>,
}

/// A begin that waits for an end on the same thread.
#[derive(Debug, Clone)]
pub(super) struct Begun<K> {
    /// Index of the name that both ends share.
    pub pair: u32,
    pub ns: i64,
    pub kept: K,
}

/// A slice that has ended.
#[derive(Debug)]
pub(super) struct Ended<K> {
    pub slice: Slice<K>,
    /// Number of slices that enclosed it, and number of slices that began within it and are still open.
    pub depth: u32,
    pub above: u32,
}

/// Current state of a track.
#[derive(Debug, Clone)]
struct State<K> {
    parent: Option<u32>,
    /// Open slices, outermost first.
    open: Vec<Slice<K>>,
    /// Time at which the last slice ended, in nanoseconds since the epoch.
    ended_ns: i64,
}

#[derive(Debug, Clone)]
pub(super) struct Tracks<K> {
    ids: HashMap<Place, u32>,
    states: Vec<State<K>>,
    /// Numbers of lanes without an open slice, and the number of lanes, by parent and name.
    lanes: HashMap<(Option<u32>, u32), (BTreeSet<u32>, u32)>,
    /// Memory for tracks.
    room: Room,
    /// Set when a track was asked for that there was no room for. The caller clears it.
    pub is_elsewhere: bool,
}

impl<K> Default for Tracks<K> {
    fn default() -> Tracks<K> {
        let room = Room::new(usize::MAX);
        Tracks { ids: HashMap::new(), states: Vec::new(), lanes: HashMap::new(), room, is_elsewhere: false }
    }
}

/// Memory that is counted for a track, here and in a sink.
const TRACK_BYTES: usize = 512;
/// Number of tracks that are created whatever the memory limit is.
const TRACKS_MIN: usize = 16;
/// Number of slices whose memory a track keeps when none is open.
const OPEN_KEPT: usize = 64;

impl<K> Tracks<K> {
    /// Returns the track of a place. `announce` is called if it is new.
    pub(super) fn at(&mut self, trace: usize, parent: Option<u32>, kind: TrackKind, announce: impl FnOnce(u32)) -> u32 {
        let place = (trace, parent, kind);
        if let Some(id) = self.ids.get(&place) {
            return *id;
        }
        let has_room = self.states.len() < TRACKS_MIN || self.room.take(TRACK_BYTES);
        if (self.states.len() >= TRACKS_MAX || !has_room) && kind != TrackKind::Trace {
            self.is_elsewhere = true;
            return parent.unwrap_or(0);
        }
        let id = self.states.len() as u32;
        self.states.push(State { parent, open: Vec::new(), ended_ns: i64::MIN });
        self.ids.insert(place, id);
        announce(id);
        id
    }

    pub(super) fn limit(&mut self, bytes: usize) {
        self.room = Room::new(bytes);
    }

    /// Returns the track of a process, if there is one.
    pub(super) fn process(&self, trace: usize, pid: u64) -> Option<u32> {
        self.known(trace, None, TrackKind::Process { pid })
    }

    /// Returns the track of a place, if there is one.
    pub(super) fn known(&self, trace: usize, parent: Option<u32>, kind: TrackKind) -> Option<u32> {
        self.ids.get(&(trace, parent, kind)).copied()
    }

    pub(super) fn parent(&self, track: u32) -> Option<u32> {
        self.states[track as usize].parent
    }

    /// Returns the depth of a slice that would begin now; `None` if too many are open.
    #[inline]
    pub(super) fn depth(&self, track: u32) -> Option<u32> {
        let depth = self.states[track as usize].open.len();
        (depth < DEPTH_MAX).then_some(depth as u32)
    }

    /// Returns the earliest time at which a call that has ended can have begun, so that the slices of the track are nested:
    /// the begin of the innermost open slice, or the end of the last one.
    pub(super) fn begin_ns_min(&self, track: u32) -> i64 {
        let State { open, ended_ns, .. } = &self.states[track as usize];
        let begin = open.last().and_then(|slice| slice.begin.as_ref()).map_or(i64::MIN, |begin| begin.ns);
        begin.max(*ended_ns)
    }

    /// Notes that a slice of a track ended at this time.
    #[inline]
    pub(super) fn ended(&mut self, track: u32, ns: i64) {
        let ended_ns = &mut self.states[track as usize].ended_ns;
        *ended_ns = (*ended_ns).max(ns);
    }

    /// Begins a slice; only if [`Tracks::depth`] returned a depth.
    #[inline]
    pub(super) fn begin(&mut self, track: u32, slice: Slice<K>) {
        self.states[track as usize].open.push(slice);
    }

    /// Ends the innermost open slice of a track for which `is_it` is true.
    #[inline]
    pub(super) fn end(&mut self, track: u32, is_it: impl Fn(&Slice<K>) -> bool) -> Option<Ended<K>> {
        let open = &mut self.states[track as usize].open;
        let index = open.iter().rposition(|slice| slice.id != 0 && is_it(slice))?;
        let above = open[index + 1..].iter().filter(|slice| slice.id != 0).count() as u32;
        let slice = &mut open[index];
        let slice = Slice { id: std::mem::take(&mut slice.id), name: slice.name, begin: slice.begin.take() };
        while open.last().is_some_and(|slice| slice.id == 0) {
            open.pop();
        }
        if open.is_empty() && open.capacity() > OPEN_KEPT {
            *open = Vec::new();
        }
        Some(Ended { slice, depth: index as u32, above })
    }

    /// Returns the number of tracks.
    pub(super) fn count(&self) -> usize {
        self.states.len()
    }

    /// Ends the innermost slice of a track, if it belongs to this pair and the slice below it, if any, has not ended.
    /// Returns its depth, number, name and begin.
    #[inline(always)]
    pub(super) fn end_innermost(&mut self, track: u32, pair: u32) -> Option<(u32, u64, u32, Begun<K>)> {
        let open = &mut self.states.get_mut(track as usize)?.open;
        let [rest @ .., last] = open.as_slice() else { return None };
        let is_it = last.id != 0 && last.begin.as_ref().is_some_and(|begin| begin.pair == pair);
        if !is_it || rest.last().map_or(open.capacity() > OPEN_KEPT, |below| below.id == 0) {
            return None;
        }
        let depth = rest.len() as u32;
        let slice = open.pop()?;
        Some((depth, slice.id, slice.name, slice.begin?))
    }

    /// Returns the open slices with their tracks.
    pub(super) fn open(&self) -> impl Iterator<Item = (u32, u64)> {
        let states = (0..).zip(&self.states);
        states.flat_map(|(track, state)| {
            state.open.iter().filter(|slice| slice.id != 0).map(move |slice| (track, slice.id))
        })
    }

    /// Takes a lane without an open slice and returns its number; `None` if there are too many.
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
        let mut tracks = Tracks::<()>::default();
        let track = tracks.at(0, None, TrackKind::Trace, |_| {});
        let begin = |tracks: &mut Tracks<()>, id| {
            let depth = tracks.depth(track)?;
            tracks.begin(track, Slice { id, name: 0, begin: None });
            Some(depth)
        };
        let end = |tracks: &mut Tracks<()>, id| {
            let Ended { slice, depth, above } = tracks.end(track, |slice| slice.id == id)?;
            assert_eq!(slice.id, id);
            Some((depth, above))
        };
        assert_eq!([1, 2, 3].map(|slice| begin(&mut tracks, slice)), [Some(0), Some(1), Some(2)]);
        assert_eq!(end(&mut tracks, 2), Some((1, 1)));
        assert_eq!(begin(&mut tracks, 4), Some(3));
        assert_eq!([4, 3, 1].map(|slice| end(&mut tracks, slice)), [Some((3, 0)), Some((2, 0)), Some((0, 0))]);
        assert_eq!(begin(&mut tracks, 5), Some(0));
        assert_eq!(end(&mut tracks, 9), None);
        assert_eq!(tracks.open().collect::<Vec<_>>(), [(track, 5)]);
        for slice in 6..6 + DEPTH_MAX as u64 {
            begin(&mut tracks, slice);
        }
        assert_eq!(begin(&mut tracks, 1 << 20), None);
    }

    #[test]
    fn the_lowest_lane_is_used_again() {
        let mut tracks = Tracks::<()>::default();
        assert_eq!([0; 3].map(|_| tracks.take_lane(None, 0)), [Some(0), Some(1), Some(2)]);
        tracks.give_lane(None, 0, 2);
        tracks.give_lane(None, 0, 1);
        assert_eq!([0; 3].map(|_| tracks.take_lane(None, 0)), [Some(1), Some(2), Some(3)]);
        assert_eq!(tracks.take_lane(Some(1), 0), Some(0));
        assert_eq!((4..=LANES_MAX).filter_map(|_| tracks.take_lane(None, 0)).last(), Some(LANES_MAX - 1));
    }
}
