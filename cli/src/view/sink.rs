//! Where the lines go: to standard output, or to a pager.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_terminal::{Output, printable_lines, say};

/// Where the lines go.
pub(super) struct Sink<'o> {
    out: &'o mut Output,
    pager: Option<Pager>,
    /// Whether nothing in the lines moves a cursor, but for colours that are meant.
    is_printable: bool,
}

struct Pager {
    child: Child,
    input: Option<ChildStdin>,
    /// What standard error would have got in the middle of the pager's screen.
    said: Vec<String>,
    is_interrupted: Arc<AtomicBool>,
}

/// The pager of people who have named none. It ends by itself if all fits on the screen, keeps colours, does not wrap lines and leaves them on the screen.
const PAGER: &str = "less";
/// What `less` is told where nobody else does.
const LESS: &str = "FRSX";

impl<'o> Sink<'o> {
    /// Starts a pager, if one is wanted and there.
    pub(super) fn new(out: &'o mut Output, is_paged: bool, is_printable: bool) -> Sink<'o> {
        Sink { out, pager: if is_paged { Pager::start() } else { None }, is_printable }
    }

    /// Whether nobody reads any more.
    pub(super) fn is_over(&self) -> bool {
        match &self.pager {
            Some(pager) => pager.input.is_none() || pager.is_interrupted.load(Ordering::Relaxed),
            None => self.out.is_over(),
        }
    }

    /// Writes whole lines.
    pub(super) fn write(&mut self, text: &[u8]) {
        let is_printable = self.is_printable;
        match &mut self.pager {
            Some(pager) if is_printable => pager.write(text),
            Some(pager) => pager.write(printable_lines(&String::from_utf8_lossy(text)).as_bytes()),
            // `Output` keeps its errors for the end.
            None if is_printable => drop(self.out.write_all(text)),
            None => drop(self.out.lines(text)),
        }
    }

    /// Has what was written read now.
    pub(super) fn flush(&mut self) {
        // `Output` keeps its errors for the end.
        let _ = self.out.flush();
    }

    /// Says a line on standard error, or as soon as no pager is in its way.
    pub(super) fn say(&mut self, line: String) {
        match &mut self.pager {
            Some(pager) => pager.said.push(line),
            None => say(line),
        }
    }

    /// Waits until the pager has ended.
    pub(super) fn finish(self) {
        let Some(Pager { mut child, input, said, .. }) = self.pager else { return };
        drop(input);
        let _ = child.wait();
        said.iter().for_each(say);
    }
}

impl Pager {
    fn start() -> Option<Pager> {
        let named = std::env::var("PAGER").ok().map(|pager| pager.trim().to_owned());
        let mut command = match named.as_deref() {
            Some("" | "cat") => return None,
            Some(pager) => {
                let mut command = Command::new("sh");
                command.args(["-c", pager]);
                command
            }
            None => Command::new(PAGER),
        };
        if std::env::var_os("LESS").is_none() {
            command.env("LESS", LESS);
        }
        let mut child = command.stdin(Stdio::piped()).spawn().ok()?;
        let input = child.stdin.take();
        // An interrupt is for the pager, which shares the terminal: it ends the reading of the trace, and not this process before the pager.
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&is_interrupted));
        Some(Pager { child, input, said: Vec::new(), is_interrupted })
    }

    /// A pager that has been left reads no more.
    fn write(&mut self, text: &[u8]) {
        if let Some(input) = &mut self.input
            && input.write_all(text).is_err()
        {
            self.input = None;
        }
    }
}
