//! The preamble of a conversation, which tells versions apart. Its bytes are the same in every version.

use core::fmt;

/// Version of all messages. It changes when any message changes.
pub const VERSION: u32 = 7;

/// First bytes of a conversation, in either direction.
pub const MAGIC: [u8; 8] = *b"dormouse";

/// Two communicating parties, and which of them asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Edge {
    /// A program asks a session's owner, for example to join.
    ProgramOwner = 1,
    /// A tool asks a session's owner.
    ToolOwner = 2,
    /// A tool, or a session's owner, asks a program.
    ToolProgram = 3,
}

impl Edge {
    const ALL: [Edge; 3] = [Edge::ProgramOwner, Edge::ToolOwner, Edge::ToolProgram];
}

/// First bytes that either side of a conversation sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// [`VERSION`] of the sending side.
    pub version: u32,
    /// [`Edge`] as a number, because other versions may have other edges.
    pub edge: u32,
}

impl Preamble {
    /// Size in bytes.
    pub const SIZE_BYTES: usize = 16;

    /// Returns the preamble of this version.
    pub const fn of(edge: Edge) -> Preamble {
        Preamble { version: VERSION, edge: edge as u32 }
    }

    /// Returns its bytes.
    pub fn encode(self) -> [u8; Preamble::SIZE_BYTES] {
        let mut bytes = [0; Preamble::SIZE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..].copy_from_slice(&self.edge.to_le_bytes());
        bytes
    }

    /// Reads a preamble from the bytes received so far. Returns `None` if it is incomplete.
    ///
    /// # Errors
    /// [`Mismatch::NoDormouse`] as soon as a byte is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Option<Preamble>, Mismatch> {
        if bytes.iter().zip(MAGIC).any(|(byte, expected)| *byte != expected) {
            return Err(Mismatch::NoDormouse);
        }
        let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Ok(number(8).zip(number(12)).map(|(version, edge)| Preamble { version, edge }))
    }

    /// Returns the edge that the peer asks on, if the reader serves it.
    ///
    /// # Errors
    /// [`Mismatch`] if it is another version or an edge that is not served.
    pub fn check_asker(self, served: &[Edge]) -> Result<Edge, Mismatch> {
        let edge = Edge::ALL.into_iter().find(|edge| *edge as u32 == self.edge);
        if self.version != VERSION {
            return Err(Mismatch::Version { edge, asker: self.version, answerer: VERSION });
        }
        edge.filter(|edge| served.contains(edge)).ok_or(Mismatch::Edge)
    }

    /// Checks that a peer that was asked on `edge` answers on it.
    ///
    /// # Errors
    /// [`Mismatch`] if it is another version or another edge.
    pub fn check_answerer(self, edge: Edge) -> Result<(), Mismatch> {
        if self.version != VERSION {
            return Err(Mismatch::Version { edge: Some(edge), asker: VERSION, answerer: self.version });
        }
        if self.edge == edge as u32 { Ok(()) } else { Err(Mismatch::Edge) }
    }
}

/// Reason why two sides cannot communicate. Its text says what to do about it, and is the same on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// The other side is not Dormouse.
    NoDormouse,
    /// The sides have different versions.
    Version {
        /// Edge of the conversation, if this version knows it.
        edge: Option<Edge>,
        /// Version of the asking side.
        asker: u32,
        /// Version of the answering side.
        answerer: u32,
    },
    /// The socket is one of another kind.
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
    use alloc::format;
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn both_sides_report_a_version_mismatch_alike() {
        let older = Preamble { version: 1, edge: Edge::ProgramOwner as u32 };
        let newer = Preamble { version: VERSION + 1, edge: Edge::ProgramOwner as u32 };
        let served = [Edge::ProgramOwner, Edge::ToolOwner];
        let rebuild = "rebuild the program, or use the dormouse that it was built with";
        let install = "install the dormouse that the program was built with";
        let told = |program: u32, dormouse: u32, remedy: &str| {
            format!("the program speaks version {program} of the protocol, this dormouse {dormouse}: {remedy}")
        };
        let text = |checked: Mismatch| checked.to_string();
        assert_eq!(text(older.check_asker(&served).unwrap_err()), told(1, VERSION, rebuild));
        assert_eq!(text(newer.check_asker(&served).unwrap_err()), told(VERSION + 1, VERSION, install));
        // Messages on the program's side, about a newer owner, and on a tool's side, about an older program.
        assert_eq!(text(newer.check_answerer(Edge::ProgramOwner).unwrap_err()), told(VERSION, VERSION + 1, rebuild));
        assert_eq!(text(older.check_answerer(Edge::ToolProgram).unwrap_err()), told(1, VERSION, rebuild));
        let of_owner = text(older.check_answerer(Edge::ToolOwner).unwrap_err());
        assert!(of_owner.contains(&format!("{VERSION} of the protocol, the session's owner 1")), "{of_owner}");
        let unknown = text(Preamble { version: 9, edge: 77 }.check_asker(&served).unwrap_err());
        assert!(unknown.contains(&format!("9 of the protocol, the other {VERSION}")), "{unknown}");
    }

    #[test]
    fn edges_are_distinguished_and_foreign_preambles_detected_at_once() {
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
