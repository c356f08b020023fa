//! Which files of a trace are its streams: each once, and nothing else.

use std::collections::HashMap;

use dormouse_ctf::{Metadata, Problem, StreamReader, Trace};

use crate::extent::{Extent, WINDOW_BYTES};
use dormouse_directory::is_stream_name;

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Index of its trace.
    pub trace: usize,
    /// Its file, from the directory that the user has named.
    pub name: String,
    pub extent: Extent,
    /// Its index file.
    pub index: Option<Extent>,
    /// Of one that is still written, how much of it is read.
    pub growing: Option<u64>,
}

/// A file that can be a stream.
struct Candidate {
    stream: Stream,
    /// Its name in the trace's directory.
    name: String,
    identity: Option<(u32, u32)>,
    /// Header and context of its first packet.
    header: Vec<u8>,
}

/// The streams among the files of a trace: those of Dormouse sorted, the state stream first. What is none, and what is there twice, is said.
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
            // A stream without its header is damaged; a file that nobody has called a stream is none.
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
        // Without times nothing tells a stream that is there twice from two that are alike.
        None if trace.class.clocks.is_empty() => candidates.into_iter().map(|candidate| candidate.stream).collect(),
        None => of_others(candidates, left_out),
    }
}

fn is_expected(metadata: &Metadata, name: &str) -> bool {
    name == "state" || is_stream_name(name) || metadata.totals.0.contains_key(name)
}

/// Keeps one file of each stream: that with the name which the session gives it, if it is there.
fn of_own(metadata: &Metadata, candidates: Vec<Candidate>, left_out: &mut Vec<String>) -> Vec<Stream> {
    let keyed = candidates.into_iter().map(|candidate| {
        let name = candidate.name.as_str();
        let is_own_name = match metadata.totals.0.get(name) {
            Some(totals) => Some(totals.identity()) == candidate.identity,
            None => !metadata.totals.is_closed() && is_stream_name(name),
        };
        // The state stream first: a process has its name before its events of the same tick.
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

/// Others do not say which streams there were, and can have several files of one. Of those that are the same to the last byte, the first is kept.
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

/// `cpu_10` comes after `cpu_9`.
fn number_in(name: &str) -> u32 {
    name.rsplit('_').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
