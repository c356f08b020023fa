//! Selected events that threads find, compared with those of the streams read one after another.

use std::path::Path;

use dormouse_abi::class::{FieldType, Kind};
use dormouse_ctf::model::Scope;
use dormouse_ctf::plan::{Group, IntegerNode, Projection, Visitor};
use dormouse_ctf::stream::{Choice, Chosen, ChosenOf};
use dormouse_ctf::{ClassRef, Scratch, Value};
use dormouse_reader::TraceFiles;
use dormouse_traces::TraceBuilder;

/// Records everything that it is shown, in order.
#[derive(Default)]
struct Seen(String);

impl Visitor for Seen {
    fn name(&mut self, name: &str) {
        self.0 += &format!("{name}: ");
    }
    fn element(&mut self, index: u64) {
        self.0 += &format!("[{index}] ");
    }
    fn integer(&mut self, value: u64, _: &IntegerNode) {
        self.0 += &format!("{value} ");
    }
    fn float(&mut self, value: f64) {
        self.0 += &format!("{value} ");
    }
    fn text(&mut self, text: &[u8]) {
        self.0 += &format!("{:?} ", String::from_utf8_lossy(text));
    }
    fn open(&mut self, _: Group) {
        self.0 += "{ ";
    }
    fn close(&mut self, _: Group) {
        self.0 += "} ";
    }
}

/// Returns everything that a stream gives: one line for each event with its properties, and one for each notice.
fn read(mut events: impl Chosen, classes: &[(ClassRef<'_>, Projection)]) -> Vec<String> {
    let (mut lines, mut scratch) = (Vec::new(), Scratch::default());
    while let Some(next) = events.next() {
        let (number, time_ns) = match next {
            Ok(next) => next,
            Err(notice) => {
                lines.push(format!("{notice:?}"));
                continue;
            }
        };
        let (class, projection) = &classes[number];
        let (fields, event) = (events.fields().unwrap(), events.event().unwrap());
        assert_eq!((fields.time_ns, fields.cpu_id, fields.size_bytes), (time_ns, event.cpu_id, event.size_bytes));
        assert_eq!((event.time_ns, &event.class.full_name), (time_ns, &class.class.full_name));
        let mut seen = [Seen::default()];
        fields.project(projection, &mut scratch, &mut seen).unwrap();
        let values: Vec<_> = event.fields().collect();
        lines.push(format!("{number} {time_ns:?} {:?} {} {values:?}", event.context, seen[0].0));
    }
    lines
}

/// Writes three classes in turn on two CPUs, in packets of several KiB, one of which is damaged. One stream has a
/// packet that is far larger than a part.
fn write(dir: &Path) {
    let mut builder = TraceBuilder::new();
    let number = ("n", FieldType::scalar(Kind::U64));
    let classes = [
        builder.class("p", "plain", &[number]),
        builder.class("p", "text", &[("path", FieldType::scalar(Kind::Str)), number]),
        builder.class("p", "list", &[number, ("list", FieldType { kind: Kind::U16, sequence: true })]),
    ];
    let streams = [builder.stream(0), builder.stream(1)];
    for n in 0..90_000u64 {
        let stream = (n / 7 % 2) as usize;
        let path = format!("/{}", "x".repeat((n % 40) as usize));
        let elements = [1, 0, 2, 0, 3, 0];
        let list = dormouse_ctf::Sequence::new(Kind::U16, &elements[..2 * (n % 4) as usize]).unwrap();
        let values = match n % 3 {
            0 => vec![Value::U64(n)],
            1 => vec![Value::Str(path.as_bytes()), Value::U64(n)],
            _ => vec![Value::U64(n), Value::Sequence(list)],
        };
        builder.event(streams[stream], 10 * n, 1, 2, classes[(n % 3) as usize], &values);
        let is_large = stream == 1 && (30_000..80_000).contains(&n);
        if n % 300 == 299 && !is_large {
            builder.packet(streams[stream], 0, n / 3000);
        }
    }
    let mut trace = builder.finish();
    let middle = trace.streams[1].len() / 2;
    trace.streams[1][middle..middle + 400].fill(0xFF);
    trace.write(dir);
}

#[test]
fn parallel_readers_find_the_events_of_the_streams() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let files = TraceFiles::open(dir.path()).unwrap();
    let trace = files.traces().next().unwrap();
    for names in [&["p:plain"][..], &["p:text", "p:list"], &["p:plain", "p:text", "p:list"]] {
        let is_wanted = |class: &ClassRef<'_>| names.contains(&class.class.full_name.as_str());
        let (mut choice, mut classes) = (Choice::default(), Vec::new());
        for class in ClassRef::all(trace).filter(is_wanted) {
            choice.add(class, classes.len());
            let all: Vec<_> =
                class.class.members().iter().map(|member| (member.scope == Scope::Fields).then_some(0)).collect();
            classes.push((class, class.project(&all)));
        }
        let begin_ns = 1_700_000_000_000_000_000;
        for times in [(i64::MIN, i64::MAX), (begin_ns + 123_456, begin_ns + 654_321)] {
            let of_streams: Vec<_> = (0..files.stream_count())
                .map(|index| ChosenOf::new(files.reader(index).within(times.0, times.1), &choice))
                .map(|events| read(events, &classes))
                .collect();
            let of_threads: Vec<_> = std::thread::scope(|scope| {
                let streams = files.chosen(scope, times, |_| Some(&choice));
                streams.into_iter().map(|events| read(events, &classes)).collect()
            });
            assert_eq!(of_threads, of_streams);
            let lines: Vec<&String> = of_streams.iter().flatten().collect();
            assert!(lines.iter().any(|line| line.starts_with("Notice")), "the damage is seen");
            assert!(lines.len() > 10_000, "{}", lines.len());
        }
    }
}
