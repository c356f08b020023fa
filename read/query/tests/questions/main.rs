//! Random questions about random events. SQL, `stats` and the filter of `view` answer them, and so does a Python
//! program that gets the same events as JSON and knows nothing of traces (`oracle.py`, which also draws the questions).
//!
//! ```text
//!   seed ─▶ events ─┬─▶ trace ─▶ dormouse query (one process for all queries), Analysis, Selection ─▶ answers ─┐
//!                   └─▶ JSON ──▶ oracle.py: questions ─────────────────────────▶ answers ───────────────────────┴─▶ the same?
//! ```
//! The languages differ in comparisons with fields that are absent or have several types; docs/query.md describes the
//! differences.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use dormouse_abi::class::{FieldType, Kind};
use dormouse_analysis::{Analysis, Measure, Query};
use dormouse_ctf::{Selection, Value, Writers};
use dormouse_filter::Filter;
use dormouse_reader::TraceFiles;
use dormouse_testing::{Lack, random, skip};
use dormouse_traces::TraceBuilder;
use serde_json::{Value as Json, json};

/// Default number of questions.
const QUESTIONS: u64 = 2000;
/// Conditions in each round. Each is asked with many aggregates.
const CONDITIONS: usize = 24;
const EVENTS_MAX: usize = 48;

const INTEGERS: [Kind; 8] = [Kind::U64, Kind::I64, Kind::U8, Kind::I8, Kind::U16, Kind::I16, Kind::U32, Kind::I32];
const TEXTS: [&str; 12] =
    ["", " ", "a", "b", "0", "-1", "é\u{10ffff}", "it's \"so\"", "\\n\\", "a,b;c", "tab\tand\nline", "NULL"];
const FLOATS: [f64; 14] = [
    0.0,
    -0.0,
    1.5,
    -1.5,
    1e300,
    -1e300,
    f64::MIN_POSITIVE,
    5e-324,
    f64::MAX,
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    9_007_199_254_740_993.0,
    0.1,
];

type Random<'r> = &'r mut dyn FnMut(usize) -> usize;

/// Returns an integer, mostly near a limit of some integer type.
fn number(random: Random<'_>) -> i128 {
    let ends = [0, 1 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 53, 1 << 63, 1i128 << 64];
    let end = ends[random(ends.len())] + random(5) as i128 - 2;
    if random(2) == 0 { end } else { -end }
}

/// Returns a random value of a field, and its JSON.
fn value(kind: Kind, random: Random<'_>) -> (Value<'static>, Json) {
    let float = |float: f64| Json::from(format!("{:016x}", float.to_bits()));
    match kind {
        Kind::F64 => {
            let value = FLOATS[random(FLOATS.len())];
            (Value::F64(value), float(value))
        }
        Kind::F32 => {
            // A filter compares the number that is shown, SQL the exact one: numbers for which these are equal.
            let singles = FLOATS.map(|number| number as f32);
            let is_shown_exactly =
                |number: &&f32| number.is_nan() || number.to_string().parse() == Ok(f64::from(**number));
            let exact: Vec<f32> = singles.iter().filter(is_shown_exactly).copied().collect();
            let value = exact[random(exact.len())];
            (Value::F32(value), float(value.into()))
        }
        Kind::Str => {
            let text = TEXTS[random(TEXTS.len())];
            (Value::Str(text.as_bytes()), text.into())
        }
        Kind::Bool => {
            let is_true = random(2) == 1;
            (Value::Bool(is_true.into()), is_true.into())
        }
        _ => {
            // The conversions below truncate it to the type.
            let n = if random(4) == 0 { random(5) as i128 - 2 } else { number(random) };
            match kind {
                Kind::U8 => (Value::U8(n as u8), (n as u8).into()),
                Kind::U16 => (Value::U16(n as u16), (n as u16).into()),
                Kind::U32 => (Value::U32(n as u32), (n as u32).into()),
                Kind::U64 => (Value::U64(n as u64), (n as u64).into()),
                Kind::I8 => (Value::I8(n as i8), (n as i8).into()),
                Kind::I16 => (Value::I16(n as i16), (n as i16).into()),
                Kind::I32 => (Value::I32(n as i32), (n as i32).into()),
                _ => (Value::I64(n as i64), (n as i64).into()),
            }
        }
    }
}

/// Returns the types that a field has in the variants of a class.
fn types(random: Random<'_>) -> Vec<Kind> {
    match random(8) {
        0 => vec![Kind::F64, Kind::F32],
        1 => vec![Kind::Str],
        2 => vec![Kind::Bool],
        // Pairs of types that no 64-bit integer holds are drawn often.
        3 => vec![Kind::U64, Kind::I64],
        4 => vec![INTEGERS[random(8)], Kind::Str],
        5 => vec![INTEGERS[random(8)], INTEGERS[random(8)], Kind::F64, Kind::Bool],
        _ => vec![INTEGERS[random(2)]],
    }
}

