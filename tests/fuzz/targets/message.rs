//! Messages of both directions of every edge: bytes chosen by a peer, and the pieces in which they arrive.
#![no_main]

use std::fmt::Debug;
use std::io::Write;
use std::os::unix::net::UnixStream;

use arbitrary::Arbitrary;
use dormouse_abi::message::{
    HEAD_SIZE_BYTES, Message, OwnerToProgram, OwnerToTool, Preamble, ProgramToOwner, ProgramToTool, ToolToOwner,
    ToolToProgram,
};
use dormouse_transport::{Incoming, Outgoing};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
struct Input {
    direction: u8,
    /// Whether the bytes begin with Dormouse's preamble.
    is_dormouse: bool,
    /// Frames with correct heads; then arbitrary bytes.
    frames: Vec<(u8, Vec<u8>)>,
    rest: Vec<u8>,
    /// Sizes of the pieces in which the bytes arrive.
    pieces: Vec<u8>,
}

/// Asserts that receiving in pieces yields what decoding at once yields, and that a decoded message can be encoded
/// again.
fn receive<M: Message + Debug + PartialEq>(input: &Input, bytes: &[u8]) {
    let (own, mut peer) = UnixStream::pair().expect("sockets");
    let mut incoming = Incoming::new();
    let mut pieces = input.pieces.iter().map(|len| usize::from(*len).max(1)).chain(std::iter::repeat(usize::MAX));
    let (mut unsent, mut is_known) = (bytes, false);
    let mut undecoded = bytes.get(Preamble::SIZE_BYTES..).unwrap_or_default();
    while !unsent.is_empty() {
        let piece = unsent.split_off(..pieces.next().unwrap_or(1).min(unsent.len())).unwrap_or_default();
        peer.write_all(piece).expect("room in the socket");
        if !is_known {
            match incoming.preamble(&own) {
                Ok(preamble) => is_known = preamble.is_some(),
                Err(_) => {
                    assert!(Preamble::decode(bytes).is_err());
                    return;
                }
            }
        }
        if !is_known {
            continue;
        }
        loop {
            match incoming.message::<M>(&own) {
                Ok(Some(message)) => {
                    let head = undecoded.first_chunk::<HEAD_SIZE_BYTES>().expect("a head");
                    let len = M::frame_size_bytes(head).expect("a message");
                    let frame = undecoded.split_off(..len).expect("all of it");
                    assert_eq!(M::decode(frame).as_ref(), Ok(&message));
                    assert_eq!(M::decode(&message.encode()).as_ref(), Ok(&message));
                    Outgoing::default().add(&message).expect("what is received can be sent");
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

fuzz_target!(|input: Input| {
    let mut bytes = Vec::new();
    if input.is_dormouse {
        bytes.extend_from_slice(&Preamble { version: 2, edge: 1 }.encode());
    }
    for (number, body) in &input.frames {
        bytes.push(*number);
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(body);
    }
    bytes.extend_from_slice(&input.rest);
    match input.direction % 6 {
        0 => receive::<ProgramToOwner>(&input, &bytes),
        1 => receive::<OwnerToProgram>(&input, &bytes),
        2 => receive::<ToolToOwner>(&input, &bytes),
        3 => receive::<OwnerToTool>(&input, &bytes),
        4 => receive::<ToolToProgram>(&input, &bytes),
        _ => receive::<ProgramToTool>(&input, &bytes),
    }
});
