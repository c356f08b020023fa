//! The frame, which all messages have in common.

use alloc::vec::Vec;

use super::codec::Malformed;
use super::preamble::Edge;

/// Size of a frame's head in bytes: the message's number, and the body's size.
pub const HEAD_SIZE_BYTES: usize = 5;

/// The messages of one direction of an edge.
pub trait Message: Sized {
    /// Edge of the messages.
    const EDGE: Edge;

    /// Returns the maximum size, in bytes, of the body of the message with this number, or `None` if there is no such
    /// message.
    fn body_size_bytes_max(number: u8) -> Option<usize>;

    /// Returns the frame. Its reader refuses a body that is too long; the caller splits lists that are.
    fn encode(&self) -> Vec<u8>;

    /// Reads a frame.
    ///
    /// # Errors
    /// [`Malformed`] for bytes that [`Message::encode`] cannot have written, or that would harm their reader.
    fn decode(frame: &[u8]) -> Result<Self, Malformed>;

    /// Returns the size of the frame with this head, in bytes, head and body.
    ///
    /// # Errors
    /// [`Malformed`] if there is no such message, or it is longer than it may be.
    fn frame_size_bytes(head: &[u8; HEAD_SIZE_BYTES]) -> Result<usize, Malformed> {
        let [number, size @ ..] = *head;
        let size_bytes = u32::from_le_bytes(size) as usize;
        match Self::body_size_bytes_max(number) {
            None => Err(Malformed("there is no such message")),
            Some(max) if size_bytes > max => Err(Malformed("it is longer than it may be")),
            Some(_) => Ok(HEAD_SIZE_BYTES + size_bytes),
        }
    }
}

/// The messages of the asking side of an edge.
pub trait Question: Message {
    /// Messages of the answering side.
    type Answer: Message;
}

/// Expands to the rule of a field: that of its type, unless it has its own.
macro_rules! rule {
    ($type:ty) => {
        $type
    };
    ($type:ty, $rule:ty) => {
        $rule
    };
}
pub(super) use rule;

/// Defines the messages of one direction from one table: the enumeration, its encoder and its decoder. A row has a
/// number, the maximum body size in bytes, and the fields in order, each with its type and, if the type is not enough,
/// a rule.
macro_rules! messages {
    (
        $(#[$about_all:meta])*
        $edge:ident, $direction:ident {$(
            $(#[$about:meta])*
            $number:literal, $size_max:expr => $name:ident
                $({ $($(#[$about_field:meta])* $field:ident: $type:ty $(as $rule:ty)?,)* })?,
        )*}
    ) => {
        $(#[$about_all])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $direction {
            $($(#[$about])* $name $({ $($(#[$about_field])* $field: $type),* })?,)*
        }

        impl $crate::message::frame::Message for $direction {
            const EDGE: $crate::message::preamble::Edge = $crate::message::preamble::Edge::$edge;

            fn body_size_bytes_max(number: u8) -> Option<usize> {
                match number {
                    $($number => Some($size_max),)*
                    _ => None,
                }
            }

            fn encode(&self) -> alloc::vec::Vec<u8> {
                use $crate::message::codec::Codec;
                let mut frame = alloc::vec![0; $crate::message::frame::HEAD_SIZE_BYTES];
                match self {
                    $($direction::$name $({ $($field),* })? => {
                        frame[0] = $number;
                        $($(<$crate::message::frame::rule!($type $(, $rule)?) as Codec>::put($field, &mut frame);)*)?
                    })*
                }
                let body_size_bytes = (frame.len() - $crate::message::frame::HEAD_SIZE_BYTES) as u32;
                frame[1..$crate::message::frame::HEAD_SIZE_BYTES].copy_from_slice(&body_size_bytes.to_le_bytes());
                frame
            }

            fn decode(frame: &[u8]) -> Result<$direction, $crate::message::codec::Malformed> {
                use $crate::message::codec::{Codec, Malformed, TOO_SHORT};
                let (head, mut body) = frame.split_first_chunk().ok_or(TOO_SHORT)?;
                let size_bytes = <$direction as $crate::message::frame::Message>::frame_size_bytes(head)?;
                if size_bytes != frame.len() {
                    return Err(Malformed("its size is not that of its frame"));
                }
                let message = match head[0] {
                    $($number => $direction::$name $({ $(
                        $field: <$crate::message::frame::rule!($type $(, $rule)?) as Codec>::take(&mut body)?
                    ),* })?,)*
                    _ => return Err(Malformed("there is no such message")),
                };
                if body.is_empty() { Ok(message) } else { Err(Malformed("something follows it")) }
            }
        }
    };
}
pub(super) use messages;
