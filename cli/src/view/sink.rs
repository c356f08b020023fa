//! Where the lines go: to standard output, or to a pager.

use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dormouse_terminal::{Output, printable_lines, say};
use signal_hook::consts::SIGINT;

/// Where the lines go.
pub(super) struct Sink<'o> {
    out: &'o mut Output,
    pager: Option<Pager>,
    /// Whether nothing in the lines moves a cursor, but for colours that are meant.
    is_printable: bool,
}

struct Pager {
    /// As the environment names it.
    name: String,
    child: Child,
    input: ChildStdin,
    /// Whether it reads no more.
    is_left: bool,
    /// All that was written, until it has read something: should it fail before, this is printed in its place.
    unread: Option<Vec<u8>>,
    written_bytes: u64,
    /// What standard error would have got in the middle of the pager's screen.
    said: Vec<String>,
    is_interrupted: Arc<AtomicBool>,
    /// Whether it has failed, so that an interrupt is for this process.
    has_failed: Arc<AtomicBool>,
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
            Some(pager) => pager.is_left || pager.is_interrupted.load(Ordering::Relaxed),
            None => self.out.is_over(),
        }
    }

    /// Writes whole lines.
    pub(super) fn write(&mut self, text: &[u8]) {
        let is_printable = self.is_printable;
        match &mut self.pager {
            Some(pager) => {
                match is_printable {
                    true => pager.write(text),
                    false => pager.write(printable_lines(&String::from_utf8_lossy(text)).as_bytes()),
                }
                if pager.is_left && pager.unread.is_some() {
                    self.wait_for_pager();
                }
            }
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
    pub(super) fn finish(mut self) {
        self.wait_for_pager();
        let Some(Pager { mut child, input, said, .. }) = self.pager else { return };
        drop(input);
        let _ = child.wait();
        said.iter().for_each(say);
    }

    /// Waits until the pager has read something, or has ended without. If it has failed then, what it was to show is printed.
    fn wait_for_pager(&mut self) {
        let Some(pager) = &mut self.pager else { return };
        let Some(status) = pager.failure() else { return };
        pager.has_failed.store(true, Ordering::Relaxed);
        let Some(Pager { name, unread, said, .. }) = self.pager.take() else { return };
        say(format_args!(
            "the pager `{name}` has failed ({status}) and has read nothing; here is its text. PAGER names another one, --no-pager has none"
        ));
        // `Output` keeps its errors for the end.
        let _ = self.out.write_all(&unread.unwrap_or_default());
        said.iter().for_each(say);
    }
}

/// Between two looks at a pager that has not read anything.
const LOOK: Duration = Duration::from_millis(5);

impl Pager {
    fn start() -> Option<Pager> {
        let named = std::env::var_os("PAGER");
        let mut command = match &named {
            Some(pager) if matches!(pager.as_bytes().trim_ascii(), b"" | b"cat") => return None,
            Some(pager) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(pager);
                command
            }
            None => Command::new(PAGER),
        };
        if std::env::var_os("LESS").is_none() {
            command.env("LESS", LESS);
        }
        let mut child = command.stdin(Stdio::piped()).spawn().ok()?;
        let input = child.stdin.take()?;
        // An interrupt is for the pager, which shares the terminal: it ends the reading of the trace, and not this process before the pager.
        let [is_interrupted, has_failed] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let _ = signal_hook::flag::register_conditional_default(SIGINT, Arc::clone(&has_failed));
        let _ = signal_hook::flag::register(SIGINT, Arc::clone(&is_interrupted));
        let name = named.map_or(PAGER.into(), |pager| pager.to_string_lossy().into_owned());
        Some(Pager {
            name,
            child,
            input,
            is_left: false,
            unread: Some(Vec::new()),
            written_bytes: 0,
            said: Vec::new(),
            is_interrupted,
            has_failed,
        })
    }

    /// A pager that has been left reads no more.
    fn write(&mut self, text: &[u8]) {
        if self.is_left {
            return;
        }
        // A pipe takes no more than it has room for, so until something is read this is little.
        self.unread.iter_mut().for_each(|unread| unread.extend_from_slice(text));
        let mut rest = text;
        while !rest.is_empty() && !self.is_left {
            match self.input.write(rest) {
                Ok(count) => {
                    self.written_bytes += count as u64;
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_left = true,
            }
        }
        self.look();
    }

    /// Sees whether it has read something.
    fn look(&mut self) {
        let in_pipe = rustix::io::ioctl_fionread(&self.input);
        if in_pipe.is_ok_and(|bytes| bytes < self.written_bytes) {
            self.unread = None;
        }
    }

    /// Waits until it has read something of what there is, or has ended; gives how, if that is a failure and it has read nothing.
    fn failure(&mut self) -> Option<ExitStatus> {
        loop {
            if self.unread.as_ref().is_none_or(Vec::is_empty) {
                return None;
            }
            // In this order: what has ended reads no more.
            let ended = self.child.try_wait();
            self.look();
            match ended {
                Ok(Some(status)) => return self.unread.as_ref().and((!status.success()).then_some(status)),
                Ok(None) => std::thread::sleep(LOOK),
                Err(_) => return None,
            }
        }
    }
}
