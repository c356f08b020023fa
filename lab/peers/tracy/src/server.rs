//! The server's end of Tracy's connection: receives the client's data as fast as it comes, and counts it.
//!
//! ```text
//!   server  "TracyPrf", protocol version                  TracyProtocol.hpp
//!   client  status byte, WelcomeMessage (1,170 bytes)
//!   client  { size: u32, LZ4 block of `size` bytes } …    blocks refer back to the 64 KiB before them
//!   inside  items: type: u8, the bytes of that type, then for strings a length and as many bytes
//! ```
//! The server never sends a query: the client does not wait for any.
//!
//! # Limits
//! It knows only protocol 82, which is that of the client that the lock file pins. The handshake with another client
//! fails, and the failure is reported.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_lab_peer::TEXTS;

/// `tracy::ProtocolVersion`.
const PROTOCOL: u32 = 82;
const SHIBBOLETH: &[u8] = b"TracyPrf";
/// `tracy::HandshakeWelcome`.
const WELCOME: u8 = 1;
/// `sizeof(tracy::WelcomeMessage)`.
const WELCOME_BYTES: usize = 1170;
/// `tracy::TargetFrameSize`: maximum decompressed size of a block, in bytes.
const FRAME_BYTES: usize = 256 << 10;
/// Distance that a block may refer back, in bytes, by LZ4's format.
const WINDOW_BYTES: usize = 64 << 10;

/// `tracy::QueueDataSize`: bytes of an item, its type included.
#[rustfmt::skip]
const ITEM_BYTES: [u8; 132] = [
    1, 1, 10, 13, 10, 13, 9, 9, 9, 1, 1, 1, 13, 9, 7, 13, 9, 7, 10, 17,
    13, 11, 17, 13, 11, 9, 5, 3, 17, 17, 13, 17, 17, 17, 5, 27, 27, 21, 21, 27,
    27, 21, 21, 21, 21, 24, 24, 16, 16, 16, 24, 24, 16, 16, 16, 25, 21, 25, 23, 16,
    12, 2, 10, 10, 13, 1, 1, 1, 25, 13, 15, 13, 3, 1, 1, 5, 26, 18, 1, 17,
    5, 4, 9, 17, 17, 17, 13, 32, 22, 13, 17, 17, 20, 17, 20, 28, 17, 13, 25, 17,
    17, 17, 17, 17, 17, 17, 16, 18, 1, 5, 1, 17, 1, 1, 1, 1, 9, 9, 24, 9,
    9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9,
];

// `tracy::QueueType`.
const MESSAGES: std::ops::RangeInclusive<u8> = 2..=5;
const ZONES: std::ops::RangeInclusive<u8> = 19..=27;
const PLOTS: std::ops::RangeInclusive<u8> = 55..=57;
const TERMINATE: u8 = 73;
const STRINGS_16: std::ops::RangeInclusive<u8> = 112..=113;
const STRINGS_8: std::ops::RangeInclusive<u8> = 114..=115;
const TRANSFERS: std::ops::RangeInclusive<u8> = 119..=131;
const LONG_TRANSFERS: [u8; 3] = [126, 129, 130];

/// Number of zone begins, zone ends, points of plots and messages that arrived.
pub(crate) static EVENTS: AtomicU64 = AtomicU64::new(0);

/// State that is carried from one block to the next.
#[derive(Debug, Default)]
struct Counter {
    /// Whether the last string is the text of one of this program's messages: the client writes messages of its own as
    /// well. A message's text precedes it.
    is_our_text: bool,
}

impl Counter {
    /// Counts the events of a block. Returns the count, and whether the client ends the connection in it.
    fn count(&mut self, mut items: &[u8]) -> Result<(u64, bool), String> {
        let mut events = 0;
        while let [kind, ..] = *items {
            let size =
                *ITEM_BYTES.get(usize::from(kind)).ok_or_else(|| format!("an item of the unknown type {kind}"))?;
            let rest = items.get(usize::from(size)..).ok_or("an item is cut off")?;
            let prefix = match kind {
                TERMINATE => return Ok((events, true)),
                _ if STRINGS_8.contains(&kind) => 1,
                _ if STRINGS_16.contains(&kind) => 2,
                _ if LONG_TRANSFERS.contains(&kind) => 4,
                _ if TRANSFERS.contains(&kind) => 2,
                _ => 0,
            };
            let (length, rest) = rest.split_at_checked(prefix).ok_or("a string's length is cut off")?;
            let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            let (string, rest) = rest.split_at_checked(length).ok_or("a string is cut off")?;
            items = rest;
            if STRINGS_8.contains(&kind) {
                self.is_our_text = string.get(1..) == Some(&TEXTS[0].as_bytes()[1..]);
            }
            let is_event =
                (MESSAGES.contains(&kind) && self.is_our_text) || ZONES.contains(&kind) || PLOTS.contains(&kind);
            events += u64::from(is_event);
        }
        Ok((events, false))
    }
}

