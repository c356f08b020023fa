//! What a command prints: the one place that knows what a closed or a full standard output means.
//!
//! A reader that has seen enough (`head`) closes its pipe. That is no error: what is left is not printed, nothing is said, the command does all that
//! it would have done, and exits with the same code. Any other failure, such as a full disk, is an error of the command. It is told at the end, when
//! the rest is done.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, StdoutLock, Write};

use anstream::AutoStream;
use anyhow::Context;
use dormouse_abi::text::printable;
use serde::Serialize;

/// Standard output, or a file in its place. Writing to it never fails; [`Output::finish`] tells whether it has.
pub struct Output {
    stream: Stream,
    name: String,
    written_bytes: u64,
    error: Option<std::io::Error>,
}

enum Stream {
    Standard(StdoutLock<'static>),
    File(File),
}

impl Stream {
    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Standard(stream) => stream.write_all(bytes),
            Stream::File(file) => file.write_all(bytes),
        }
    }
}

impl Output {
    /// Locks it.
    #[expect(clippy::new_without_default, reason = "it locks standard output: that is to be seen where it is done")]
    pub fn new() -> Output {
        let stream = Stream::Standard(std::io::stdout().lock());
        Output { stream, name: "standard output".into(), written_bytes: 0, error: None }
    }

    /// The same for a file, which errors call by this name. It is not buffered: what is written should be chunks.
    pub fn to_file(file: File, name: String) -> Output {
        Output { stream: Stream::File(file), name, written_bytes: 0, error: None }
    }

    /// Bytes that have arrived.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Whether nothing that is written arrives any more.
    pub fn is_over(&self) -> bool {
        self.error.is_some()
    }

    /// For text with colour, which arrives on a terminal and without `NO_COLOR` alone.
    pub fn styled(&mut self) -> AutoStream<&mut (dyn Write + 'static)> {
        let choice = AutoStream::choice(&std::io::stdout());
        AutoStream::new(self, choice)
    }

    /// Prints text of a trace, in whole lines. On a terminal nothing in it moves the cursor; elsewhere it arrives as it is.
    ///
    /// # Errors
    /// None; [`Output::finish`] tells them.
    pub fn lines(&mut self, text: &[u8]) -> std::io::Result<()> {
        let is_terminal = match &self.stream {
            Stream::Standard(stream) => stream.is_terminal(),
            Stream::File(file) => file.is_terminal(),
        };
        if is_terminal {
            self.write_all(printable_lines(&String::from_utf8_lossy(text)).as_bytes())
        } else {
            self.write_all(text)
        }
    }

    /// Prints a value as JSON.
    ///
    /// # Errors
    /// It has a map whose keys are no text.
    pub fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        Ok(writeln!(self, "{text}")?)
    }

    /// Whatever else has written to standard output came to this.
    pub fn note(&mut self, result: std::io::Result<()>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }

    /// # Errors
    /// When something could not be written although somebody reads.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.flush()?;
        let Output { name, error, .. } = self;
        unless_closed(error.map_or(Ok(()), Err)).with_context(|| format!("cannot write to {name}"))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if !self.is_over() {
            let result = self.stream.write_all(bytes);
            self.written_bytes += if result.is_ok() { bytes.len() as u64 } else { 0 };
            self.note(result);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if let Stream::Standard(stream) = &mut self.stream {
            let result = stream.flush();
            self.note(result);
        }
        Ok(())
    }
}

fn unless_closed(result: std::io::Result<()>) -> std::io::Result<()> {
    result.or_else(|error| if error.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

/// Text of several lines, in which nothing moves the cursor but the ends of lines.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Prints a line on standard error, or several. Programs may have chosen names in it. Where that fails, there is no other place to report it.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "dormouse: {}", printable_lines(&line.to_string()));
}

/// Prints a report on standard error, because standard output belongs to the command that is run.
///
/// # Errors
/// When it could not be written although somebody reads.
pub fn report(text: &str) -> anyhow::Result<()> {
    unless_closed(std::io::stderr().write_all(text.as_bytes())).context("cannot write to standard error")
}
