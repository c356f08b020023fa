//! Names of events, fields and labels, in the form that `stringify!` gives.

use dormouse_abi::class::is_name;

/// Returns the name that an identifier denotes: `type` for `r#type`.
pub(crate) const fn cooked(identifier: &str) -> &str {
    match identifier.as_bytes() {
        [b'r', b'#', ..] => identifier.split_at(2).1,
        _ => identifier,
    }
}

/// Checks a name or label.
///
/// # Panics
/// At compile time, for a name that no trace can hold.
#[track_caller]
pub(crate) const fn check(identifier: &str) {
    if !is_name(cooked(identifier)) {
        refuse(
            "a trace cannot hold this name (ASCII letters, digits and `_`, no digit first, at most 255 bytes)",
            identifier,
        );
    }
}

/// Panics with a reason and a name, so that the compiler reports both. A constant's panic takes one text, which is put
/// together here; a long name is cut.
#[track_caller]
pub(crate) const fn refuse(why: &str, name: &str) -> ! {
    let mut message = [0; 512];
    let mut len = 0;
    let parts = [why, ": `", name, "`"];
    let mut part = 0;
    while part < parts.len() {
        let bytes = parts[part].as_bytes();
        let mut index = 0;
        while index < bytes.len() && len < message.len() {
            message[len] = bytes[index];
            index += 1;
            len += 1;
        }
        part += 1;
    }
    match core::str::from_utf8(message.split_at(len).0) {
        Ok(message) => panic!("{}", message),
        // The cut is inside a character.
        Err(_) => panic!("{}", why),
    }
}
