//! Tail sampling: which events of a session are kept, once it is known how the requests that they belong to went on.
//!
//! ```text
//!   every record, as soon as it is committed ─▶ see ──▶ its key is open from `window` before it until `window` after it,
//!                                                       if the tail's condition is true for it
//!   every record, when that time is over ────▶ keeps ─▶ is its key open at its time?
//! ```
//! Both take records in any order, so the answer depends on times alone: an event is kept if a condition is true for it,
//! or for an event with the same key at most one window earlier or later. A rule without a tail keeps what it selects;
//! its sample is drawn here, because programs record all events of such a class for the other rule's sake. An event that
//! no rule selects was recorded by earlier rules, and is kept.
//!
//! # Bounds
//! At most [`OPEN_COUNT_MAX`] spans are known. If there are more, all keys are open in the further ones: too much is kept
//! then, and nothing that was asked for is missing.

use std::collections::BTreeMap;

use dormouse_abi::rule::{Sample, hash, is_in_sample, random};
use dormouse_filter::{Fields, RuleText, Tail, Test};

use super::{ClassRef, Place, Values, Writer};
use crate::metadata::Metadata;
use crate::stream::{EventFields, PageRecord, Scratch, TraceRef};

/// Maximum number of spans of all rules in which keys are open. Each takes about 40 bytes.
pub const OPEN_COUNT_MAX: usize = 1 << 18;

/// Rules of a session with tails, bound to its classes.
#[derive(Debug, Default)]
pub struct TailSampler {
    rules: Vec<TailRule>,
    /// Rules that select events of a class, by its index.
    classes: Vec<Vec<Selecting>>,
    open_count_max: usize,
    /// Place in the sequence of random numbers.
    random: u64,
    scratch: Scratch,
}

/// A rule of the session.
#[derive(Debug)]
struct TailRule {
    text: String,
    /// `None`: one that this version does not understand.
    rule: Option<RuleText>,
    /// Events before this time were not recorded by this rule.
    since: u64,
    /// The tail's window, in ticks.
    window: u64,
    open: OpenKeys,
}

/// Spans of time in which keys are open.
#[derive(Debug, Default)]
struct OpenKeys {
    /// End of the span, by hash of the key and begin. Spans of a key neither overlap nor touch.
    spans: BTreeMap<(u64, u64), u64>,
    /// End of the span in which all keys are open, by begin.
    all: BTreeMap<u64, u64>,
}

/// A rule that selects events of a class.
#[derive(Debug)]
struct Selecting {
    /// Its index.
    rule: usize,
    test: BoundTest,
    /// Field of its sample, and 1 / the part that it takes.
    sample: Option<(BoundKey, u32)>,
    part: Part,
}

/// Which of the selected events a rule keeps.
#[derive(Debug)]
enum Part {
    All,
    /// One in so many, by chance.
    OneIn(u32),
    Tail {
        key: BoundKey,
        keep: BoundTest,
    },
}

type BoundTest = (Test, Vec<Option<Place>>);

/// Place of a key. The events of a class may lack it.
type BoundKey = [Option<Place>; 1];

impl TailSampler {
    /// Returns a sampler without rules, which keeps every event. `seed`: where its random numbers begin.
    pub fn new(seed: u64) -> TailSampler {
        TailSampler { open_count_max: OPEN_COUNT_MAX, random: seed, ..TailSampler::default() }
    }

    /// Replaces the rules, one a line. `since` returns the time from which on a line is in force. Rules that stay the same
    /// still know the keys of earlier events. No class is bound afterwards.
    pub fn set_rules(&mut self, text: &str, since: impl Fn(&str) -> u64, frequency_hz: u64) {
        let mut before = std::mem::take(&mut self.rules);
        self.classes.clear();
        for line in text.lines() {
            let same = before.iter().position(|rule| rule.text == line);
            let rule = same.map(|index| before.swap_remove(index)).unwrap_or_else(|| {
                let rule = RuleText::parse(line).ok();
                let window_ns = rule.as_ref().and_then(|rule| rule.tail.as_ref()).map_or(0, |tail| tail.window_ns);
                let window = u128::from(window_ns) * u128::from(frequency_hz) / 1_000_000_000;
                TailRule { text: line.into(), rule, since: 0, window: window as u64, open: OpenKeys::default() }
            });
            self.rules.push(TailRule { since: since(line), ..rule });
        }
    }

