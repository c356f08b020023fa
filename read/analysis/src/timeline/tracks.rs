//! What items are on: processes, threads, CPUs, lanes, counters, losses.

use std::collections::{BTreeSet, HashMap};

use super::room::Room;

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

/// A slice that is open.
#[derive(Debug, Clone)]
pub(super) struct Slice<K> {
    /// 0: it has ended before those in it.
    pub id: u64,
    pub name: u32,
    /// Its begin, where the thread says what belongs together.
    pub begin: Option<Begun<K>>,
}

/// A begin that waits for the end of the same thread.
#[derive(Debug, Clone)]
pub(super) struct Begun<K> {
    /// What a rule calls it.
    pub pair: u32,
    pub ns: i64,
    pub kept: K,
}

/// A slice that has ended.
#[derive(Debug)]
pub(super) struct Ended<K> {
    pub slice: Slice<K>,
    /// How many slices it lay in, and how many are open that have begun within it.
    pub depth: u32,
    pub above: u32,
}

/// What a track holds at the moment.
#[derive(Debug, Clone)]
struct State<K> {
    parent: Option<u32>,
    /// The slices that are open, outermost first.
    open: Vec<Slice<K>>,
}

#[derive(Debug, Clone)]
pub(super) struct Tracks<K> {
    ids: HashMap<Place, u32>,
    states: Vec<State<K>>,
    /// Lanes without an open slice, by parent and name, and how many lanes there are.
    lanes: HashMap<(Option<u32>, u32), (BTreeSet<u32>, u32)>,
    /// For tracks.
    room: Room,
    /// Whether a track was asked for that there is no room for, since this was last set.
    pub is_elsewhere: bool,
}

impl<K> Default for Tracks<K> {
    fn default() -> Tracks<K> {
        let room = Room::new(usize::MAX);
        Tracks { ids: HashMap::new(), states: Vec::new(), lanes: HashMap::new(), room, is_elsewhere: false }
    }
}

/// What a track takes, here and in a sink.
const TRACK_BYTES: usize = 512;
/// There are so many whatever the limit is.
const TRACKS_MIN: usize = 16;
/// Slices for which a track keeps memory when none is open.
const OPEN_KEPT: usize = 64;

impl<K> Tracks<K> {
    /// The track at a place. `announce` is called with one that is new.
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
        self.states.push(State { parent, open: Vec::new() });
        self.ids.insert(place, id);
        announce(id);
        id
    }

    pub(super) fn limit(&mut self, bytes: usize) {
        self.room = Room::new(bytes);
    }

    /// That of a process, if it is there.
    pub(super) fn process(&self, trace: usize, pid: u64) -> Option<u32> {
        self.ids.get(&(trace, None, TrackKind::Process { pid })).copied()
    }

    pub(super) fn parent(&self, track: u32) -> Option<u32> {
        self.states[track as usize].parent
    }

    /// How deep a slice is that begins now; `None`: too many are open.
    #[inline]
    pub(super) fn depth(&self, track: u32) -> Option<u32> {
        let depth = self.states[track as usize].open.len();
        (depth < DEPTH_MAX).then_some(depth as u32)
    }

    /// A slice begins, if there is a [`Tracks::depth`] for it.
    #[inline]
    pub(super) fn begin(&mut self, track: u32, slice: Slice<K>) {
        self.states[track as usize].open.push(slice);
    }

    /// Ends the innermost slice of a track of which this is so.
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

    /// How many tracks there are.
    pub(super) fn count(&self) -> usize {
        self.states.len()
    }

    /// Ends the innermost slice of a track, if it is one of this pair, and nothing that has ended before lies below it. Gives how many slices it lay in,
    /// its number, its name and its begin.
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

    /// Those whose ends have not come, with their tracks.
    pub(super) fn open(&self) -> impl Iterator<Item = (u32, u64)> {
        let states = (0..).zip(&self.states);
        states.flat_map(|(track, state)| {
            state.open.iter().filter(|slice| slice.id != 0).map(move |slice| (track, slice.id))
        })
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
