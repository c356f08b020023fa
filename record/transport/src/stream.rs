//! Received parts of messages, and unsent parts. Nothing here waits.

use core::mem::MaybeUninit;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dormouse_abi::message::{HEAD_SIZE_BYTES, Message, Preamble};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::error::Error;

/// Maximum number of bytes allocated before they are received.
const PIECE_SIZE_BYTES: usize = 16 << 10;
/// Maximum number of successive calls to receive or send, before other connections have their turn or the clock is
/// checked. A peer may send one byte at a time without a pause.
const CALL_COUNT_MAX: usize = 16;

/// Data received so far.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl Incoming {
    /// Returns an empty buffer.
    pub const fn new() -> Incoming {
        Incoming { bytes: Vec::new(), fd: None }
    }

    /// Receives a peer's preamble. Returns `None` if it is incomplete.
    ///
    /// # Errors
    /// [`Error`]; the conversation is over then.
    pub fn preamble(&mut self, socket: impl AsFd) -> Result<Option<Preamble>, Error> {
        for _ in 0..CALL_COUNT_MAX {
            if !self.receive(socket.as_fd(), Preamble::SIZE_BYTES, false)? {
                break;
            }
            // Checked even if incomplete: a peer that is not Dormouse may send less than a preamble, and wait.
            if let Some(preamble) = Preamble::decode(&self.bytes)? {
                self.bytes.clear();
                return Ok(Some(preamble));
            }
        }
        Ok(None)
    }

    /// Receives a message. Returns `None` if it is incomplete.
    ///
    /// # Errors
    /// [`Error`]; the conversation is over then.
    pub fn message<M: Message>(&mut self, socket: impl AsFd) -> Result<Option<M>, Error> {
        self.frame(socket.as_fd(), false)
    }

    /// Receives a message, with the descriptor that was attached, if any. Returns `None` if it is incomplete.
    ///
    /// # Errors
    /// [`Error`]; the conversation is over then.
    pub fn message_with_fd<M: Message>(&mut self, socket: impl AsFd) -> Result<Option<(M, Option<OwnedFd>)>, Error> {
        let message = self.frame(socket.as_fd(), true)?;
        Ok(message.map(|message| (message, self.fd.take())))
    }

    fn frame<M: Message>(&mut self, socket: BorrowedFd<'_>, takes_fd: bool) -> Result<Option<M>, Error> {
        for _ in 0..CALL_COUNT_MAX {
            let size_bytes = self.frame_size_bytes::<M>()?;
            if !self.receive(socket, size_bytes, takes_fd)? {
                break;
            }
            if self.bytes.len() >= HEAD_SIZE_BYTES && self.bytes.len() == self.frame_size_bytes::<M>()? {
                return Ok(Some(M::decode(&core::mem::take(&mut self.bytes))?));
            }
        }
        Ok(None)
    }

    /// Returns the size of the frame in bytes, or that of its head as long as the head is incomplete.
    fn frame_size_bytes<M: Message>(&self) -> Result<usize, Error> {
        Ok(self.bytes.first_chunk().map_or(Ok(HEAD_SIZE_BYTES), M::frame_size_bytes)?)
    }

    /// Receives some of the bytes, up to `size_bytes` in total. Returns false if none has arrived.
    fn receive(&mut self, socket: BorrowedFd<'_>, size_bytes: usize, takes_fd: bool) -> Result<bool, Error> {
        let len = self.bytes.len();
        let piece_len = (size_bytes - len).min(PIECE_SIZE_BYTES);
        self.bytes.resize(len + piece_len, 0);
        let received = receive_with_fd(socket, &mut self.bytes[len..], takes_fd);
        self.bytes.truncate(len + *received.as_ref().map_or(&0, |(count, _)| count));
        match received {
            Ok((0, _)) | Err(Error::System(Errno::CONNRESET)) => Err(Error::Closed),
            Ok((_, fd)) => {
                if fd.is_some() && self.fd.is_some() {
                    return Err(Error::Descriptors);
                }
                self.fd = self.fd.take().or(fd);
                Ok(true)
            }
            Err(Error::System(Errno::AGAIN)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Receives the available bytes, and the descriptor that is attached to them.
fn receive_with_fd(
    socket: BorrowedFd<'_>,
    target: &mut [u8],
    takes_fd: bool,
) -> Result<(usize, Option<OwnedFd>), Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    // Without room for descriptors the kernel does not install any.
    let space = if takes_fd { &mut space[..] } else { &mut [] };
    let mut control = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::io::retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(target)], &mut control, flags))?;
    // The alignment of control messages may leave room for another descriptor. Descriptors that are not returned are
    // closed when dropped.
    let mut fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds).into_iter().flatten(),
        _ => None.into_iter().flatten(),
    });
    let (fd, more) = (fds.next(), fds.count());
    if received.flags.contains(ReturnFlags::CTRUNC) || more > 0 {
        return Err(Error::Descriptors);
    }
    Ok((received.bytes, fd))
}

/// Data to be sent.
#[derive(Debug, Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Offset of the last message.
    last: usize,
}

impl Outgoing {
    /// Returns the data of a new conversation: the preamble.
    pub fn preamble(preamble: Preamble) -> Outgoing {
        Outgoing { bytes: preamble.encode().into(), ..Outgoing::default() }
    }

    /// Adds a message.
    ///
    /// # Errors
    /// [`Error::TooLong`]; nothing is added then.
    pub fn add<M: Message>(&mut self, message: &M) -> Result<(), Error> {
        let frame = message.encode();
        let fits = frame.first_chunk().is_some_and(|head| M::frame_size_bytes(head) == Ok(frame.len()));
        if !fits {
            return Err(Error::TooLong);
        }
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(&frame);
        Ok(())
    }

    /// Returns all the data.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Sends as much as there is room for. Returns true once all is sent. `fd` is attached to the first byte of the
    /// last message.
    ///
    /// # Errors
    /// [`Error`]; the conversation is over then.
    pub fn send(&mut self, socket: impl AsFd, fd: Option<BorrowedFd<'_>>) -> Result<bool, Error> {
        for _ in 0..CALL_COUNT_MAX {
            if self.sent == self.bytes.len() {
                *self = Outgoing::default();
                return Ok(true);
            }
            let end = if fd.is_some() && self.sent < self.last { self.last } else { self.bytes.len() };
            let fds = fd.filter(|_| self.sent == self.last);
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if let Some(fd) = &fds {
                control.push(SendAncillaryMessage::ScmRights(core::slice::from_ref(fd)));
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(socket.as_fd(), &[IoSlice::new(&self.bytes[self.sent..end])], &mut control, flags) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use dormouse_abi::message::ProgramToTool;

    use super::*;

    /// The head states a large size, which must not matter.
    #[test]
    fn allocations_are_bounded_by_received_bytes() {
        let (own, mut peer) = UnixStream::pair().expect("sockets");
        let mut incoming = Incoming::new();
        let mut sent = 0;
        peer.write_all(&[1, 0, 0, 0, 1]).expect("a peer");
        for len in [0, 1, 5_000, 100_000] {
            peer.write_all(&vec![0; len]).expect("a peer");
            sent += len;
            while incoming.bytes.len() < HEAD_SIZE_BYTES + sent {
                assert_eq!(incoming.message::<ProgramToTool>(&own), Ok(None));
            }
            let capacity = incoming.bytes.capacity();
            assert!(capacity <= 2 * (HEAD_SIZE_BYTES + sent + PIECE_SIZE_BYTES), "{capacity} bytes for {sent}");
        }
    }
}
