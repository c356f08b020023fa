//! Valid and invalid metadata by content: this crate accepts and refuses the same texts as babeltrace2.

use std::process::Command;

use dormouse_ctf::Trace;

use super::{is_reference, output};

const CASES: &str = include_str!("metadata.txt");

const TYPES: &str = "/* CTF 1.8 */
typealias integer { size = 8; align = 8; } := uint8_t;
typealias integer { size = 16; align = 8; } := uint16_t;
typealias integer { size = 32; align = 8; } := uint32_t;
typealias integer { size = 64; align = 8; } := uint64_t;
typealias integer { size = 8; align = 8; signed = true; } := int8_t;
typealias integer { size = 64; align = 8; signed = true; } := int64_t;
";
const TRACE: &str = "trace { major = 1; minor = 8; byte_order = le; packet.header := struct { uint32_t magic; }; };\n";
const STREAMS: &str = "trace { major = 1; minor = 8; byte_order = le; packet.header := struct { uint32_t magic; uint8_t stream_id; }; };\n";

/// Cases in which the two differ, with the reason for this crate's decision.
const OTHERWISE: [(&str, &str); 15] = [
    ("several streams in packets without a stream id", "no packet says of which stream it is"),
    ("integer that is signed by a text", "signed is true, false, 1 or 0"),
    ("integer that is signed by 2", "signed is true, false, 1 or 0"),
    ("comment that is not closed", "what is behind it may be missing"),
    ("structure of alignment 0", "an alignment is a power of two"),
    ("structure of alignment 0 that nothing is of", "an alignment is a power of two"),
    ("structure of an alignment that is no power of two", "an alignment is a power of two"),
    ("variant whose tag is in another scope", "tags are found in other scopes too"),
    ("variant whose tag is in the header", "tags are found in other scopes too"),
    ("variant with an option that the tag does not have", "nothing selects it; babeltrace2 2.0.4 aborts"),
    ("const", "types may be qualified, as in C"),
    ("array as long as a text in a typedef", "a length is a number or a field"),
    ("integer with a base by name in quotes", "a base is a number or a word"),
    (
        "definitions behind one another, of which the second is used",
        "each has its name; babeltrace2 forgets the second",
    ),
    ("clock with a negative offset in seconds and no frequency", "it is a clock's; SIGFPE ends babeltrace2 2.0.4"),
];

#[test]
fn metadata_are_accepted_if_babeltrace2_accepts_them() {
    if !is_reference() {
        return;
    }
    let (mut wrong, mut judged) = (Vec::new(), [0, 0]);
    for case in CASES.split("\n== ").skip(1) {
        let (name, declarations) = case.split_once('\n').expect("a name and a text");
        let (trace, rest) = match (declarations.strip_prefix("TRACE"), declarations.strip_prefix("STREAMS")) {
            (Some(rest), _) => ("", rest),
            (_, Some(rest)) => (STREAMS, rest),
            _ => (TRACE, declarations),
        };
        let text = format!("{TYPES}{trace}{}\n", rest.trim());
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("metadata"), &text).unwrap();
        let mut command = Command::new("babeltrace2");
        let Some(theirs) = output(command.arg(directory.path()), "babeltrace2") else { return };
        let (ours, theirs) = (Trace::decode(text.as_bytes()), theirs.status.success());
        judged[usize::from(theirs)] += 1;
        let is_known = OTHERWISE.iter().any(|(known, _)| *known == name);
        if is_known != (ours.is_ok() != theirs) {
            wrong.push(format!("{name}: babeltrace2 {theirs}, and {:?}\n{text}", ours.as_ref().err()));
        }
        // An error has a position, and says what was expected or found there.
        if let Err(error) = ours {
            let said = error.to_string();
            assert!(said.starts_with("line ") || said.starts_with("the declaration on line "), "{name}: {said}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(judged.iter().all(|count| *count > 80), "{judged:?}");
}
