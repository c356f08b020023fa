//! Totals of a trace's streams when the session closed it, by which a reader notices missing data.
//!
//! The totals are entries of `env` in the metadata, one for each stream that has packets, named after its file:
//!
//! ```text
//! totals_cpu_1 = "id 0, instance 1: 10939 events in 46 packets, 0 lost";
//! ```
//!
//! Other readers show them with the rest of the environment. They are written last, when every stream is complete, so a
//! trace without them was not closed: its session is live, or was killed.

use std::collections::BTreeMap;
use std::fmt;

/// Totals of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamTotals {
    /// `stream_id` of its packets.
    pub stream_id: u32,
    /// `stream_instance_id` of its packets.
    pub stream_instance_id: u32,
    /// Number of event records.
    pub events: u64,
    /// Number of packets, including those without records.
    pub packets: u64,
    /// `events_discarded` of the last packet.
    pub events_discarded: u64,
}

impl StreamTotals {
    /// Returns `stream_id` and `stream_instance_id`.
    pub fn identity(&self) -> (u32, u32) {
        (self.stream_id, self.stream_instance_id)
    }

    fn parse(text: &str) -> Option<StreamTotals> {
        let (id, rest) = text.strip_prefix("id ")?.split_once(", instance ")?;
        let (instance, rest) = rest.split_once(": ")?;
        let (events, rest) = rest.split_once(" events in ")?;
        let (packets, rest) = rest.split_once(" packets, ")?;
        Some(StreamTotals {
            stream_id: id.parse().ok()?,
            stream_instance_id: instance.parse().ok()?,
            events: events.parse().ok()?,
            packets: packets.parse().ok()?,
            events_discarded: rest.strip_suffix(" lost")?.parse().ok()?,
        })
    }
}

fn count(events: u64, packets: u64) -> String {
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    format!("{events} event{} in {packets} packet{}", plural(events), plural(packets))
}

impl fmt::Display for StreamTotals {
    /// Writes the text of the metadata entry.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StreamTotals { stream_id, stream_instance_id, events, packets, events_discarded } = self;
        write!(
            f,
            "id {stream_id}, instance {stream_instance_id}: {events} events in {packets} packets, {events_discarded} lost"
        )
    }
}

/// Totals of a trace by file name. They are empty if the trace was not closed; a closed trace has at least a state
/// stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals(pub BTreeMap<String, StreamTotals>);

/// Prefix of the entries' names.
const PREFIX: &str = "totals_";

impl Totals {
    /// Whether the session closed the trace and wrote its totals.
    pub fn is_closed(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns names and texts of the entries.
    pub fn entries(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(name, totals)| (format!("{PREFIX}{name}"), totals.to_string()))
    }

    /// Adds an entry of `env` if it is one of these. Returns false if it is one but is malformed.
    pub fn read(&mut self, name: &str, text: &str) -> bool {
        let Some(name) = name.strip_prefix(PREFIX) else { return true };
        let totals = StreamTotals::parse(text);
        self.0.extend(totals.map(|totals| (name.to_string(), totals)));
        totals.is_some()
    }

    /// Compares the totals with streams that were read to the end: for each, its file name, its size in bytes, and its
    /// content. Returns one line for each stream that is missing, differs from its totals, or has none, and no lines if
    /// the trace was not closed.
    pub fn compare<'a>(
        &self,
        streams: impl IntoIterator<Item = (&'a str, (u64, Option<StreamTotals>))>,
    ) -> Vec<String> {
        let streams = streams.into_iter().filter(|_| self.is_closed());
        let by_name: BTreeMap<_, _> = streams.collect();
        let identified =
            by_name.iter().filter_map(|(name, (_, found))| Some((found.as_ref()?.identity(), (*name, *found))));
        let mut by_identity: BTreeMap<_, _> = identified.collect();
        let mut lines = Vec::new();
        for (name, totals) in &self.0 {
            let content = count(totals.events, totals.packets);
            if let Some((name, Some(found))) = by_identity.remove(&totals.identity()) {
                if (found.events, found.packets) != (totals.events, totals.packets) {
                    lines.push(format!(
                        "{name} has {}, where {content} were written",
                        count(found.events, found.packets)
                    ));
                }
                continue;
            }
            let why = match by_name.get(name.as_str()) {
                Some((0, _)) => "is empty",
                Some((_, None)) => "has nothing that can be read",
                _ => "is missing",
            };
            lines.push(format!("{name} {why}: it held {content}"));
        }
        lines.extend(by_identity.into_iter().map(|((id, instance), (name, _))| {
            format!("{name} is none of the streams that were written: it has stream id {id} and instance {instance}")
        }));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_totals_are_read_back() {
        let one =
            StreamTotals { stream_id: 0, stream_instance_id: 7, events: 10_939, packets: 46, events_discarded: 2 };
        let totals = Totals(BTreeMap::from([("cpu_7".into(), one)]));
        let mut read = Totals::default();
        for (name, text) in totals.entries() {
            assert_eq!(
                (name.as_str(), text.as_str()),
                ("totals_cpu_7", "id 0, instance 7: 10939 events in 46 packets, 2 lost")
            );
            assert!(read.read(&name, &text));
        }
        assert_eq!(read, totals);
        assert!(read.read("hostname", "lair"));
        for other in
            ["", "id 0, instance 7: 1 event in 1 packet, 0 lost", "id 0, instance -7: 1 events in 1 packets, 0 lost"]
        {
            assert!(!read.read("totals_cpu_8", other), "{other}");
        }
    }
}