    /// Binds the rules to the classes of a session's trace.
    pub fn bind(&mut self, metadata: &Metadata) {
        let trace = TraceRef::from(metadata);
        let plan = metadata.classes.of_events();
        let bound = |class| self.selecting(&ClassRef { class, trace, plan });
        self.classes = (0..plan.class_count()).map(|index| bound(plan.class_at(index))).collect();
    }

    /// Whether a rule has a tail.
    pub fn has_tails(&self) -> bool {
        self.tails().next().is_some()
    }

    /// Returns the longest window, in ticks.
    pub fn window(&self) -> u64 {
        self.tails().map(|rule| rule.window).max().unwrap_or(0)
    }

    fn tails(&self) -> impl Iterator<Item = &TailRule> {
        self.rules.iter().filter(|rule| rule.rule.as_ref().is_some_and(|rule| rule.tail.is_some()))
    }

    /// Returns the rules that select events of a class; none if a rule excludes it.
    fn selecting(&self, class: &ClassRef<'_>) -> Vec<Selecting> {
        let mut selecting = Vec::new();
        for (index, TailRule { rule, .. }) in self.rules.iter().enumerate() {
            let all = Selecting { rule: index, test: (Test::Always, Vec::new()), sample: None, part: Part::All };
            let Some(rule) = rule else {
                selecting.push(all);
                continue;
            };
            let (name, level) = (&class.class.full_name, class.class.level);
            let is_in = rule.levels.is_none_or(|levels| levels.admits(level));
            if !is_in || !dormouse_abi::class::matches(&rule.pattern, name) {
                continue;
            }
            if rule.is_exclusion {
                return Vec::new();
            }
            let test_of = |filter| class.bind_filter(filter, |name| class.find_as_rule(name));
            let key_of = |name| [class.find_as_rule(name).map(|(place, _)| place)];
            let test = rule.filter.as_ref().map(test_of).unwrap_or(all.test);
            if test.0 == Test::Never {
                continue;
            }
            let sample = match &rule.sample {
                Some(Sample::By(name, count)) => Some((key_of(name), *count)),
                _ => None,
            };
            let part = match (&rule.tail, &rule.sample) {
                (Some(Tail { key, keep, .. }), _) => Part::Tail { key: key_of(key), keep: test_of(keep) },
                (None, Some(Sample::OneIn(count))) => Part::OneIn(*count),
                // Rules with a rate are not accepted beside a tail.
                (None, Some(Sample::PerSecond(_) | Sample::By(..)) | None) => Part::All,
            };
            selecting.push(Selecting { rule: index, test, sample, part });
        }
        selecting
    }

    /// Takes notice of a record, which may open a key.
    pub fn see(&mut self, record: &PageRecord<'_>) {
        let TailSampler { rules, classes, open_count_max, scratch, .. } = self;
        let mut event = Asked { event: &record.fields, scratch };
        for selecting in classes.get(record.class_index).into_iter().flatten() {
            let Part::Tail { key, keep } = &selecting.part else { continue };
            if rules[selecting.rule].since <= record.timestamp
                && event.passes(&selecting.test)
                && event.passes(keep)
                && let Some(key) = event.hash(key)
            {
                let is_full = rules.iter().map(|rule| rule.open.spans.len()).sum::<usize>() >= *open_count_max;
                let TailRule { open, window, .. } = &mut rules[selecting.rule];
                let (begin, end) = (record.timestamp.saturating_sub(*window), record.timestamp.saturating_add(*window));
                open.open(key, begin, end, is_full);
            }
        }
    }