/// Returns the port that this process listens on. The client takes the first free port, and starts before `main`.
fn listening_port() -> Option<u16> {
    let sockets: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .ok()?
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok()?.to_str()?.strip_prefix("socket:[").map(String::from))
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").ok()?;
    // proc(5): `sl local_address rem_address st … inode`, numbers in hexadecimal; state 0A is LISTEN.
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let is_ours = sockets.iter().any(|socket| socket.strip_suffix(']') == Some(inode));
        (*state == "0A" && is_ours).then(|| u16::from_str_radix(local.split_once(':')?.1, 16).ok())?
    })
}

/// Connects to this process's client, whose thread listens some time after it starts.
pub(crate) fn connect() -> Result<BufReader<TcpStream>, String> {
    let until = Instant::now() + Duration::from_secs(10);
    let port = loop {
        match listening_port() {
            Some(port) => break port,
            None if Instant::now() > until => return Err("the client found no free port from 8086 to 8105".into()),
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| format!("port {port}: {error}"))?;
    let text = |error: io::Error| error.to_string();
    stream.write_all(SHIBBOLETH).map_err(text)?;
    stream.write_all(&PROTOCOL.to_le_bytes()).map_err(text)?;
    let mut reader = BufReader::with_capacity(FRAME_BYTES, stream);
    let mut welcome = [0; 1 + WELCOME_BYTES];
    reader.read_exact(&mut welcome[..1]).map_err(text)?;
    if welcome[0] != WELCOME {
        return Err(format!("the client refuses protocol {PROTOCOL} (status {})", welcome[0]));
    }
    reader.read_exact(&mut welcome[1..]).map_err(text)?;
    Ok(reader)
}

/// Receives everything until the client ends.
pub(crate) fn drain(mut stream: impl Read) -> Result<(), String> {
    let mut compressed = Vec::new();
    // Holds the window, then the block.
    let mut buffer = vec![0; WINDOW_BYTES + FRAME_BYTES];
    let mut window = 0;
    let mut counter = Counter::default();
    loop {
        let mut size = [0; 4];
        if stream.read_exact(&mut size).is_err() {
            return Ok(());
        }
        let size = u32::from_le_bytes(size) as usize;
        if size > FRAME_BYTES * 2 {
            return Err(format!("a block of {size} bytes"));
        }
        compressed.resize(size, 0);
        stream.read_exact(&mut compressed).map_err(|error| error.to_string())?;
        let (before, block) = buffer.split_at_mut(window);
        let length = lz4_flex::block::decompress_into_with_dict(&compressed, block, before)
            .map_err(|error| error.to_string())?;
        let (events, is_last) = counter.count(&block[..length])?;
        // The count is read when no event is in flight; no other memory depends on it.
        EVENTS.fetch_add(events, Ordering::Relaxed);
        if is_last {
            return Ok(());
        }
        let end = window + length;
        window = end.min(WINDOW_BYTES);
        buffer.copy_within(end - window..end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_counted_and_strings_skipped() {
        // A context, a zone's begin and end, a point, a message with its text, a name, the end.
        let mut items = vec![75, 1, 0, 0, 0];
        items.extend([[19; 17].as_slice(), &[25; 9], &[57; 25]].concat());
        items.extend([114, 3, b'a', b'b', b'c']);
        // A message of the client with that text; then one of this program.
        items.extend([2; 10]);
        items.extend([[114, 32].as_slice(), TEXTS[3].as_bytes(), &[2; 10]].concat());
        items.extend([121, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, b'x', b'y', 73]);
        let count = |items: &[u8]| Counter::default().count(items);
        assert_eq!(count(&items), Ok((4, true)));
        assert!(count(&items[..30]).is_err());
        assert!(count(&[200]).is_err());
    }
}
