//! Reads arbitrary traces.

use std::collections::BTreeMap;

use dormouse_ctf::stream::{Choice, EventFields, Viewer};
use dormouse_ctf::{
    ClassCounts, ClassRef, Event, IntervalCounts, Merge, Notice, Selection, Stats, StreamReader, Trace, TraceRef,
    Writers,
};
use dormouse_filter::Filter;
use dormouse_print::{Formatter, LineFormat, Lines, People};

/// Filters over the fields that the targets' traces have, and over those that most traces have.
const FILTERS: [&str; 16] = [
    "id > 1",
    "a == 7 or b >= 100",
    "not (f2 < 0)",
    "f0 ~ \"*a*\"",
    "f3 != \"b\"",
    "a[1].a < 3",
    "f1[2] > 10 or f1.f0 > 10",
    "cpu == 1 and time > 0",
    "seq[1] >= 0x100",
    "text ~ \"?*\"",
    "x < 0 and y > 4K",
    "f > 1.5",
    "tag == \"NUMBER\"",
    "v.NUMBER > 0 or v.TEXT ~ \"a*\"",
    "fixed[2] == 170 and event == \"e3\"",
    "f4 == true or f5 == 10ms",
];

thread_local! {
    /// Each filter with its negation.
    static PARSED: [[Filter; 2]; FILTERS.len()] = FILTERS.map(|text| [text.to_string(), format!("not ({text})")].map(parse));
}

fn parse(text: String) -> Filter {
    Filter::parse(&text).unwrap_or_else(|error| panic!("{text} is a filter: {error}"))
}

/// How events are printed and filtered.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// Number of the format, modulo the number of formats; most numbers beyond mean that of babeltrace2.
    pub format: u8,
    /// Number of the filter, modulo the number of filters; `None` for no filter.
    pub filter: Option<u8>,
}

impl From<u8> for How {
    fn from(byte: u8) -> How {
        How { format: byte % 8, filter: (byte / 8 % 2 == 1).then_some(byte / 16) }
    }
}