    /// Whether a record is kept. All records within the window of it must have been seen.
    pub fn keeps(&mut self, record: &PageRecord<'_>) -> bool {
        let TailSampler { rules, classes, random: place, scratch, .. } = self;
        let mut event = Asked { event: &record.fields, scratch };
        let mut is_selected = false;
        for Selecting { rule, test, sample, part } in classes.get(record.class_index).into_iter().flatten() {
            let is_in_sample = |event: &mut Asked<'_, '_>, (key, count): &(BoundKey, u32)| {
                event.hash(key).is_some_and(|hash| is_in_sample(hash, *count))
            };
            if !event.passes(test) || sample.as_ref().is_some_and(|sample| !is_in_sample(&mut event, sample)) {
                continue;
            }
            is_selected = true;
            let TailRule { since, open, .. } = &rules[*rule];
            let is_kept = record.timestamp < *since
                || match part {
                    Part::All => true,
                    Part::OneIn(count) => {
                        let (next, number) = random(*place);
                        *place = next;
                        dormouse_abi::rule::is_in_sample(number, *count)
                    }
                    Part::Tail { key, keep } => {
                        event.passes(keep) || event.hash(key).is_some_and(|key| open.is_open(key, record.timestamp))
                    }
                };
            if is_kept {
                return true;
            }
        }
        !is_selected
    }

    /// Forgets in which spans before a time keys were open: no record of those is asked for any more.
    pub fn forget_before(&mut self, time: u64) {
        for TailRule { open, .. } in &mut self.rules {
            open.spans.retain(|_, end| *end >= time);
            open.all.retain(|_, end| *end >= time);
        }
    }

    /// Returns the number of spans that are known.
    pub fn open_count(&self) -> usize {
        self.rules.iter().map(|rule| rule.open.spans.len() + rule.open.all.len()).sum()
    }
}

impl OpenKeys {
    /// Opens a key in a span, or all keys if no more spans may be known.
    fn open(&mut self, key: u64, begin: u64, end: u64, is_full: bool) {
        let touching =
            self.spans.range(..=(key, end)).next_back().filter(|((of, _), last)| *of == key && **last >= begin);
        match touching {
            None if is_full => unite(&mut self.all, begin, end, |begin| begin, |begin| Some(*begin)),
            _ => unite(&mut self.spans, begin, end, |begin| (key, begin), |(of, begin)| (*of == key).then_some(*begin)),
        }
    }

    fn is_open(&self, key: u64, time: u64) -> bool {
        let of_key = self.spans.range((key, 0)..=(key, time)).next_back().map(|(_, end)| *end);
        let of_all = self.all.range(..=time).next_back().map(|(_, end)| *end);
        of_key.into_iter().chain(of_all).any(|end| time <= end)
    }
}

/// Adds a span to spans, and joins those that it touches. `place`: the key of a span by its begin; `begin_of`: the begin
/// of a span, if it is one of these spans.
fn unite<K: Ord + Copy>(
    spans: &mut BTreeMap<K, u64>,
    mut begin: u64,
    mut end: u64,
    place: impl Fn(u64) -> K,
    begin_of: impl Fn(&K) -> Option<u64>,
) {
    while let Some((at, known_begin, known_end)) = spans
        .range(..=place(end))
        .next_back()
        .and_then(|(at, known_end)| Some((*at, begin_of(at)?, *known_end)))
        .filter(|(_, _, known_end)| *known_end >= begin)
    {
        (begin, end) = (begin.min(known_begin), end.max(known_end));
        spans.remove(&at);
    }
    spans.insert(place(begin), end);
}

/// An event whose values are asked for.
struct Asked<'e, 's> {
    event: &'e EventFields<'e>,
    scratch: &'s mut Scratch,
}

