//! Announces classes that a session refuses: below the macros, which do not compile them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use dormouse_abi::class::{Announcement, CClass, CLASS_ID_MAX, Kind};
use dormouse_abi::environment::ENV_SESSION;
use dormouse_abi::message::{Edge, OwnerToProgram, Preamble, ProgramToOwner, VERSION};
use dormouse_abi::site::EventRecord;
use dormouse_transport::{Conversation, Deadline};

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

/// Up to four bytes, with zeros behind.
fn word(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word[..bytes.len()].copy_from_slice(bytes);
    u32::from_ne_bytes(word)
}

/// A class as C lays it out. It is never freed, as static storage is not.
fn class(provider: &str, event: &str, fields: &[(&str, u8)]) -> *const CClass {
    let mut description = vec![0; size_of::<CClass>()];
    description.push(fields.len() as u8);
    description.extend(fields.iter().map(|(_, field_type)| *field_type).chain([0]));
    for text in [provider, event].into_iter().chain(fields.iter().map(|(text, _)| *text)) {
        description.extend(text.bytes().chain([0]));
    }
    // In words, for a class has atomics in front.
    let words: Vec<u32> = description.chunks(4).map(word).collect();
    let class = words.leak().as_mut_ptr().cast::<CClass>();
    // SAFETY: the words begin with room for a class.
    unsafe { class.write(CClass::unused()) };
    class
}

/// One class that will do, among those that will not.
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
    let records: &mut [EventRecord] =
        Vec::leak((0..2 * classes.len()).map(|_| EventRecord { key: 0, describe: 0 }).collect());
    // Twice each, as code that was inlined has them.
    for (record, class) in records.iter_mut().zip(classes.iter().chain(&classes)) {
        record.key = (class.addr() as i64).wrapping_sub(std::ptr::from_ref(record).addr() as i64);
    }
    let section = records.as_ptr_range();
    // SAFETY: records of classes that are never freed.
    unsafe { dormouse::foreign::register(section.start, section.end) };
    if std::env::args().nth(2).is_some_and(|option| option == "wait") {
        println!("ready {}", std::process::id());
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }
    // SAFETY: never freed.
    let enabled = unsafe { &(*fit).enabled };
    for number in 0..10u64 {
        if enabled.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            // Eight bytes, seven of which may be read beyond, of a class with one such field.
            let fields = [number, 0];
            // SAFETY: a class that is never freed, and its fields.
            unsafe { dormouse::foreign::record_words(fit, fields.as_ptr().cast(), 8) };
        }
    }
}

/// Three classes more than a trace has room for.
fn crowd() {
    let class = |number: u32| Announcement { provider: "crowd".into(), name: format!("e{number}"), fields: Vec::new() };
    let classes: Vec<Announcement> = (0..CLASS_ID_MAX as u32 + 4).map(class).collect();
    let hello = ProgramToOwner::Hello {
        vpid: 1,
        program: "/bin/older".into(),
        command_line: "older".into(),
        classes: Vec::new(),
    };
    let OwnerToProgram::Welcome { process, .. } = ask(&hello) else { panic!("refused") };
    for classes in classes.chunks(10_000) {
        ask(&ProgramToOwner::MoreClasses { process, classes: classes.to_vec() });
    }
}

fn session() -> PathBuf {
    std::env::var_os(ENV_SESSION).expect("a session").into()
}

fn ask(question: &ProgramToOwner) -> OwnerToProgram {
    let deadline = Deadline::after(Duration::from_secs(60));
    let mut conversation = Conversation::connect(&session(), Edge::ProgramOwner, deadline).expect("an owner");
    conversation.ask_with_fd(question).expect("an answer").0
}

/// Says something else, and waits until the owner hangs up.
fn say(bytes: &[u8]) {
    let mut stream = UnixStream::connect(session()).expect("an owner");
    stream.write_all(bytes).expect("it listens");
    let _ = stream.read_to_end(&mut Vec::new());
}
