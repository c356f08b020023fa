//! What has come of a message, and what is left to send of one. Nothing here waits.

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

/// Most bytes that are made room for before they come.
const PIECE_SIZE_BYTES: usize = 16 << 10;
/// How often in succession something is received or sent, until others have their turn, or somebody looks at a clock: a peer may keep pace with
/// a byte at a time.
const CALL_COUNT_MAX: usize = 16;

/// What has come so far.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl Incoming {
    /// Nothing.
    pub const fn new() -> Incoming {
        Incoming { bytes: Vec::new(), fd: None }
    }

    /// Receives a peer's preamble; `None` if more must come first.
    ///
    /// # Errors
    /// [`Error`]; the conversation is over then.
    pub fn preamble(&mut self, socket: impl AsFd) -> Result<Option<Preamble>, Error> {
        for _ in 0..CALL_COUNT_MAX {
            if !self.receive(socket.as_fd(), Preamble::SIZE_BYTES, false)? {
                break;
            }
            // Whatever has come is looked at: what is no Dormouse may send less than a preamble, and wait.
            if let Some(preamble) = Preamble::decode(&self.bytes)? {
                self.bytes.clear();
                return Ok(Some(preamble));
            }
        }
        Ok(None)
    }

    /// Receives a message; `None` if more must come first.
    ///
    /// # Errors
    /// [`Error`]; the conversation is over then.
    pub fn message<M: Message>(&mut self, socket: impl AsFd) -> Result<Option<M>, Error> {
        self.frame(socket.as_fd(), false)
    }

    /// The same, with the descriptor that came with it, if one did.
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

    /// Bytes of the frame, or of its head until that is there.
    fn frame_size_bytes<M: Message>(&self) -> Result<usize, Error> {
        Ok(self.bytes.first_chunk().map_or(Ok(HEAD_SIZE_BYTES), M::frame_size_bytes)?)
    }

    /// Receives some of the bytes up to `size_bytes` in all. False if nothing is there.
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

/// Receives what is there, and the descriptor that comes with it.
fn receive_with_fd(
    socket: BorrowedFd<'_>,
    target: &mut [u8],
    takes_fd: bool,
) -> Result<(usize, Option<OwnedFd>), Error> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    // Without room for them the kernel does not make descriptors of ours.
    let space = if takes_fd { &mut space[..] } else { &mut [] };
    let mut control = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::io::retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(target)], &mut control, flags))?;
    // There may be room for another between the aligned ends of a control message. Whatever is not returned is closed as it is dropped.
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

/// What is to be sent, from the first byte that was not.
#[derive(Debug, Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Where the last message begins.
    last: usize,
}

impl Outgoing {
    /// The first thing that a side says.
    pub fn preamble(preamble: Preamble) -> Outgoing {
        Outgoing { bytes: preamble.encode().into(), ..Outgoing::default() }
    }

    /// Adds a message.
    ///
    /// # Errors
    /// [`Error::TooLong`]; then nothing is added.
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

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Sends as much as there is room for; true once all is sent. `fd` goes with the first byte of the last message.
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

    /// Its head may say what it likes.
    #[test]
    fn no_more_is_allocated_than_has_come() {
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