impl Asked<'_, '_> {
    fn values<'v>(&'v mut self, places: &'v [Option<Place>]) -> Values<'v, 'v> {
        // Rules do not know the writer, and the name of the class is a constant.
        Values { event: self.event, name: &[], writer: Writer::default(), places, scratch: self.scratch }
    }

    fn passes(&mut self, (test, places): &BoundTest) -> bool {
        test.wants(&mut self.values(places))
    }

    /// Returns the hash of a key, if the event has it.
    fn hash(&mut self, key: &BoundKey) -> Option<u64> {
        self.values(key).value(0).map(|value| hash(&value))
    }
}

#[cfg(test)]
mod tests {
    use dormouse_abi::class::{FieldType, Kind};
    use dormouse_abi::record::RecordKind;

    use super::*;
    use crate::stream::{PageCopy, PagePlace, PageRecords};
    use crate::testing::{Trace, TraceBuilder};
    use crate::{StreamReader, Value};

    /// An event: time, whether its class has an id, id, status.
    type Sketch = (u64, bool, u64, u16);

    /// Returns a trace with these events, which are in order of time, in one packet of stream 1.
    fn trace_of(kind: RecordKind, events: &[Sketch]) -> Trace {
        let mut builder = TraceBuilder::of_records(kind);
        let (id, status) = (("id", FieldType::scalar(Kind::U64)), ("status", FieldType::scalar(Kind::U16)));
        let ended = builder.class("http", "ended", &[id, ("path", FieldType::scalar(Kind::Str)), status]);
        let apart = builder.class("http", "apart", &[status]);
        let stream = builder.stream(0);
        for (time, has_id, id, status) in events {
            let path = "x".repeat(*time as usize % 7);
            match has_id {
                true => {
                    let values = [Value::U64(*id), Value::Str(path.as_bytes()), Value::U16(*status)];
                    builder.event(stream, *time, 1, 1, ended, &values);
                }
                false => builder.event(stream, *time, 1, 1, apart, &[Value::U16(*status)]),
            }
        }
        builder.packet(stream, 0, 0);
        builder.finish()
    }

    fn records<'p>(page: &'p [u8], metadata: &'p Metadata, begin: u64) -> Vec<PageRecord<'p>> {
        let records = PageRecords::new(page, page.len(), &metadata.classes, PagePlace::begin(begin));
        records.map(Result::unwrap).collect()
    }

    fn sampler(rules: &str, metadata: &Metadata) -> TailSampler {
        let mut sampler = TailSampler::new(7);
        // A tick is a nanosecond.
        sampler.set_rules(rules, |_| 0, 1_000_000_000);
        sampler.bind(metadata);
        sampler
    }

    /// Whether an event is kept by `http:* tail 5ms by id keep status >= 500`, from the definition.
    fn is_kept(event: &Sketch, all: &[Sketch]) -> bool {
        let (time, has_id, id, status) = *event;
        let of_key = |other: &&Sketch| has_id && other.1 && other.2 == id;
        status >= 500 || all.iter().filter(of_key).any(|other| other.3 >= 500 && other.0.abs_diff(time) <= 5_000_000)
    }

    fn random_events(seed: u64, count: usize, step: u64) -> Vec<Sketch> {
        let mut place = seed;
        let mut next = |bound: u64| {
            let (next, number) = random(place);
            place = next;
            number % bound
        };
        let mut time = 1_000;
        let event = |_| {
            time += next(step);
            (time, next(8) != 0, next(40), if next(25) == 0 { 503 } else { 200 })
        };
        (0..count).map(event).collect()
    }

