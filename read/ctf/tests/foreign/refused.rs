//! Faulty metadata: each fault is reported at its position, with what was expected.

use dormouse_ctf::Trace;

/// A text, the position of the error, and its message.
const CASES: &[(&str, (usize, usize), &str)] = &[
    ("", (1, 1), "there is no trace declaration"),
    ("trace { major = 1 };", (1, 19), "expected `;`, found `}`"),
    ("trace { major = 2; minor = 8; byte_order = le; };", (1, 17), "major is 2"),
    ("trace { major = 1; minor = 8; };", (1, 1), "no byte_order"),
    ("trace { major = 1; minor = 8; byte_order = middle; };", (1, 44), "expected le, be or network"),
    ("trace { major = 1; major = 1; };", (1, 20), "the key major is in the trace declaration twice"),
    ("TRACE\nrace { };", (2, 1), "expected a declaration"),
    ("TRACE\nevent { name = a; fields := struct { uint8_t x; }; };", (2, 38), "there is no type `uint8_t`"),
    ("TRACE\ntypealias integer { size = 65; } := a;", (2, 28), "1 to 64 bits"),
    ("TRACE\ntypealias integer { align = 8; } := a;", (2, 11), "no size"),
    ("TRACE\ntypealias integer { size = 8; align = 3; } := a;", (2, 39), "power of two"),
    ("TRACE\ntypealias integer { size = 8; map = clock.x.value; } := a;", (2, 37), "no clock named x"),
    ("TRACE\ntypealias integer { size = 8; base = 7; } := a;", (2, 38), "expected a base"),
    ("TRACE\ntypealias integer { size = 8; signed = 2; } := a;", (2, 40), "true or false"),
    ("TRACE\ntypealias floating_point { exp_dig = 5; mant_dig = 11; } := a;", (2, 11), "32 bits"),
    (
        "TRACE\ntypealias integer { size = 8; } := a;\ntypealias integer { size = 8; } := a;",
        (3, 36),
        "is declared already",
    ),
    ("TRACE\nevent { name = a; fields := struct { string s; string s; }; };", (2, 55), "a field `s` already"),
    ("TRACE\nevent { name = a; fields := struct { string t; variant <t> { string x; } v; }; };", (2, 57), "no number"),
    (
        "TRACE\nevent { name = a; fields := struct { integer { size = 8; } n; variant <n> { string x; } v; }; };",
        (2, 72),
        "enumeration",
    ),
    (
        "TRACE\nevent { name = a; fields := struct { string s[n]; integer { size = 8; } n; }; };",
        (2, 47),
        "no field `n` before",
    ),
    (
        "TRACE\nevent { name = a; fields := struct { integer { size = 8; signed = 1; } n; string s[n]; }; };",
        (2, 84),
        "not signed",
    ),
    ("TRACE\nevent { name = a; fields := struct { string s[4294967296]; }; };", (2, 47), "2^32 - 1"),
    ("TRACE\nevent { id = 1; };", (2, 1), "has no name"),
    ("TRACE\nevent { name = a; };\nevent { name = b; };", (3, 1), "event id 0 is declared twice"),
    ("TRACE\nevent { name = a; };\nevent { name = b; id = 1; };", (1, 1), "no field id"),
    ("TRACE\nstream { id = 1; };\nstream { id = 1; };", (3, 1), "stream id 1 is declared twice"),
    ("TRACE\nstream { id = 1; };\nstream { id = 2; };", (1, 1), "no field stream_id"),
    ("TRACE\nstream { id = 1; };\nevent { name = a; stream_id = 2; };", (3, 1), "no stream declaration with the id 2"),
    ("TRACE\nclock { freq = 5; };", (2, 1), "has no name"),
    ("TRACE\nclock { name = a; freq = 0; };", (2, 26), "at least one tick"),
    (
        "TRACE\nstruct a { struct a x; };\nevent { name = a; fields := struct a; };",
        (2, 12),
        "no type `struct a` before this",
    ),
    ("TRACE\nenum e : integer { size = 8; } { A = 5 ... 4 };", (2, 34), "above the last"),
    ("TRACE\nenv { a = 0x; };", (2, 11), "whole number"),
    ("TRACE\nenv { a = \"\\x20\\o\"; };", (2, 17), "expected one of the escapes of C behind `\\`, found `o`"),
    ("TRACE\nenv { a = 'b\n'; };\nenv { b = \"\"; };", (2, 11), "does not end in its line"),
    ("TRACE\nenv { a = \"b\nc\"; };\nenv { b = \"\"; };", (2, 11), "does not end in its line"),
];

