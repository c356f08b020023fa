//! Process and thread numbers by which formats distinguish tracks: those of the trace, unless another track has them.

use std::collections::HashSet;

use dormouse_analysis::timeline::{Track, TrackKind};

/// Above every process and thread id of Linux (`PID_MAX_LIMIT`).
const BEYOND: u32 = 1 << 22;

/// Process and thread number of each track, by its index.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    by_track: Vec<(u32, u32)>,
    pids: HashSet<u32>,
    tids: HashSet<u32>,
}

fn own(known: &mut HashSet<u32>, id: Option<u64>, track: u32) -> u32 {
    let given = id.and_then(|id| u32::try_from(id).ok()).filter(|id| *id < BEYOND && known.insert(*id));
    given.unwrap_or(BEYOND + track)
}

impl Addresses {
    /// Returns the numbers of a track that is new or renamed.
    pub(crate) fn of(&mut self, track: &Track<'_>) -> (u32, u32) {
        if let Some(known) = self.by_track.get(track.id as usize) {
            return *known;
        }
        let parent = track.parent.map(|parent| self.by_track[parent as usize].0);
        let address = match track.kind {
            // A track that is not a thread gets a thread number of its own.
            TrackKind::Process { pid } => (own(&mut self.pids, Some(pid), track.id), BEYOND + track.id),
            TrackKind::Thread { tid, .. } => {
                let tid = own(&mut self.tids, Some(tid), track.id);
                (parent.unwrap_or(BEYOND + track.id), tid)
            }
            TrackKind::Lane { .. } | TrackKind::Counter { .. } => {
                (parent.unwrap_or(BEYOND + track.id), BEYOND + track.id)
            }
            TrackKind::Trace | TrackKind::Cpu { .. } | TrackKind::Losses { .. } => {
                (BEYOND + track.id, BEYOND + track.id)
            }
        };
        self.by_track.push(address);
        address
    }

    pub(crate) fn at(&self, track: u32) -> (u32, u32) {
        self.by_track[track as usize]
    }
}