    #[test]
    fn what_is_kept_is_what_the_definition_says() {
        for seed in 0..40 {
            let events = random_events(seed, 600, 1_000_000);
            let trace = trace_of(RecordKind::Ids, &events);
            let metadata = trace.parse();
            let page = &trace.streams[1];
            let all = records(page, &metadata, events[0].0);
            let mut sampler = sampler("http:* tail 5ms by id keep status >= 500", &metadata);
            // The order in which records are seen does not matter.
            let mut order: Vec<usize> = (0..all.len()).collect();
            order.sort_by_key(|index| random(seed ^ *index as u64).1);
            order.iter().for_each(|index| sampler.see(&all[*index]));
            let kept: Vec<bool> = all.iter().map(|record| sampler.keeps(record)).collect();
            let expected: Vec<bool> = events.iter().map(|event| is_kept(event, &events)).collect();
            assert_eq!(kept, expected, "seed {seed}");
            assert!(kept.contains(&true) && kept.contains(&false));
        }
    }

    /// Two orders of looking: everything first, or with a horizon behind which spans are forgotten.
    #[test]
    fn spans_are_forgotten_once_no_event_can_need_them() {
        let events = random_events(99, 6_000, 1_000_000);
        let trace = trace_of(RecordKind::Ids, &events);
        let metadata = trace.parse();
        let all = records(&trace.streams[1], &metadata, events[0].0);
        let mut sampler = sampler("http:* tail 5ms by id keep status >= 500", &metadata);
        let (mut seen, mut open_max) = (0, 0);
        for (record, event) in all.iter().zip(&events) {
            while let Some(next) = all.get(seen).filter(|next| next.timestamp <= record.timestamp + 5_000_000) {
                sampler.see(next);
                seen += 1;
            }
            sampler.forget_before(record.timestamp);
            open_max = open_max.max(sampler.open_count());
            assert_eq!(sampler.keeps(record), is_kept(event, &events), "{event:?}");
        }
        assert!((1..40).contains(&open_max), "{open_max}");
    }

    #[test]
    fn more_spans_than_may_be_known_keep_more_events() {
        let events = random_events(5, 2_000, 2_000_000);
        let trace = trace_of(RecordKind::Ids, &events);
        let metadata = trace.parse();
        let all = records(&trace.streams[1], &metadata, events[0].0);
        let mut sampler = sampler("http:* tail 5ms by id keep status >= 500", &metadata);
        sampler.open_count_max = 10;
        all.iter().for_each(|record| sampler.see(record));
        let kept: Vec<bool> = all.iter().map(|record| sampler.keeps(record)).collect();
        let expected: Vec<bool> = events.iter().map(|event| is_kept(event, &events)).collect();
        assert!(kept.iter().zip(&expected).all(|(kept, expected)| *kept || !expected));
        assert!(kept.iter().filter(|kept| **kept).count() > expected.iter().filter(|kept| **kept).count());
        let spans: usize = sampler.rules.iter().map(|rule| rule.open.spans.len()).sum();
        assert!(spans <= 10, "{spans}");
    }