#[test]
fn errors_have_their_position() {
    for (text, place, expected) in CASES {
        let text = text.replacen("TRACE", "trace { major = 1; minor = 8; byte_order = le; };", 1);
        let error = Trace::decode(text.as_bytes()).expect_err(&text).to_string();
        let begin = format!("line {}, column {}: ", place.0, place.1);
        assert!(error.starts_with(&begin) && error.contains(expected), "{text}\n{error}");
        // The caret is below the position within the shown part of the line.
        let (shown, caret) = (error.lines().nth(1).unwrap_or(""), error.lines().nth(2).unwrap_or(""));
        let line = text.lines().nth(place.0 - 1).unwrap_or("");
        assert_eq!(shown.get(caret.len() - 1..), line.get(place.1 - 1..), "{error}");
    }
}

/// Unbounded nesting and huge counts end in an error instead of exhausting memory.
#[test]
fn bounds_of_metadata_are_enforced() {
    let trace = "trace { major = 1; minor = 8; byte_order = le; };\n";
    let deep = format!("{trace}event {{ name = a; fields := {}", "struct { ".repeat(100_000));
    assert!(Trace::decode(deep.as_bytes()).is_err());
    let closed = format!("{deep}{}; }};", "} x; ".repeat(100_000));
    assert!(Trace::decode(closed.as_bytes()).unwrap_err().to_string().contains("64 braces"));
    let mut doubled = format!("{trace}struct s0 {{ string a; string b; }};\n");
    for level in 1..60 {
        doubled += &format!("struct s{level} {{ struct s{0} a; struct s{0} b; }};\n", level - 1);
    }
    doubled += "event { name = a; fields := struct s59; };";
    let error = Trace::decode(doubled.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("too many fields"), "{error}");
}

fn decoded(rest: &str) -> Result<(), String> {
    let text = format!("trace {{ major = 1; minor = 8; byte_order = le; }};\n{rest}");
    Trace::decode(text.as_bytes()).map(drop).map_err(|error| error.to_string())
}

/// Nested arrays cost no more than their sum, and the nesting of arrays by type names is bounded.
#[test]
fn nested_arrays_are_bounded() {
    let event = |class: &str, count: usize| {
        decoded(&format!("event {{ name = a; fields := struct {{ {class} x{}; }}; }};", "[1]".repeat(count)))
    };
    assert_eq!(event("string", 64), Ok(()));
    for count in [65, 100_000] {
        assert!(event("string", count).unwrap_err().contains("more than 64 arrays in one another"));
    }
    let nested = |count: usize| format!("{}string s;{}", "struct { ".repeat(count), "} x[1];".repeat(count));
    assert_eq!(decoded(&format!("event {{ name = a; fields := struct {{ {} }}; }};", nested(60))), Ok(()));
    let mut types = "typealias string := a0;\n".to_string();
    (1..=1000).for_each(|level| types += &format!("typedef a{} a{level}[1];\n", level - 1));
    let of_level =
        |level: usize| decoded(&format!("{types}event {{ name = a; fields := struct {{ a{level} x; }}; }};"));
    assert_eq!(of_level(64), Ok(()));
    assert!(of_level(1000).unwrap_err().contains("more than 64 arrays in one another"));
}

/// Fields that each stream or event class has of its own are counted for each class.
#[test]
fn the_fields_of_all_classes_together_are_bounded() {
    let fields: String = (0..2000).map(|field| format!("string s{field};")).collect();
    let events = |count: usize| -> String {
        let events = (0..count).map(|id| format!("event {{ name = e; id = {id}; }};\n"));
        events.collect()
    };
    let header = "event.header := struct { integer { size = 32; } id; };";
    let stream = format!("stream {{ {header} event.context := struct {{ {fields} }}; }};\n");
    assert_eq!(decoded(&(stream.clone() + &events(20))), Ok(()));
    let error = decoded(&(stream + &events(2000))).unwrap_err();
    assert_eq!(error, "headers, contexts and payloads of all classes have more than 2097152 fields");
}

/// Lookups of names and repeated keys take time that is linear in the text, not quadratic.
#[test]
fn many_names_take_linear_time() {
    let env: String = (0..200_000).map(|key| format!("k{key} = 1;")).collect();
    assert_eq!(decoded(&format!("env {{ {env} }};")), Ok(()));
    let labels: String = (0..20_000).map(|label| format!("l{label},")).collect();
    let options: String = (0..20_000).map(|label| format!("string l{label};")).collect();
    let tag = format!("enum : integer {{ size = 32; }} {{ {labels} }} tag;");
    let variant = format!("event {{ name = a; fields := struct {{ {tag} variant <tag> {{ {options} }} v; }}; }};");
    assert_eq!(decoded(&variant), Ok(()));
    let numbers: String = (0..20_000).map(|field| format!("u n{field};")).collect();
    let sequences: String = (0..20_000).map(|field| format!("u s{field}[n19999];")).collect();
    let fields = format!(
        "typealias integer {{ size = 8; }} := u;\nevent {{ name = a; fields := struct {{ {numbers}{sequences} }}; }};"
    );
    assert!(decoded(&fields).unwrap_err().contains("structures that hold or name one another have too many fields"));
}
