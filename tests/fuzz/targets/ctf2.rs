//! Arbitrary metadata in CTF 2: field classes of every kind, unmodified fragments, and streams under the valid ones.
//! The reader must not panic or loop forever, and counting must find as many events as printing.
#![no_main]

use arbitrary::Arbitrary;
use dormouse_ctf::Trace;
use dormouse_fuzz::ctf::{self, How};
use dormouse_fuzz::ctf2::{Class, fragments, sequence};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Input {
    /// Fields of a context, a header and an event, with named field classes; streams.
    Trace { aliases: Vec<Class>, structures: [Vec<Class>; 3], streams: Vec<Vec<u8>> },
    /// Unmodified fragments, after a trace of that form.
    Fragments { classes: Vec<Class>, fragments: Vec<String> },
    /// The text of a trace of that form with changed bytes.
    Damaged { classes: Vec<Class>, damage: Vec<(u16, u8)> },
}

fuzz_target!(|input: Input| {
    match input {
        Input::Trace { aliases, structures: [context, header, fields], mut streams } => {
            let fragments = fragments(&aliases, [&context, &header, &fields]);
            let Ok(trace) = Trace::decode(sequence(&fragments).as_bytes()) else { return };
            streams.truncate(3);
            let how = How::from(streams.iter().flatten().copied().next().unwrap_or(0));
            ctf::read(&trace, &streams, how);
        }
        Input::Fragments { classes, fragments: more } => {
            let all = [fragments(&classes, [&[], &[], &classes]), more].concat();
            let _ = Trace::decode(sequence(&all).as_bytes());
        }
        Input::Damaged { classes, damage } => {
            let mut text = sequence(&fragments(&classes, [&[], &[], &classes])).into_bytes();
            for (at, what) in damage {
                let len = text.len();
                text[usize::from(at) % len] ^= what;
            }
            let _ = Trace::decode(&text);
        }
    }
});