    #[test]
    fn other_rules_keep_their_share() {
        let events: Vec<Sketch> = (0..20_000).map(|n| (1_000 + n * 1_000_000, true, n, 200)).collect();
        let trace = trace_of(RecordKind::Compact, &events);
        let metadata = trace.parse();
        let all = records(&trace.streams[1], &metadata, events[0].0);
        let tail = "http:ended tail 5ms by id keep status >= 500";
        let kept = |rules: &str| {
            let mut sampler = sampler(rules, &metadata);
            all.iter().for_each(|record| sampler.see(record));
            let kept: Vec<u64> = (0..).zip(&all).filter(|(_, record)| sampler.keeps(record)).map(|(n, _)| n).collect();
            kept
        };
        assert_eq!(kept(tail).len(), 0);
        assert_eq!(kept("http:*").len(), 20_000);
        assert_eq!(kept(&format!("{tail}\nhttp:* where id < 50")), (0..50).collect::<Vec<_>>());
        assert_eq!(kept(&format!("{tail}\nhttp:e* level<=INFO")).len(), 0);
        let one_in_ten = kept(&format!("{tail}\nhttp:* sample 1/10")).len();
        assert!((1_800..2_200).contains(&one_in_ten), "{one_in_ten}");
        let by_id = |n: &u64| is_in_sample(hash(&dormouse_filter::Value::Integer((*n).into())), 10);
        let sampled: Vec<u64> = (0..20_000).filter(by_id).collect();
        assert_eq!(kept(&format!("{tail}\nhttp:* sample by id 1/10")), sampled);
        // Recorded by other rules: earlier ones, or none that this tail concerns.
        assert_eq!(kept("http:apart tail 5ms by id keep status >= 500").len(), 20_000);
        assert_eq!(kept(&format!("{tail}\n!http:*")).len(), 20_000);
        assert_eq!(kept("http:ended tail 5ms by id keep status >= 500 where id > 100").len(), 101);
        assert_eq!(kept("http:ended tail 5ms by id keep true").len(), 20_000);
        assert_eq!(kept("http:ended tail 5ms by nothing keep status == 200").len(), 20_000);
        assert_eq!(kept("http:ended tail 5ms by nothing keep status == 300").len(), 0);
        // A tail concerns events from its beginning on, and a rule that stays knows its keys.
        let mut sampler = sampler(tail, &metadata);
        sampler.see(&all[0]);
        let since = |line: &str| if line == tail { 0 } else { 9 };
        sampler.set_rules(&format!("{tail}\nhttp:begun tail 1s by id keep x"), since, 1_000_000_000);
        assert_eq!((sampler.rules[0].since, sampler.rules[1].since), (0, 9));
        sampler.set_rules("http:* tail 5ms by id keep status >= 500", |_| 5_000_000_000, 1_000_000_000);
        sampler.bind(&metadata);
        let kept = all.iter().filter(|record| sampler.keeps(record)).count();
        assert_eq!(kept, events.iter().filter(|event| event.0 < 5_000_000_000).count());
        assert_eq!(sampler.window(), 5_000_000);
        assert!(sampler.has_tails());
    }

    /// Records are far apart, so that compact ones without those between them would have other times.
    #[test]
    fn copied_records_have_their_times() {
        for kind in [RecordKind::Ids, RecordKind::Compact] {
            for seed in 0..30 {
                let events = random_events(seed, 200, 3 << 31);
                let trace = trace_of(kind, &events);
                let metadata = trace.parse();
                let page = &trace.streams[1];
                let header = crate::PacketHeader::decode(page).unwrap();
                let all = records(page, &metadata, header.timestamp_begin);
                let is_chosen = |index: &usize| random(seed ^ (*index as u64) << 20).1.is_multiple_of(5);
                let mut copy = PageCopy::new(page, kind, header.timestamp_begin);
                (0..all.len()).filter(is_chosen).for_each(|index| copy.push(&all[index]));
                let mut bytes = copy.bytes;
                let content_size_bytes = bytes.len() as u64;
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                let header =
                    crate::PacketHeader { content_size_bytes, packet_size_bytes: bytes.len() as u64, ..header };
                bytes[..dormouse_abi::page::HEADER_SIZE_BYTES].copy_from_slice(&header.encode());
                let read = |bytes: &[u8]| -> Vec<(u64, String)> {
                    let mut reader = StreamReader::new(&metadata, 0, bytes);
                    let told = |event: crate::Event<'_>| {
                        (event.timestamp, format!("{:?}", event.fields().collect::<Vec<_>>()))
                    };
                    reader.by_ref().map(|event| told(event.unwrap())).collect()
                };
                let whole = read(page);
                let times: Vec<u64> = whole.iter().map(|(time, _)| *time).collect();
                assert_eq!(times, events.iter().map(|event| event.0).collect::<Vec<_>>());
                let expected: Vec<_> = (0..all.len()).filter(is_chosen).map(|index| whole[index].clone()).collect();
                assert_eq!(read(&bytes), expected, "{kind:?}, seed {seed}");
            }
        }
    }
}
