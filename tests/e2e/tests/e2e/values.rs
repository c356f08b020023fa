//! Every kind of value, from every kind of place, is read back unchanged.

use std::process::Command;

use dormouse_ctf::Format;
use dormouse_e2e::check::check;
use dormouse_e2e::run::{Record, babeltrace2_lines, dormouse};
use dormouse_e2e::trace::Trace;

use crate::VALUES;

fn trace(rseq: bool, context: &str) -> Trace {
    let recording = Record::new().rseq(rseq).context(context).run(&[VALUES]).succeeded();
    let (trace, _, lost) = check(&recording);
    assert_eq!(lost, 0);
    trace
}

#[test]
fn values_are_read_back() {
    let usize_max = usize::MAX;
    let isize_min = isize::MIN;
    for (rseq, context) in [(true, "ids"), (false, "ids"), (true, "none"), (false, "none")] {
        let trace = trace(rseq, context);
        let one = |name: &str, expected: &str| {
            assert_eq!(trace.values(&format!("values:{name}")), [expected], "{name}, rseq {rseq}, context {context}");
        };
        one(
            "unsigned",
            &format!("a=u8 254 b=u16 65244 c=u32 4275878552 d=u64 {} pointer_sized=u64 {usize_max}", u64::MAX - 1),
        );
        one("signed", &format!("a=i8 -128 b=i16 -2 c=i32 -2147483648 d=i64 {} signed=i64 {isize_min}", i64::MIN + 1));
        one("floats", &format!("a=f32 1.5 b=f32 -0.0 c=f32 NaN d=f64 {:?} e=f64 -inf", f64::MIN_POSITIVE));
        one("others", "yes=bool 1 no=bool 0 letter=u32 223 last=u32 1114111");
        let pointer = "pointer 0xdeadbeef0000";
        one("pointers", &format!("address={pointer} mutable={pointer} null=pointer 0x0 text={pointer}"));
        one(
            "text",
            "empty=str \"\" plain=str \"plain\" owned=str \"owned\" nested=str \"nested\" words=str \"Grüße, 世界 🐭\" \
             nul=str \"before\"",
        );
        one("c_text", "borrowed=str \"borrowed\" owned=str \"made\"");
        one("long", &format!("before=u8 1 long=str \"{}\" after=u8 2", "0123456789".repeat(2_048)));
        one("bytes", "bytes=bytes [0, 1, 255] array=bytes [7, 7, 7, 7, 7] vector=bytes [9, 8] empty=bytes [] none=[]");
        one("wide", &format!("a=[u16 1, u16 2] b=[u32 3] c=[u64 4, u64 {}] d=[u64 5] e=[i8 -6, i8 7]", u64::MAX));
        one("more", "a=[i16 -1] b=[i32 -2] c=[i64 -3] d=[i64 -4] e=[f32 0.5] f=[f64 0.25, f64 1.0]");
        one("odd", "flags=[bool 1, bool 0] letters=[u32 97, u32 223] boxed=u8 5 slice=bytes [1]");
        one("nothing", "");
        one("shorthand", "id=u32 7 path=str \"/index\" sum=u32 8");
        let wide_open: Vec<String> = (0..32)
            .map(|index| match index % 5 {
                _ if index == 30 => "f30=u8 30".into(),
                _ if index == 31 => "f31=u16 31".into(),
                0 => format!("f{index}=u8 {index}"),
                1 => format!("f{index}=u16 {index}"),
                2 => format!("f{index}=u32 {index}"),
                3 => format!("f{index}=u64 {index}"),
                _ => format!("f{index}=str \"{index}\""),
            })
            .collect();
        one("wide_open", &wide_open.join(" "));
        one("match", "type=u8 1 type_=u8 2 async=u8 3");
        one("taken", "number=u32 1 next=u32 2 len=u64 5 text=str \"owned\"");
    }
}

/// Also as babeltrace2 prints them.
#[test]
fn names_may_be_words_of_other_languages() {
    let recording = Record::new().run(&[VALUES]).succeeded();
    let (trace, _, _) = check(&recording);
    let words = [
        "align",
        "callsite",
        "const",
        "char",
        "clock",
        "double",
        "enum",
        "env",
        "event",
        "floating_point",
        "float",
        "integer",
        "int",
        "long",
        "short",
        "signed",
        "stream",
        "string",
        "struct",
        "trace",
        "typealias",
        "typedef",
        "unsigned",
        "variant",
        "void",
        "_Bool",
        "_Complex",
        "_Imaginary",
    ];
    let fields: Vec<String> = words.iter().enumerate().map(|(index, word)| format!("{word}=u8 {index}")).collect();
    assert_eq!(trace.values("values:trait"), [fields.join(" ") + " map=str \"28\" id=[u16 29] fn=u8 30"]);
    if let Some(lines) = babeltrace2_lines(&recording.dir) {
        let fields: Vec<String> = words.iter().enumerate().map(|(index, word)| format!("{word} = {index}, ")).collect();
        let line = lines.lines().find(|line| line.contains(" values:trait: ")).expect("babeltrace2 has the event");
        assert!(
            line.contains(&fields.concat())
                && line.ends_with("map = \"28\", _id_length = 1, id = [ [0] = 29 ], fn = 30 }"),
            "{line}"
        );
    }
}

