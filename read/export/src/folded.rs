//! Folded stacks, the input of flame graphs: `process;thread;outer;inner 123`, one line for each stack, with the
//! nanoseconds in which its last slice was the innermost one.
//!
//! Slices on lanes are in no stack. Slices during which events can have been lost have no own time.

use std::collections::HashMap;
use std::io::Write;

use dormouse_abi::text::is_printable;
use dormouse_analysis::timeline::{Begin, Counter, End, Flow, Instant, Loss, NameText, Sink, Track, TrackKind};
use dormouse_ctf::time::since_ns;

use crate::nest::{CONTINUED_MAX, Nest};

/// Maximum number of stacks. The time of further stacks counts for the enclosing one.
const STACKS_MAX: usize = 1 << 20;
/// Memory that is counted for a stack.
const STACK_BYTES: usize = 128;
/// Stack of an outermost slice for which there was no room.
const NO_STACK: u32 = u32::MAX;

/// An open slice.
#[derive(Debug, Clone, Copy)]
struct Frame {
    stack: u32,
    name: u32,
    since_ns: i64,
    /// Time of the slices nested in it, in nanoseconds.
    within_ns: u64,
}

/// Stacks and their own time.
#[derive(Debug)]
pub(crate) struct Folded {
    nest: Nest<Frame>,
    /// For each stack, the enclosing stack (for an outermost slice, `Err` with the track), and the name of the
    /// innermost slice.
    stacks: Vec<(Result<u32, u32>, u32)>,
    own_ns: Vec<u128>,
    known: HashMap<(Result<u32, u32>, u32), u32>,
    /// Parent of each track, and the label of threads and processes.
    tracks: Vec<(Option<u32>, Option<String>)>,
    pub slices_cut: u64,
    stacks_max: usize,
    /// Slices whose time counts for another stack, or for none.
    pub slices_without_stack: u64,
}

impl Folded {
    /// Creates an empty set of stacks, limited to `bytes` of memory.
    pub(crate) fn new(bytes: usize) -> Folded {
        Folded {
            nest: Nest::default(),
            stacks: Vec::new(),
            own_ns: Vec::new(),
            known: HashMap::new(),
            tracks: Vec::new(),
            slices_cut: 0,
            stacks_max: STACKS_MAX.min(bytes / STACK_BYTES),
            slices_without_stack: 0,
        }
    }

    /// Returns the stack of a slice with this name within another stack, or on a track.
    fn stack(&mut self, within: Result<u32, u32>, name: u32) -> u32 {
        if let Some(known) = self.known.get(&(within, name)) {
            return *known;
        }
        if self.stacks.len() >= self.stacks_max {
            self.slices_without_stack += 1;
            return within.unwrap_or(NO_STACK);
        }
        let stack = self.stacks.len() as u32;
        self.stacks.push((within, name));
        self.own_ns.push(0);
        self.known.insert((within, name), stack);
        stack
    }

    fn open(&mut self, track: u32, id: u64, name: u32, ns: i64) {
        let within = self.nest.open(track).last().map_or(Err(track), |(_, frame)| Ok(frame.stack));
        let stack = self.stack(within, name);
        self.nest.begin(track, id, Frame { stack, name, since_ns: ns, within_ns: 0 });
    }

    /// Ends the innermost slice of a track.
    fn close(&mut self, track: u32, ns: i64, is_believed: bool) {
        let open = self.nest.open(track);
        let Some((_, frame)) = open.pop() else { return };
        let ns = since_ns(ns, frame.since_ns);
        if is_believed && let Some(own_ns) = self.own_ns.get_mut(frame.stack as usize) {
            *own_ns += u128::from(ns.saturating_sub(frame.within_ns));
        }
        if let Some((_, outer)) = open.last_mut() {
            outer.within_ns = outer.within_ns.saturating_add(ns);
        }
    }

    /// Writes a line for each stack that has own time.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub(crate) fn write(&self, names: &[NameText], out: &mut impl Write) -> std::io::Result<()> {
        let mut line = String::new();
        let mut path = Vec::new();
        for (stack, ns) in self.own_ns.iter().enumerate().filter(|(_, ns)| **ns > 0) {
            let mut at = Ok(stack as u32);
            path.clear();
            let track = loop {
                match at {
                    Ok(stack) => {
                        let (within, name) = self.stacks[stack as usize];
                        path.push(name);
                        at = within;
                    }
                    Err(track) => break track,
                }
            };
            line.clear();
            let (parent, name) = &self.tracks[track as usize];
            let process = parent.and_then(|parent| self.tracks[parent as usize].1.as_deref());
            for frame in process.into_iter().chain(name.as_deref()) {
                put_frame(frame, &mut line);
            }
            path.iter().rev().for_each(|name| put_frame(&names[*name as usize].text, &mut line));
            // Remove the semicolon after the last frame.
            line.pop();
            writeln!(out, "{line} {ns}")?;
        }
        Ok(())
    }
}

/// Appends a frame, without characters that would end the frame or the line.
fn put_frame(name: &str, line: &mut String) {
    line.extend(name.chars().map(|c| match c {
        ';' => ':',
        c if is_printable(c) => c,
        _ => char::REPLACEMENT_CHARACTER,
    }));
    line.push(';');
}

impl Sink for Folded {
    type Kept = ();

    fn track(&mut self, track: &Track<'_>) {
        let name = match track.kind {
            TrackKind::Process { pid } if track.name.is_empty() => Some(format!("process {pid}")),
            TrackKind::Process { pid } => Some(format!("{} ({pid})", track.name)),
            TrackKind::Thread { tid, .. } if track.name.is_empty() => Some(format!("thread {tid}")),
            TrackKind::Thread { tid, .. } => Some(format!("{} ({tid})", track.name)),
            _ => None,
        };
        let index = track.id as usize;
        if self.tracks.len() <= index {
            self.tracks.resize(index + 1, (None, None));
        }
        self.tracks[index] = (track.parent, name);
    }

    fn begin(&mut self, begin: &Begin<'_>) {
        if self.tracks[begin.track as usize].1.is_some() {
            self.open(begin.track, begin.id, begin.name, begin.ns);
        }
    }

    fn end(&mut self, end: &End<'_>, (): ()) {
        let Some(index) = self.nest.open(end.track).iter().rposition(|(id, _)| *id == end.id) else { return };
        let mut cut: Vec<(u64, Frame)> = self.nest.open(end.track)[index + 1..].to_vec();
        cut.iter().for_each(|_| self.close(end.track, end.ns, true));
        self.close(end.track, end.ns, end.doubt.is_none());
        self.slices_cut += cut.len().saturating_sub(CONTINUED_MAX) as u64;
        cut.truncate(CONTINUED_MAX);
        cut.iter().for_each(|(id, frame)| self.open(end.track, *id, frame.name, end.ns));
    }

    fn instant(&mut self, _: &Instant<'_>) {}
    fn counter(&mut self, _: &Counter) {}
    fn flow(&mut self, _: &Flow) {}
    fn loss(&mut self, _: &Loss) {}
}
