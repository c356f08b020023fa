//! Standard output of a command, with the handling of a closed or full standard output.
//!
//! A reader that has seen enough (`head`) closes its pipe. This is not an error: the rest of the output is dropped
//! silently, and the command does all of its work and exits with the same code. Any other failure, such as a full disk,
//! is an error of the command. It is reported at the end, after the rest of the work.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, StdoutLock, Write};

use anstream::AutoStream;
use anyhow::Context;
use dormouse_abi::text::printable;
use serde::Serialize;

/// Standard output, or a file in its place. Writes never fail; [`Output::finish`] returns the first error.
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
    /// Locks standard output.
    #[expect(clippy::new_without_default, reason = "it locks standard output, which the caller should see")]
    pub fn new() -> Output {
        let stream = Stream::Standard(std::io::stdout().lock());
        Output { stream, name: "standard output".into(), written_bytes: 0, error: None }
    }

    /// Returns an output to a file, which errors call `name`. It is unbuffered, so callers should write large pieces.
    pub fn to_file(file: File, name: String) -> Output {
        Output { stream: Stream::File(file), name, written_bytes: 0, error: None }
    }

    /// Returns the number of bytes that were written successfully.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Whether all further output will be dropped.
    pub fn is_over(&self) -> bool {
        self.error.is_some()
    }

    /// Returns a stream for coloured text. Colours are kept only on a terminal and without `NO_COLOR`.
    pub fn styled(&mut self) -> AutoStream<&mut (dyn Write + 'static)> {
        let choice = AutoStream::choice(&std::io::stdout());
        AutoStream::new(self, choice)
    }

    /// Prints text of a trace in whole lines. On a terminal, characters that move the cursor are replaced;
    /// elsewhere, the text is written unchanged.
    ///
    /// # Errors
    /// None; [`Output::finish`] returns them.
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
    /// Returns an error if the value has a map whose keys are not text.
    pub fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        Ok(writeln!(self, "{text}")?)
    }

    /// Records the result of other code that wrote to standard output.
    pub fn note(&mut self, result: std::io::Result<()>) {
        if let Err(error) = result {
            self.error.get_or_insert(error);
        }
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Returns an error if something could not be written, unless the reader closed the output.
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

/// Returns text of several lines in which all characters that move the cursor are replaced, except line ends.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Prints one or more lines on standard error. They can contain names that programs chose. Errors are ignored, because
/// there is no other place to report them.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "dormouse: {}", printable_lines(&line.to_string()));
}

/// Prints a report on standard error, because standard output belongs to the command that is run.
///
/// # Errors
/// Returns an error if the report could not be written, unless the reader closed standard error.
pub fn report(text: &str) -> anyhow::Result<()> {
    unless_closed(std::io::stderr().write_all(text.as_bytes())).context("cannot write to standard error")
}
