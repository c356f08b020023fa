//! The sink of printed lines: standard output, or a pager.

use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dormouse_terminal::{Output, printable_lines, say};
use signal_hook::consts::SIGINT;

/// A sink of printed lines: standard output, or a pager.
pub(super) struct Sink<'o> {
    out: &'o mut Output,
    pager: Option<Pager>,
    /// Whether the lines contain no control sequences except intended colours.
    is_printable: bool,
}

struct Pager {
    /// Name of the pager, from the environment or `PAGER`.
    name: String,
    child: Child,
    input: ChildStdin,
    /// Whether the pager has stopped reading.
    is_left: bool,
    /// Text written so far; `None` once the pager has read something. If the pager fails before, this text is printed
    /// instead.
    unread: Option<Vec<u8>>,
    written_bytes: u64,
    /// Lines for standard error, held back until the pager has ended.
    said: Vec<String>,
    is_interrupted: Arc<AtomicBool>,
    /// Whether the pager has failed. An interrupt then ends this process.
    has_failed: Arc<AtomicBool>,
}

/// Default pager. With `LESS` it exits if everything fits on the screen, keeps colours, does not wrap lines, and
/// leaves them on the screen.
const PAGER: &str = "less";
/// Options for `less`, unless the environment has some in `LESS`.
const LESS: &str = "FRSX";

impl<'o> Sink<'o> {
    /// Starts a pager, if `is_paged` and one is available.
    pub(super) fn new(out: &'o mut Output, is_paged: bool, is_printable: bool) -> Sink<'o> {
        Sink { out, pager: if is_paged { Pager::start() } else { None }, is_printable }
    }

    /// Whether the reader of the lines is gone.
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
            // `Output` reports errors at the end.
            None if is_printable => drop(self.out.write_all(text)),
            None => drop(self.out.lines(text)),
        }
    }

    /// Flushes the lines written so far.
    pub(super) fn flush(&mut self) {
        // `Output` reports errors at the end.
        let _ = self.out.flush();
    }

    /// Prints a line on standard error, after the pager has ended if there is one.
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

    /// Waits until the pager has read something or has ended. If it has failed without reading anything, its text is
    /// printed.
    fn wait_for_pager(&mut self) {
        let Some(pager) = &mut self.pager else { return };
        let Some(status) = pager.failure() else { return };
        pager.has_failed.store(true, Ordering::Relaxed);
        let Some(Pager { name, unread, said, .. }) = self.pager.take() else { return };
        say(format_args!(
            "the pager `{name}` failed ({status}) before it read anything; its text follows. Set PAGER to another pager, or use --no-pager"
        ));
        // `Output` reports errors at the end.
        let _ = self.out.write_all(&unread.unwrap_or_default());
        said.iter().for_each(say);
    }
}

/// Time between two checks of a pager that has not read anything.
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
        // An interrupt reaches the pager too, because it shares the terminal. Here it only ends the reading of the
        // trace: this process must not exit before the pager.
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

    /// Writes text to the pager, unless it has stopped reading.
    fn write(&mut self, text: &[u8]) {
        if self.is_left {
            return;
        }
        // This is bounded by the capacity of the pipe until the pager reads something.
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

    /// Drops the unread text if the pager has read something.
    fn look(&mut self) {
        let in_pipe = rustix::io::ioctl_fionread(&self.input);
        if in_pipe.is_ok_and(|bytes| bytes < self.written_bytes) {
            self.unread = None;
        }
    }

    /// Waits until the pager has read something or has ended. Returns its exit status if it failed without reading
    /// anything.
    fn failure(&mut self) -> Option<ExitStatus> {
        loop {
            if self.unread.as_ref().is_none_or(Vec::is_empty) {
                return None;
            }
            // In this order: a pager that has ended cannot read between the two checks.
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
