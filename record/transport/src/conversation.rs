//! A conversation with one deadline.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use dormouse_abi::message::{Edge, Message, Mismatch, Preamble, Question};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::deadline::Deadline;
use crate::error::Error;
use crate::peer::Peer;
use crate::socket::connect;
use crate::stream::{Incoming, Outgoing};

/// A connection on which one side asks and the other answers, until the deadline. Its calls block until then at most;
/// not async-signal-safe.
#[derive(Debug)]
pub struct Conversation<'a> {
    socket: OwnedFd,
    edge: Edge,
    deadline: Deadline<'a>,
    incoming: Incoming,
    /// Bytes that this side must send before its first message.
    outgoing: Outgoing,
    /// Whether the other side's version is known.
    is_known: bool,
}

impl<'a> Conversation<'a> {
    /// Connects to the listener at `path`.
    ///
    /// # Errors
    /// [`Error`]
    pub fn connect(path: &Path, edge: Edge, deadline: Deadline<'a>) -> Result<Conversation<'a>, Error> {
        Ok(Conversation::begin(connect(path, &deadline)?, edge, deadline))
    }

    /// Begins a conversation on a connected socket.
    pub fn begin(socket: OwnedFd, edge: Edge, deadline: Deadline<'a>) -> Conversation<'a> {
        let outgoing = Outgoing::preamble(Preamble::of(edge));
        Conversation { socket, edge, deadline, incoming: Incoming::new(), outgoing, is_known: false }
    }

    /// Begins the answering side: receives the edge on which the other side asks, one of those that this side serves. A
    /// peer of another version is told this side's.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Mismatch`] if the two cannot communicate.
    pub fn answer(socket: OwnedFd, served: &[Edge], deadline: Deadline<'a>) -> Result<Conversation<'a>, Error> {
        let mut incoming = Incoming::new();
        let preamble = until(&deadline, &socket, PollFlags::IN, || incoming.preamble(&socket))?;
        let own = Preamble { edge: preamble.edge, ..Preamble::of(Edge::ProgramOwner) };
        let mut outgoing = Outgoing::preamble(own);
        match preamble.check_asker(served) {
            Ok(edge) => Ok(Conversation { socket, edge, deadline, incoming, outgoing, is_known: true }),
            Err(mismatch) => {
                // Whether or not it arrives, the conversation is over.
                if matches!(mismatch, Mismatch::Version { .. }) {
                    let _ = outgoing.send(&socket, None);
                }
                Err(mismatch.into())
            }
        }
    }

    /// Returns the edge.
    pub fn edge(&self) -> Edge {
        self.edge
    }

    /// Returns the credentials of the other side.
    ///
    /// # Errors
    /// [`Error::System`]
    pub fn peer(&self) -> Result<Peer, Error> {
        Ok(Peer::of(&self.socket)?)
    }

    /// Replaces the deadline, for an answer that takes long.
    pub fn until<'b>(self, deadline: Deadline<'b>) -> Conversation<'b> {
        let Conversation { socket, edge, incoming, outgoing, is_known, .. } = self;
        Conversation { socket, edge, deadline, incoming, outgoing, is_known }
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Error`]; after [`Error::TooLong`] another message can be sent, after any other the conversation is over.
    pub fn send<M: Message>(&mut self, message: &M) -> Result<(), Error> {
        self.send_with(message, None)
    }

    /// Sends a message with a descriptor.
    ///
    /// # Errors
    /// The errors of [`Conversation::send`].
    pub fn send_with_fd<M: Message>(&mut self, message: &M, fd: BorrowedFd<'_>) -> Result<(), Error> {
        self.send_with(message, Some(fd))
    }

    fn send_with<M: Message>(&mut self, message: &M, fd: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        debug_assert_eq!(M::EDGE, self.edge);
        self.outgoing.add(message)?;
        let Conversation { socket, deadline, outgoing, .. } = self;
        until(deadline, socket, PollFlags::OUT, || Ok(outgoing.send(&*socket, fd)?.then_some(())))
    }

    /// Receives a message.
    ///
    /// # Errors
    /// [`Error`]; the conversation is over then.
    pub fn receive<M: Message>(&mut self) -> Result<M, Error> {
        self.meet()?;
        let Conversation { socket, deadline, incoming, .. } = self;
        until(deadline, socket, PollFlags::IN, || incoming.message(&*socket))
    }

    /// Receives a message, with the descriptor that was attached, if any.
    ///
    /// # Errors
    /// [`Error`]; the conversation is over then.
    pub fn receive_with_fd<M: Message>(&mut self) -> Result<(M, Option<OwnedFd>), Error> {
        self.meet()?;
        let Conversation { socket, deadline, incoming, .. } = self;
        until(deadline, socket, PollFlags::IN, || incoming.message_with_fd(&*socket))
    }

    /// Asks, and receives the answer.
    ///
    /// # Errors
    /// [`Error`]; the conversation is over then.
    pub fn ask<Q: Question>(&mut self, question: &Q) -> Result<Q::Answer, Error> {
        self.put(question)?;
        self.receive()
    }

    /// Asks, and receives the answer with the descriptor that was attached, if any.
    ///
    /// # Errors
    /// [`Error`]; the conversation is over then.
    pub fn ask_with_fd<Q: Question>(&mut self, question: &Q) -> Result<(Q::Answer, Option<OwnedFd>), Error> {
        self.put(question)?;
        self.receive_with_fd()
    }

    /// Sends a question. A peer that refuses it may have sent its answer and closed the connection before, so this is
    /// not an error.
    fn put<Q: Question>(&mut self, question: &Q) -> Result<(), Error> {
        self.send(question).or_else(|error| if error == Error::Closed { Ok(()) } else { Err(error) })
    }

    /// Receives the other side's version, once.
    fn meet(&mut self) -> Result<(), Error> {
        if !self.is_known {
            let Conversation { socket, deadline, incoming, edge, .. } = self;
            until(deadline, socket, PollFlags::IN, || incoming.preamble(&*socket))?.check_answerer(*edge)?;
            self.is_known = true;
        }
        Ok(())
    }
}

/// Repeats `attempt` whenever the socket is ready, until there is a result or the deadline has passed.
fn until<T>(
    deadline: &Deadline<'_>,
    socket: &OwnedFd,
    ready: PollFlags,
    mut attempt: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    loop {
        if let Some(result) = attempt()? {
            return Ok(result);
        }
        let count = deadline.spend(|left| {
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), ready)], Some(&timeout))
        })?;
        if count == 0 {
            return Err(Error::TimedOut);
        }
    }
}