/// Writes a trace into a directory, and returns its events as JSON.
fn write(dir: &Path, random: Random<'_>) -> Json {
    let mut builder = TraceBuilder::new();
    let (mut variants, mut told) = (Vec::new(), Vec::new());
    for class in ["c0", "c1"] {
        let of_fields: Vec<(&str, Vec<Kind>)> = ["a", "b", "c", "d"].map(|name| (name, types(random))).to_vec();
        // Several programs or templates can write one class.
        for variant in 0..1 + random(3) {
            let mut fields = vec![("n", Kind::U64)];
            for (name, types) in &of_fields {
                if variant == 0 || random(6) > 0 {
                    fields.push((name, types[random(types.len())]));
                }
            }
            let declared: Vec<_> = fields.iter().map(|(name, kind)| (*name, FieldType::scalar(*kind))).collect();
            let id = builder.class("p", class, &declared);
            let fields_told: Vec<_> = fields.iter().map(|(field, kind)| (field, format!("{kind:?}"))).collect();
            told.push(json!({"class": format!("p:{class}"), "fields": fields_told}));
            variants.push((id, fields));
        }
    }
    let streams = [builder.stream(0), builder.stream(1)];
    let mut events = Vec::new();
    for n in 0..random(EVENTS_MAX) as u64 {
        let at = random(variants.len());
        let (id, fields) = &variants[at];
        let mut values = vec![(Value::U64(n), Json::from(n))];
        values.extend(fields[1..].iter().map(|(_, kind)| value(*kind, random)));
        let (values, json): (Vec<_>, Vec<_>) = values.into_iter().unzip();
        builder.event(streams[random(2)], 1000 * n, 7, 8, *id, &values);
        events.push(json!([at, json]));
    }
    builder.finish().write(dir);
    json!({"variants": told, "events": events})
}

/// The Python program.
struct Oracle {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Oracle {
    fn start() -> Option<Oracle> {
        let mut command = Command::new("python3");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/questions/oracle.py"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let (input, output) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        Some(Oracle { child, input, output })
    }

    /// Sends a line of JSON and returns the answer, also a line of JSON.
    fn ask(&mut self, said: &Json) -> Json {
        writeln!(self.input, "{said}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("the oracle says {line:?}: {error}"))
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a query, and returns rows as JSON and the error output.
fn sql(trace: &Path, text: &str) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse-query"));
    command.arg(trace).args(["--format", "json", "--threads", "1"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

/// Returns which events a filter finds and what `stats` reports for fields of them, as JSON text.
fn found(files: &TraceFiles, filter: &str, class: &str, fields: &[Json]) -> String {
    let parsed = Filter::parse(filter).unwrap_or_else(|error| panic!("{filter}: {error}"));
    let select = || Selection::unchecked(vec![class.into()], vec![parsed.clone()]);
    let traces: Vec<_> = files.described().iter().collect();
    let streams = || files.names().zip(files.readers().map(|(trace, _)| trace));
    let query = |field: &Json| Query {
        events: vec![class.into()],
        measure: Measure::Field(field.as_str().unwrap().into()),
        ..Query::default()
    };
    let queries: Vec<Query> = fields.iter().map(query).collect();
    let mut all: Vec<Analysis> =
        queries.iter().map(|query| Analysis::new(query, &traces, streams()).unwrap()).collect();
    let (mut selection, mut writers, mut found) = (select(), Writers::default(), Vec::new());
    let mut events = files.events();
    while let Some(event) = events.next_event() {
        let event = event.unwrap();
        let is_wanted = selection.wants(&event, &mut writers);
        all.iter_mut().for_each(|one| if is_wanted { one.event(&event) } else { one.pass(&event) });
        if is_wanted && let Some((_, Value::U64(n))) = event.fields().find(|(name, _)| *name == "n") {
            found.push(n.to_string());
        }
    }
    let missing = files.missing(&events);
    let reports =
        all.into_iter().map(|one| serde_json::to_string(&one.finish(&files.left_out, missing.clone()).rows).unwrap());
    format!("[[{}],[{}]]", found.join(","), reports.collect::<Vec<_>>().join(","))
}

#[test]
fn answers_are_those_of_an_oracle() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("DORMOUSE_QUESTIONS_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_secs() << 20
    });
    let wanted = number("DORMOUSE_QUESTIONS").unwrap_or(QUESTIONS);
    let Some(mut oracle) = Oracle::start() else { return skip(Lack::program("python3")) };
    let (mut asked, mut told) = (0, 0);
    let mut round = seed;
    while asked < wanted {
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path();
        let events = write(trace, &mut random(round));
        let questions = oracle.ask(&json!({"seed": round, "conditions": CONDITIONS, "events": events}));
        let (rows, wrong) = sql(trace, questions["sql"].as_str().unwrap());
        let files = TraceFiles::open(trace).unwrap();
        let filters = questions["filters"].as_array().unwrap();
        let text = |of: &Json| of.as_str().unwrap().to_string();
        let answers: Vec<String> =
            filters.iter().map(|of| found(&files, &text(&of[0]), &text(&of[1]), of[2].as_array().unwrap())).collect();
        let result = oracle.ask(&json!({"rows": rows, "error": wrong, "found": format!("[{}]", answers.join(","))}));
        let faults = result["faults"].as_array().unwrap();
        let lines: Vec<String> = faults.iter().take(10).map(text).collect();
        assert!(
            faults.is_empty(),
            "{} wrong answers; DORMOUSE_QUESTIONS_SEED={round} asks them first:\n{}",
            faults.len(),
            lines.join("\n")
        );
        asked += result["asked"].as_u64().unwrap();
        round += 1;
        if asked / 100_000 > told {
            told = asked / 100_000;
            eprintln!("{asked} questions of {wanted}, from seed {seed} on");
        }
    }
    println!("{asked} questions in {} traces, DORMOUSE_QUESTIONS_SEED={seed}", round - seed);
}
