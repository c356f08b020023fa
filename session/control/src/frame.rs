//! Frames over a connection, for those who ask: one question, one answer, one deadline.

use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use dormouse_abi::wire::{FRAME_SIZE_MAX_BYTES, Message};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};

/// One side of a conversation. Calls give `WouldBlock` where they would wait longer than they may.
pub(crate) trait Connection {
    /// Takes what has come, into the front of `target`; 0 at the end.
    fn receive(&mut self, target: &mut [u8]) -> std::io::Result<usize>;
    /// Sends a part of `bytes`, at least one byte, and with the first one a descriptor. How many bytes.
    fn send(&mut self, bytes: &[u8], with: Option<BorrowedFd<'_>>) -> std::io::Result<usize>;
}

/// A socket that does not block, or has timeouts.
pub(crate) struct Socket<S>(pub(crate) S);

impl<S: AsFd> Connection for Socket<S> {
    fn receive(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        Ok(recv(&self.0, target, RecvFlags::empty())?.0)
    }

    fn send(&mut self, bytes: &[u8], with: Option<BorrowedFd<'_>>) -> std::io::Result<usize> {
        let fds = with.as_slice();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        Ok(sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
    }
}

/// A socket with timeouts that are what is left until a deadline.
pub(crate) struct Timed<S> {
    socket: Socket<S>,
    deadline: Instant,
}

impl<S: AsFd> Timed<S> {
    pub(crate) fn new(socket: S, deadline: Instant) -> Timed<S> {
        Timed { socket: Socket(socket), deadline }
    }

    fn limit(&self, direction: Timeout) -> std::io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        // Zero means for ever to the kernel, which counts microseconds.
        Ok(set_socket_timeout(&self.socket.0, direction, Some(left.max(Duration::from_micros(1))))?)
    }
}

impl<S: AsFd> Connection for Timed<S> {
    fn receive(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        self.limit(Timeout::Recv)?;
        self.socket.receive(target)
    }

    fn send(&mut self, bytes: &[u8], with: Option<BorrowedFd<'_>>) -> std::io::Result<usize> {
        self.limit(Timeout::Send)?;
        self.socket.send(bytes, with)
    }
}

/// One question, perhaps with a descriptor, and one answer.
pub(crate) fn ask(
    connection: &mut impl Connection,
    question: &Message,
    with: Option<BorrowedFd<'_>>,
) -> std::io::Result<Message> {
    send_all(connection, &question.encode(), with)?;
    let mut incoming = Incoming::default();
    loop {
        match incoming.receive(connection) {
            Ok(Some(answer)) => return answer.map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error)),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
}

/// Sends a whole frame over a connection that waits.
pub(crate) fn send_all(
    connection: &mut impl Connection,
    mut bytes: &[u8],
    mut with: Option<BorrowedFd<'_>>,
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match connection.send(bytes, with) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => (bytes, with) = (bytes.get(count..).unwrap_or_default(), None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A frame that comes piece by piece. It takes no more memory than twice what has come.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
}

/// Bytes that are asked for at a time.
const PIECE_SIZE_BYTES: usize = 16 << 10;

impl Incoming {
    /// Takes a piece. Once the frame is whole, it is read: `Some`, whatever is in it. What comes behind the frame stays where it is.
    pub(crate) fn receive(
        &mut self,
        connection: &mut impl Connection,
    ) -> std::io::Result<Option<Result<Message, dormouse_abi::wire::Malformed>>> {
        let at = self.bytes.len();
        let missing = self.missing().map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))?;
        self.bytes.resize(at + missing.min(PIECE_SIZE_BYTES), 0);
        let received = connection.receive(&mut self.bytes[at..]);
        let count = *received.as_ref().unwrap_or(&0);
        self.bytes.truncate(at + count);
        if received? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(match self.missing() {
            Ok(0) => Some(Message::decode(&self.bytes[4..])),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// Bytes up to the end of the length, or of the frame.
    fn missing(&self) -> Result<usize, dormouse_abi::wire::Malformed> {
        let Some(head) = self.bytes.first_chunk::<4>() else { return Ok(4 - self.bytes.len()) };
        let len = u32::from_le_bytes(*head) as usize;
        // A frame has a type at least.
        if len == 0 || len > FRAME_SIZE_MAX_BYTES {
            return Err(dormouse_abi::wire::Malformed);
        }
        Ok(4 + len - self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Endless;

    impl Connection for Endless {
        fn receive(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
            target[0] = 0;
            Ok(1)
        }
        fn send(&mut self, _bytes: &[u8], _with: Option<BorrowedFd<'_>>) -> std::io::Result<usize> {
            Ok(0)
        }
    }

    #[test]
    fn a_length_costs_no_memory_before_its_bytes_have_come() {
        let mut incoming = Incoming { bytes: (FRAME_SIZE_MAX_BYTES as u32).to_le_bytes().into() };
        for _ in 0..1_000 {
            assert!(matches!(incoming.receive(&mut Endless), Ok(None)));
        }
        assert!(incoming.bytes.len() == 1_004 && incoming.bytes.capacity() <= 4 * PIECE_SIZE_BYTES);
        // One that no frame has is told at once.
        let mut incoming = Incoming { bytes: vec![255; 3] };
        assert!(matches!(incoming.receive(&mut Endless), Ok(Some(Err(dormouse_abi::wire::Malformed)))));
    }
}
