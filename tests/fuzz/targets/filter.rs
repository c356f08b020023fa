//! Arbitrary filters over arbitrary traces: no panic, and an event that a filter wants is not wanted by its `not`, nor
//! if nothing is wanted.
#![no_main]

use arbitrary::Arbitrary;
use dormouse_ctf::{Merge, Selection, StreamReader, Trace, Writers};
use dormouse_filter::Filter;
use libfuzzer_sys::fuzz_target;

/// Consecutive fields of every kind, and fields after a text and a sequence.
const METADATA: &str = "/* CTF 1.8 */
typealias integer { size = 8; align = 8; } := u8;
trace { major = 1; minor = 8; byte_order = le; };
stream { event.header := struct { u8 id; }; event.context := struct { u8 vpid; }; };
event { name = a; id = 0; fields := struct { u8 n; enum : u8 { RED, BLUE = 1 ... 100 } color; integer { size = 3; align = 1; signed = true; } bits;
    floating_point { exp_dig = 8; mant_dig = 24; align = 8; } f; struct { u8 x[2]; } inner; string text; u8 len; u8 seq[len]; u8 last; }; };
event { name = b; id = 1; fields := struct { u8 n; enum : u8 { NUMBER, TEXT } tag; variant <tag> { u8 NUMBER; string TEXT; } v; }; };
";

/// Names and operators, so that random texts are filters more often.
const WORDS: [&str; 42] = [
    "n",
    "color",
    "bits",
    "f",
    "inner.x[1]",
    "inner.x",
    "text",
    "len",
    "seq[2]",
    "last",
    "v",
    "v.TEXT",
    "vpid",
    "pid",
    "event",
    "time",
    "cpu",
    "process",
    "user",
    "context.uid",
    "fields.n",
    "context.vpid",
    "==",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "~",
    "and",
    "or",
    "not",
    "(",
    ")",
    "\"RED\"",
    "\"*a\"",
    "7",
    "-1",
    "4K",
    "1.5",
    "true",
    "10ms",
];

#[derive(Debug, Arbitrary)]
enum Part {
    Word(u8),
    Text(String),
}

#[derive(Debug, Arbitrary)]
struct Input {
    parts: Vec<Part>,
    stream: Vec<u8>,
}

fn wanted(trace: &Trace, filter: Filter, stream: &[u8]) -> Option<Vec<bool>> {
    let mut selection = Selection::new(Vec::new(), vec![filter], [trace.into()]).ok()?;
    let mut writers = Writers::default();
    let events = Merge::new([StreamReader::new(trace, 0, stream)]).filter_map(Result::ok);
    Some(events.map(|event| selection.wants(&event, &mut writers)).collect())
}

fuzz_target!(|input: Input| {
    let word = |part: &Part| match part {
        Part::Word(index) => WORDS[usize::from(*index) % WORDS.len()].to_string(),
        Part::Text(text) => text.clone(),
    };
    let text = input.parts.iter().map(word).collect::<Vec<_>>().join(" ");
    let filter = match Filter::parse(&text) {
        Ok(filter) => filter,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let Ok(trace) = Trace::decode(METADATA.as_bytes()) else { panic!("these metadata are valid") };
    let Some(wants) = wanted(&trace, filter, &input.stream) else { return };
    if let Some(contrary) =
        Filter::parse(&format!("not ({text})")).ok().and_then(|not| wanted(&trace, not, &input.stream))
    {
        assert!(wants.iter().zip(&contrary).all(|(wants, not)| !(wants & not)), "{text}");
    }
});
