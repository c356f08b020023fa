//! A conversation with a tool.

use std::os::fd::OwnedFd;
use std::time::Duration;

use dormouse_abi::message::{Edge, ProgramToTool, ToolToProgram};
use dormouse_transport::{Clock, Conversation, Deadline, Error, Peer};

/// Maximum time for a tool to send its question.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Function that returns the answer to a question, and to the descriptor that was sent with it.
pub type Answer<'a> = &'a dyn Fn(ToolToProgram, Option<OwnedFd>) -> ProgramToTool;

/// Answers a tool, within twice [`PATIENCE`] by the clock, not counting the time that the answer takes.
///
/// # Errors
/// [`Error`]; the conversation is over.
pub fn converse(stream: OwnedFd, clock: &dyn Clock, answer: Answer<'_>) -> Result<(), Error> {
    let is_allowed = Peer::of(&stream)?.is_own_user_or_root();
    let deadline = Deadline::by(clock, PATIENCE);
    if !is_allowed {
        let text = "only the program's own user may talk to it".into();
        return Conversation::begin(stream, Edge::ToolProgram, deadline).send(&ProgramToTool::Error { text });
    }
    let mut conversation = Conversation::answer(stream, &[Edge::ToolProgram], deadline)?;
    // The memory of a session to join is sent as a descriptor.
    let answer = match conversation.receive_with_fd() {
        Ok((question, memory)) => answer(question, memory),
        Err(Error::Malformed(malformed)) => ProgramToTool::Error { text: malformed.to_string() },
        Err(error) => return Err(error),
    };
    // The time for the answer is not charged to the tool.
    let mut conversation = conversation.until(Deadline::by(clock, PATIENCE));
    match conversation.send(&answer) {
        Err(error @ Error::TooLong) => conversation.send(&ProgramToTool::Error { text: error.to_string() }),
        sent => sent,
    }
}
