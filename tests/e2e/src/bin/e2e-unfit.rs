//! Announces classes that a session refuses. Uses the functions below the macros, which would not compile them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, AtomicU32};

use dormouse_abi::class::{CClass, CLASS_ID_MAX, CLASS_ID_NONE, Kind};
use dormouse_abi::environment::ENV_SESSION;
use dormouse_abi::message::{Edge, Preamble, VERSION};
use dormouse_abi::site::EventRecord;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("by-library") => by_library(),
        Some("crowd") => crowd(),
        Some("newer") => say(&Preamble { version: VERSION + 1, ..Preamble::of(Edge::ProgramOwner) }.encode()),
        Some("older") => say(&Preamble { version: VERSION - 1, ..Preamble::of(Edge::ProgramOwner) }.encode()),
        Some("stranger") => say(b"GET / HTTP/1.1\r\n\r\n"),
        Some("nonsense") => {
            say(&[&Preamble::of(Edge::ProgramOwner).encode()[..], &[1, 3, 0, 0, 0, 0xFF, 0xFF, 0xFF]].concat())
        }
        _ => eprintln!("by-library, crowd, newer, older, stranger or nonsense"),
    }
}

/// Returns up to four bytes as a word, padded with zeros.
fn word(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word[..bytes.len()].copy_from_slice(bytes);
    u32::from_ne_bytes(word)
}

/// Returns a class in C's layout. It is never freed, like static storage.
fn class(provider: &str, event: &str, fields: &[(&str, u8)]) -> *const CClass {
    let mut description = vec![0; size_of::<CClass>()];
    description.push(fields.len() as u8);
    description.extend(fields.iter().map(|(_, field_type)| *field_type).chain([0]));
    for text in [provider, event].into_iter().chain(fields.iter().map(|(text, _)| *text)) {
        description.extend(text.bytes().chain([0]));
    }
    // Built of words, because a class begins with atomics.
    let words: Vec<u32> = description.chunks(4).map(word).collect();
    let class = words.leak().as_mut_ptr().cast::<CClass>();
    let unused = CClass { enabled: AtomicI32::new(0), id: AtomicU32::new(CLASS_ID_NONE) };
    // SAFETY: the words begin with room for a class.
    unsafe { class.write(unused) };
    class
}

/// Announces one valid class among invalid ones.
fn by_library() {
    let number = Kind::U64 as u8;
    let many: Vec<(&str, u8)> = vec![("f", number); 33];
    let fit = class("unfit", "fit", &[("n", number)]);
    let classes = [
        class("größe", "provider", &[]),
        class("unfit", "größe", &[]),
        class("unfit", "field", &[("n", number), ("a b", number)]),
        fit,
        class("unfit", "many", &many),
        class("unfit", "kind", &[("odd", 77)]),
        class("unfit", &"n".repeat(256), &[]),
        class("unfit", "\x1b[2J", &[]),
        class("unfit", "", &[]),
    ];
    // Each twice, like code that was inlined.
    announce(&[classes, classes].concat());
    if std::env::args().nth(2).is_some_and(|option| option == "wait") {
        println!("ready {}", std::process::id());
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }
    // SAFETY: the class is never freed.
    let enabled = unsafe { &(*fit).enabled };
    for number in 0..10u64 {
        if enabled.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            // Eight bytes of a class with one field of that size; up to seven bytes beyond may be read.
            let fields = [number, 0];
            // SAFETY: the class is never freed, and the fields are live and longer than the eight bytes by more than
            // seven.
            unsafe { dormouse::foreign::record_words(fit, fields.as_ptr().cast(), 8) };
        }
    }
}

/// Makes the library register these classes, like those of a loaded object.
fn announce(classes: &[*const CClass]) {
    let records: &mut [EventRecord] =
        Vec::leak((0..classes.len()).map(|_| EventRecord { key: 0, describe: 0 }).collect());
    for (record, class) in records.iter_mut().zip(classes) {
        record.key = (class.addr() as i64).wrapping_sub(std::ptr::from_ref(record).addr() as i64);
    }
    let section = records.as_ptr_range();
    // SAFETY: the records and their classes are never freed.
    unsafe { dormouse::foreign::register(section.start, section.end) };
}

/// Announces three more classes than a trace has room for.
fn crowd() {
    let classes: Vec<_> =
        (0..CLASS_ID_MAX as u32 + 4).map(|number| class("crowd", &format!("e{number}"), &[])).collect();
    announce(&classes);
}

fn session() -> PathBuf {
    std::env::var_os(ENV_SESSION).expect("a session").into()
}

/// Sends other bytes than a program would, and waits until the owner closes the connection.
fn say(bytes: &[u8]) {
    let mut stream = UnixStream::connect(session()).expect("an owner");
    stream.write_all(bytes).expect("it listens");
    let _ = stream.read_to_end(&mut Vec::new());
}