/// One of the text formats.
enum Printer {
    Babeltrace(Formatter<'static>),
    People(Box<People<'static>>),
    Lines(Lines),
}

impl Printer {
    fn new(number: u8) -> Printer {
        let lines = |format| Printer::Lines(Lines::new(format, None));
        match number % 8 {
            0 => lines(LineFormat::Json),
            1 => lines(LineFormat::Logfmt),
            2 => lines(LineFormat::Csv(["a", "f1", "text", "v"].map(String::from).to_vec())),
            3 => Printer::People(Box::new(People::new(Default::default(), |_| 0, Some(100), true, None))),
            _ => Printer::Babeltrace(Formatter::new(Default::default(), |_| 0)),
        }
    }

    fn event(&mut self, event: &Event<'_>, writers: &mut Writers, out: &mut Vec<u8>) {
        match self {
            Printer::Babeltrace(formatter) => formatter.event(event, out),
            Printer::People(people) => people.event(event, &writers.of(event), out),
            Printer::Lines(lines) => lines.event(event, &writers.of(event), out),
        }
    }
}

/// Length of the intervals in which events are counted.
const INTERVAL_NS: i64 = 1000;

/// Prints the contents of all streams, counts the events in three ways, and looks at chosen events in two. Asserts that
/// all ways find the same number of events, that nothing else is printed as an event, that no event matches both a
/// filter and its negation, and that each notice has a text. Returns the number of events.
pub fn read(trace: &Trace, streams: &[Vec<u8>], how: How) -> u64 {
    let (mut printer, mut writers) = (Printer::new(how.format), Writers::default());
    let mut questions = how.filter.map(|filter| {
        let filters = PARSED.with(|parsed| parsed[usize::from(filter) % FILTERS.len()].clone());
        filters.map(|filter| Selection::unchecked(Vec::new(), vec![filter]))
    });
    let (mut text, mut of_classes) = (Vec::new(), BTreeMap::<*const _, u64>::new());
    let mut of_intervals = BTreeMap::<(Option<i64>, *const _), u64>::new();
    let readers = streams.iter().enumerate().map(|(index, bytes)| StreamReader::new(trace, index, bytes));
    for item in Merge::new(readers) {
        match item {
            Ok(event) => {
                text.clear();
                printer.event(&event, &mut writers, &mut text);
                assert!(text.ends_with(b"\n"));
                assert!(!event.is_state());
                if let Some(questions) = &mut questions {
                    let [is_wanted, is_unwanted] = questions.each_mut().map(|one| one.wants(&event, &mut writers));
                    assert!(!(is_wanted && is_unwanted));
                }
                let class = std::ptr::from_ref(event.class);
                *of_classes.entry(class).or_default() += 1;
                let begin = event.time_ns.map(|ns| ns.saturating_sub(ns.rem_euclid(INTERVAL_NS)));
                *of_intervals.entry((begin, class)).or_default() += 1;
            }
            Err(notice) => assert!(!notice.to_string().is_empty()),
        }
    }
    let stats = Stats::of_traces(&[TraceRef::from(trace)], streams.iter().map(|bytes| (0, "stream", bytes.as_slice())));
    let count = of_classes.values().sum();
    assert_eq!(stats.events, count);
    let mut counts = ClassCounts::default();
    for (index, bytes) in streams.iter().enumerate() {
        StreamReader::new(trace, index, bytes)
            .count_classes(&mut counts, |notice| assert!(!notice.to_string().is_empty()));
    }
    assert_eq!(
        counts.iter().map(|(class, count)| (std::ptr::from_ref(class), count)).collect::<BTreeMap<_, _>>(),
        of_classes
    );
    let mut intervals = IntervalCounts::new(Some(INTERVAL_NS));
    for (index, bytes) in streams.iter().enumerate() {
        StreamReader::new(trace, index, bytes).count_intervals(&mut intervals, |_| {});
    }
    let found = intervals.take().map(|(begin, class, count)| ((begin, std::ptr::from_ref(class)), count));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), of_intervals);
    // Chooses all classes, then every third.
    for nth in [1, 3] {
        let mut choice = Choice::default();
        let classes = ClassRef::all(trace.into()).enumerate();
        classes.step_by(nth).for_each(|(number, class)| choice.add(class, number));
        streams.iter().enumerate().for_each(|(index, bytes)| {
            let reader = || StreamReader::new(trace, index, bytes);
            assert_eq!(shown(reader(), &choice), asked(reader(), &choice));
        });
    }
    count
}

/// The compared properties of an event: its class's number, time, CPU and size.
type Seen = (usize, Option<i64>, u32, usize);

fn seen(number: usize, event: &EventFields<'_>) -> Seen {
    (number, event.time_ns, event.cpu_id, event.size_bytes)
}

/// Returns the events of chosen classes, as a viewer sees them one after another, and the notices.
fn shown<'a>(mut reader: StreamReader<'a>, choice: &Choice<'a>) -> (Vec<Seen>, Vec<Notice>) {
    /// A viewer that pauses at every third event.
    struct All(Vec<Seen>);
    impl Viewer for All {
        fn see(&mut self, number: usize, event: &EventFields<'_>) -> bool {
            self.0.push(seen(number, event));
            !self.0.len().is_multiple_of(3)
        }
    }
    let (mut all, mut notices) = (All(Vec::new()), Vec::new());
    while let Some(shown) = reader.show_chosen(choice, &mut all) {
        notices.extend(shown.err());
    }
    (all.0, notices)
}

/// Returns the events of chosen classes, requested one by one, and the notices.
fn asked<'a>(mut reader: StreamReader<'a>, choice: &Choice<'a>) -> (Vec<Seen>, Vec<Notice>) {
    let (mut all, mut notices) = (Vec::new(), Vec::new());
    while let Some(next) = reader.next_chosen(choice) {
        match next {
            Ok((number, _)) => all.extend(reader.chosen_fields().map(|event| seen(number, &event))),
            Err(notice) => notices.push(notice),
        }
    }
    (all, notices)
}
