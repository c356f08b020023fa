//! A trace in CTF 2, written by hand.

use std::path::Path;

/// Writes a trace of CTF 2 with features that only CTF 2 has: two events with a blob, a field that only the first has,
/// and a name in UTF-16.
///
/// # Panics
/// If the directory exists, or cannot be written.
pub fn write_ctf2(dir: &Path) {
    let number = r#"{"type":"fixed-length-unsigned-integer","length":8,"byte-order":"little-endian","alignment":8}"#;
    let flag = r#"{"type":"fixed-length-boolean","length":8,"byte-order":"little-endian","alignment":8}"#;
    let optional =
        format!(r#"{{"type":"optional","selector-field-location":{{"path":["flag"]}},"field-class":{number}}}"#);
    let blob = r#"{"type":"static-length-blob","length":3}"#;
    let name = r#"{"type":"null-terminated-string","encoding":"utf-16le"}"#;
    let members = [("flag", flag), ("number", &optional), ("raw", blob), ("name", name)];
    let members = members.map(|(name, class)| format!(r#"{{"name":"{name}","field-class":{class}}}"#)).join(",");
    let payload = format!(r#"{{"type":"structure","member-classes":[{members}]}}"#);
    let class = format!(r#"{{"type":"event-record-class","name":"e","payload-field-class":{payload}}}"#);
    let fragments = [r#"{"type":"preamble","version":2}"#, r#"{"type":"data-stream-class"}"#, &class];
    let metadata: String = fragments.iter().map(|fragment| format!("\u{1e}{fragment}\n")).collect();
    std::fs::create_dir(dir).expect("a directory");
    std::fs::write(dir.join("metadata"), metadata).expect("metadata");
    let bytes = [&b"\x01\x07\x01\x02\x03h\0\xe9\0\0\0"[..], b"\0\x04\x05\x06h\0o\0\0\0"].concat();
    std::fs::write(dir.join("stream"), bytes).expect("a stream");
}