/// An enumeration is a number whose values have the names of its variants, also for babeltrace2.
#[test]
fn enumerations_are_shown_by_name() {
    let states = [("Ready", 0), ("Running", 300), ("Failed", -1)];
    let seen = [("Red", 0), ("Green", 1), ("Open", 0), ("Shut", 1)];
    for (context, format) in [("ids", Format::Ctf18), ("none", Format::Ctf18), ("ids", Format::Ctf2)] {
        let recording = Record::new().context(context).format(format).run(&[VALUES]).succeeded();
        let (trace, _, _) = check(&recording);
        let numbers = states.map(|(_, number)| format!("before=u8 1 state=i16 {number} after=str \"text\""));
        assert_eq!(trace.values("values:state"), numbers);

        let lines = |arguments: &[&str]| -> Vec<String> {
            let output = Command::new(dormouse()).args(arguments).arg(&recording.dir).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect()
        };
        let found = lines(&["view", "--format", "json", "-e", "values:state"]);
        assert_eq!(found.len(), states.len());
        for (line, (label, _)) in found.iter().zip(states) {
            assert!(
                line.ends_with(&format!(r#""fields":{{"before":1,"state":"{label}","after":"text"}}}}"#)),
                "{line}"
            );
        }
        let found = lines(&["view", "--format", "json", "-e", "values:seen"]);
        assert_eq!(found.len(), seen.len());
        for (line, (label, _)) in found.iter().zip(seen) {
            assert!(line.ends_with(&format!(r#""fields":{{"value":"{label}"}}}}"#)), "{line}");
        }
        let of_label = lines(&["view", "--where", "state == \"Failed\" or value == \"Shut\""]);
        assert_eq!(of_label.len(), 2, "{of_label:?}");
        let counts = lines(&["stats", "-e", "values:state", "--by", "state"]);
        for (label, _) in states {
            assert!(counts.iter().any(|line| line.contains(label)), "{label}: {counts:?}");
        }

        let Some(text) = babeltrace2_lines(&recording.dir) else { continue };
        for (name, field, labels) in [("state", "state", &states[..]), ("seen", "value", &seen)] {
            let found: Vec<_> = text.lines().filter(|line| line.contains(&format!(" values:{name}: "))).collect();
            assert_eq!(found.len(), labels.len());
            for (line, (label, number)) in found.iter().zip(labels) {
                assert!(line.contains(&format!("{field} = ( \"{label}\" : container = {number} )")), "{line}");
            }
        }
    }
}

/// Futures with these events are `Send`; otherwise the program would not compile.
#[test]
fn arguments_may_contain_await() {
    for (rseq, context) in [(true, "ids"), (false, "ids"), (true, "none"), (false, "none")] {
        let trace = trace(rseq, context);
        assert_eq!(
            trace.values("values:awaited"),
            ["first=str \"text\" value=[u16 1, u16 2] last=u8 3", "first=str \"generic\" value=i64 4 last=u8 1"]
        );
        assert_eq!(trace.values("values:awaited_short"), ["first=u8 1 last=u64 2"]);
    }
}

#[test]
fn sites_can_be_anywhere() {
    let trace = trace(true, "ids");
    let all = |name: &str, expected: &[&str]| assert_eq!(trace.values(&format!("values:{name}")), expected, "{name}");
    let round = |round: u32| {
        ["u8 1", "i64 -2", "str \"three\"", "[u16 4, u16 5]", "f64 6.5"]
            .map(|value| format!("value={value} round=u32 {round}"))
    };
    let generic: Vec<String> = (0..2).flat_map(round).collect();
    all("generic", &generic.iter().map(String::as_str).collect::<Vec<_>>());
    all("closure", &["number=u32 11", "number=u32 12", "number=u32 13"]);
    all("inlined", &["number=u32 1", "number=u32 2"]);
    all("by_macro", &["value=u8 1", "value=str \"two\"", "value=i32 3"]);
    all("matched", &["error=str \"no\""]);
}

#[test]
fn only_what_matches_is_armed() {
    let record = Record::new().option("-e").option("values:clos*").option("-e").option("*:nothin?");
    let recording = record.run(&[VALUES]).succeeded();
    let (trace, events, _) = check(&recording);
    assert_eq!(events, 4);
    assert_eq!(trace.values("values:closure").len(), 3);
    assert_eq!(trace.values("values:nothing"), [""]);
}
