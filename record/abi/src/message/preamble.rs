//! How a conversation begins: what tells versions apart. Its bytes are the same in every version.

use core::fmt;

/// Version of all messages. It changes with any of them.
pub const VERSION: u32 = 3;

/// First bytes of a conversation, in either direction.
pub const MAGIC: [u8; 8] = *b"dormouse";

/// Two parties that talk to each other, and which of them asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Edge {
    /// A program asks a session's owner: it joins.
    ProgramOwner = 1,
    /// A tool asks a session's owner.
    ToolOwner = 2,
    /// A tool, or a session's owner, asks a program.
    ToolProgram = 3,
}

impl Edge {
    const ALL: [Edge; 3] = [Edge::ProgramOwner, Edge::ToolOwner, Edge::ToolProgram];
}

/// What either side of a conversation says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// [`VERSION`] of the side that says it.
    pub version: u32,
    /// [`Edge`] as a number: another version may have others.
    pub edge: u32,
}

impl Preamble {
    /// Its bytes.
    pub const SIZE_BYTES: usize = 16;

    /// That of this version.
    pub const fn of(edge: Edge) -> Preamble {
        Preamble { version: VERSION, edge: edge as u32 }
    }

    /// As bytes.
    pub fn encode(self) -> [u8; Preamble::SIZE_BYTES] {
        let mut bytes = [0; Preamble::SIZE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..].copy_from_slice(&self.edge.to_le_bytes());
        bytes
    }

    /// Reads it, or as much as has come; `None` if more must come.
    ///
    /// # Errors
    /// [`Mismatch::NoDormouse`], as soon as a byte is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Option<Preamble>, Mismatch> {
        if bytes.iter().zip(MAGIC).any(|(byte, expected)| *byte != expected) {
            return Err(Mismatch::NoDormouse);
        }
        let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Ok(number(8).zip(number(12)).map(|(version, edge)| Preamble { version, edge }))
    }

    /// Which of the edges that the reader serves a peer has asked on.
    ///
    /// # Errors
    /// [`Mismatch`]
    pub fn check_asker(self, served: &[Edge]) -> Result<Edge, Mismatch> {
        let edge = Edge::ALL.into_iter().find(|edge| *edge as u32 == self.edge);
        if self.version != VERSION {
            return Err(Mismatch::Version { edge, asker: self.version, answerer: VERSION });
        }
        edge.filter(|edge| served.contains(edge)).ok_or(Mismatch::Edge)
    }

    /// Whether a peer that was asked on `edge` answers on it.
    ///
    /// # Errors
    /// [`Mismatch`]
    pub fn check_answerer(self, edge: Edge) -> Result<(), Mismatch> {
        if self.version != VERSION {
            return Err(Mismatch::Version { edge: Some(edge), asker: VERSION, answerer: self.version });
        }
        if self.edge == edge as u32 { Ok(()) } else { Err(Mismatch::Edge) }
    }
}

/// Why two sides cannot talk. Its text says what to do about it; it is the same on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// The other side is something else.
    NoDormouse,
    /// The sides are of different versions.
    Version {
        /// Where they met, if this version knows it.
        edge: Option<Edge>,
        /// That of the side that asks.
        asker: u32,
        /// That of the side that answers.
        answerer: u32,
    },
    /// A socket was taken for one of another kind.
    Edge,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (program, dormouse) = match *self {
            Mismatch::NoDormouse => return f.write_str("the other side speaks another protocol than Dormouse's"),
            Mismatch::Edge => {
                return f.write_str("a program's socket was taken for a session's, or the other way round");
            }
            Mismatch::Version { edge: Some(Edge::ProgramOwner), asker, answerer } => (asker, answerer),
            Mismatch::Version { edge: Some(Edge::ToolProgram), asker, answerer } => (answerer, asker),
            Mismatch::Version { edge: Some(Edge::ToolOwner), asker, answerer } => {
                return write!(
                    f,
                    "this dormouse speaks version {asker} of the protocol, the session's owner {answerer}: use the dormouse that \
                     started the session"
                );
            }
            Mismatch::Version { edge: None, asker, answerer } => {
                return write!(
                    f,
                    "the asking side speaks version {asker} of the protocol, the other {answerer}: install the same on both sides"
                );
            }
        };
        let remedy = if program < dormouse {
            "rebuild the program, or use the dormouse that it was built with"
        } else {
            "install the dormouse that the program was built with"
        };
        write!(f, "the program speaks version {program} of the protocol, this dormouse {dormouse}: {remedy}")
    }
}

impl core::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn each_side_tells_versions_apart_with_the_same_words() {
        let older = Preamble { version: 1, edge: Edge::ProgramOwner as u32 };
        let newer = Preamble { version: 4, edge: Edge::ProgramOwner as u32 };
        let served = [Edge::ProgramOwner, Edge::ToolOwner];
        assert_eq!(
            older.check_asker(&served).unwrap_err().to_string(),
            "the program speaks version 1 of the protocol, this dormouse 3: rebuild the program, or use the dormouse that it was built with"
        );
        assert_eq!(
            newer.check_asker(&served).unwrap_err().to_string(),
            "the program speaks version 4 of the protocol, this dormouse 3: install the dormouse that the program was built with"
        );
        // What the program says itself, of an owner that is newer, and a tool of a program that is older.
        assert_eq!(
            newer.check_answerer(Edge::ProgramOwner).unwrap_err().to_string(),
            "the program speaks version 3 of the protocol, this dormouse 4: rebuild the program, or use the dormouse that it was built with"
        );
        assert!(
            older
                .check_answerer(Edge::ToolProgram)
                .unwrap_err()
                .to_string()
                .starts_with("the program speaks version 1 of the protocol, this dormouse 3: rebuild the program")
        );
        assert!(
            older
                .check_answerer(Edge::ToolOwner)
                .unwrap_err()
                .to_string()
                .contains("3 of the protocol, the session's owner 1")
        );
        let unknown = Preamble { version: 9, edge: 77 };
        assert!(unknown.check_asker(&served).unwrap_err().to_string().contains("9 of the protocol, the other 3"));
    }

    #[test]
    fn edges_are_told_apart_and_what_is_no_dormouse_at_its_first_byte() {
        let served = [Edge::ProgramOwner, Edge::ToolOwner];
        assert_eq!(Preamble::of(Edge::ToolOwner).check_asker(&served), Ok(Edge::ToolOwner));
        assert_eq!(Preamble::of(Edge::ToolProgram).check_asker(&served), Err(Mismatch::Edge));
        assert_eq!(Preamble { version: VERSION, edge: 0 }.check_asker(&served), Err(Mismatch::Edge));
        assert_eq!(Preamble::of(Edge::ToolProgram).check_answerer(Edge::ToolOwner), Err(Mismatch::Edge));
        for edge in Edge::ALL {
            let bytes = Preamble::of(edge).encode();
            assert_eq!(Preamble::decode(&bytes), Ok(Some(Preamble::of(edge))));
            for len in 0..bytes.len() {
                assert_eq!(Preamble::decode(&bytes[..len]), Ok(None));
            }
            assert_eq!(Preamble::of(edge).check_answerer(edge), Ok(()));
        }
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"G", b"dormousx", b"dormous\0\x02\0\0\0\x01\0\0\0"] {
            assert_eq!(Preamble::decode(bytes), Err(Mismatch::NoDormouse));
        }
    }
}
