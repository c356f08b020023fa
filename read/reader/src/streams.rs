//! Determines the streams among the files of a trace, each once.

use std::collections::HashMap;

use dormouse_ctf::{Metadata, Problem, StreamReader, Trace};

use crate::extent::{Extent, WINDOW_BYTES};
use dormouse_directory::is_stream_name;

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Index of its trace.
    pub trace: usize,
    /// Name of its file, relative to the directory that the user has named.
    pub name: String,
    pub extent: Extent,
    /// Its index file.
    pub index: Option<Extent>,
    /// For a stream that is still written, the number of bytes that are read.
    pub growing: Option<u64>,
}

/// A file that may be a stream.
struct Candidate {
    stream: Stream,
    /// Its name in the trace's directory.
    name: String,
    identity: Option<(u32, u32)>,
    /// Header and context of its first packet.
    header: Vec<u8>,
}

/// Returns the streams among the files of a trace. Those of Dormouse are sorted, the state stream first. Files that are
/// not streams, or that repeat one, are reported in `left_out`.
pub(crate) fn of_trace(
    trace: &Trace,
    index: usize,
    prefix: &str,
    files: Vec<(String, Extent)>,
    left_out: &mut Vec<String>,
) -> Vec<Stream> {
    let own = trace.own.as_ref();
    let mut candidates = Vec::new();
    for (name, extent) in files {
        let first = StreamReader::first_packet(trace, extent.window(*WINDOW_BYTES.start()));
        let is_expected = own.is_some_and(|metadata| is_expected(metadata, &name));
        let full_name = format!("{prefix}{name}");
        match (first.identity, first.problem) {
            // A stream without its header is damaged; a file that nothing names as a stream is not one.
            (None, Some(problem @ (Problem::Header(_) | Problem::CutOff { .. }))) if !is_expected => {
                left_out.push(format!("{full_name} is no stream: it {problem}; it is left out"));
                continue;
            }
            _ => {}
        }
        let stream = Stream { trace: index, name: full_name, extent, index: None, growing: None };
        candidates.push(Candidate { stream, name, identity: first.identity, header: first.header });
    }
    match own {
        Some(metadata) => of_own(metadata, candidates, left_out),
        // Without times, a repeated stream cannot be distinguished from two equal ones.
        None if trace.class.clocks.is_empty() => candidates.into_iter().map(|candidate| candidate.stream).collect(),
        None => of_others(candidates, left_out),
    }
}

fn is_expected(metadata: &Metadata, name: &str) -> bool {
    name == "state" || is_stream_name(name) || metadata.totals.0.contains_key(name)
}

/// Keeps one file of each stream: the one with the name that the session gave it, if it exists.
fn of_own(metadata: &Metadata, candidates: Vec<Candidate>, left_out: &mut Vec<String>) -> Vec<Stream> {
    let keyed = candidates.into_iter().map(|candidate| {
        let name = candidate.name.as_str();
        let is_own_name = match metadata.totals.0.get(name) {
            Some(totals) => Some(totals.identity()) == candidate.identity,
            None => !metadata.totals.is_closed() && is_stream_name(name),
        };
        // The state stream comes first, so that a process has its name before its events of the same tick.
        ((name != "state", !is_own_name, number_in(name), name.to_string()), candidate)
    });
    let mut keyed: Vec<_> = keyed.collect();
    keyed.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let mut first_of: HashMap<(u32, u32), String> = HashMap::new();
    let mut streams = Vec::new();
    for (_, Candidate { stream, identity, .. }) in keyed {
        if let Some(first) = identity.and_then(|identity| first_of.get(&identity)) {
            left_out.push(same(first, &stream.name));
            continue;
        }
        first_of.extend(identity.map(|identity| (identity, stream.name.clone())));
        streams.push(stream);
    }
    streams
}

/// Other tracers do not list the streams of a trace, and can write several files for one. Of files with identical
/// contents, the first one is kept.
fn of_others(candidates: Vec<Candidate>, left_out: &mut Vec<String>) -> Vec<Stream> {
    let mut kept: Vec<(Vec<u8>, Stream)> = Vec::new();
    for Candidate { stream, header, identity, .. } in candidates {
        let same_start = kept.iter().filter(|(other, _)| identity.is_some() && *other == header);
        let mut doubles = same_start.filter(|(_, other)| other.extent.is_same(&stream.extent).unwrap_or(false));
        match doubles.next() {
            Some((_, first)) => left_out.push(same(&first.name, &stream.name)),
            None => kept.push((header, stream)),
        }
    }
    kept.into_iter().map(|(_, stream)| stream).collect()
}

fn same(first: &str, second: &str) -> String {
    format!("{first} and {second} are the same stream: {second} is left out")
}

/// Returns the number at the end of a name, so that `cpu_10` comes after `cpu_9`.
fn number_in(name: &str) -> u32 {
    name.rsplit('_').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
