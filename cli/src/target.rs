//! Targets of a command's output: a file that gets its name only when it is complete, standard output, or a device.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail};
use dormouse_terminal::Output;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;
use tempfile::NamedTempFile;

/// A target of output.
pub(crate) enum Target<'o> {
    /// Standard output.
    Stream(&'o mut Output),
    /// A file that is not a regular file.
    Device(Output),
    /// A file that gets its name when everything is written. Its mode is that of traces, 0600.
    File(Output, Partial, PathBuf),
}

/// A temporary file beside its final path. Signals that end the program remove it.
pub(crate) struct Partial {
    // Declared first, so that the file is removed while signals are still watched.
    file: NamedTempFile,
    watched: Watched,
}

impl Partial {
    fn new(path: &Path) -> std::io::Result<Partial> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let watch = Watch::new()?;
        let file = tempfile::Builder::new().prefix(&partial_prefix(path)).tempfile_in(dir)?;
        let watched = watch.over(file.path())?;
        Ok(Partial { file, watched })
    }
}

/// Maximum number of bytes of the final name in a temporary name, so that the whole name fits into 255 bytes.
const PARTIAL_NAME_BYTES_MAX: usize = 200;

/// Returns the prefix of the temporary name of `path`.
pub(crate) fn partial_prefix(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fitting = name.char_indices().take_while(|(at, c)| at + c.len_utf8() <= PARTIAL_NAME_BYTES_MAX);
    let begin: String = fitting.map(|(_, c)| c).collect();
    format!(".{begin}.partial-")
}

/// Signals that end the program. They are held back from here on, so that a file that is created next is removed even
/// if a signal arrives immediately.
pub(crate) struct Watch(Signals);

/// A file or directory that signals remove, until this is dropped.
pub(crate) struct Watched {
    handle: Handle,
    is_making: Arc<Mutex<()>>,
}

impl Watched {
    /// Returns a lock: while it is held, a signal does not remove anything. A signal that has taken it ends the
    /// program.
    pub(crate) fn making(&self) -> MutexGuard<'_, ()> {
        self.is_making.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.handle.close();
    }
}

impl Watch {
    pub(crate) fn new() -> std::io::Result<Watch> {
        Signals::new([SIGINT, SIGTERM]).map(Watch)
    }

    /// Has the signals remove a file or a directory before they end the program.
    pub(crate) fn over(mut self, path: &Path) -> std::io::Result<Watched> {
        let (handle, path) = (self.0.handle(), path.to_owned());
        let is_making = Arc::new(Mutex::new(()));
        let watched = Watched { handle, is_making: Arc::clone(&is_making) };
        std::thread::Builder::new().spawn(move || {
            for signal in self.0.forever() {
                let _until_the_end = is_making.lock();
                // The signal ends the program even if the removal fails.
                let _ = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
                let _ = emulate_default_handler(signal);
            }
        })?;
        Ok(watched)
    }
}

impl<'o> Target<'o> {
    /// # Errors
    /// `path` cannot be written, or output that is not text would go to a terminal.
    pub(crate) fn open(path: &Path, is_text: bool, out: &'o mut Output) -> anyhow::Result<Target<'o>> {
        if path == Path::new("-") {
            if !is_text && std::io::stdout().is_terminal() {
                bail!("binary data is not written to a terminal; name a file with -o, or use a pipe");
            }
            return Ok(Target::Stream(out));
        }
        let name = path.display().to_string();
        let failed = || format!("cannot write to {name}");
        if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            let file = OpenOptions::new().write(true).open(path).with_context(failed)?;
            return Ok(Target::Device(Output::to_file(file, name)));
        }
        // A symbolic link is kept: the file that it names is replaced.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let partial = Partial::new(&path).with_context(failed)?;
        let stream: File = partial.file.as_file().try_clone().with_context(failed)?;
        Ok(Target::File(Output::to_file(stream, name), partial, path))
    }

    /// Returns the output to write to. It is not buffered.
    pub(crate) fn output(&mut self) -> &mut Output {
        match self {
            Target::Stream(out) => out,
            Target::Device(out) | Target::File(out, ..) => out,
        }
    }

    /// Completes the output. Returns the number of bytes written.
    ///
    /// # Errors
    /// Something could not be written. A file that existed before is then unchanged.
    pub(crate) fn finish(self) -> anyhow::Result<u64> {
        match self {
            // The owner of this output finishes it.
            Target::Stream(out) => Ok(out.written_bytes()),
            Target::Device(out) => {
                let written_bytes = out.written_bytes();
                out.finish().map(|()| written_bytes)
            }
            Target::File(out, partial, path) => {
                let written_bytes = out.written_bytes();
                out.finish()?;
                let _making = partial.watched.making();
                let kept = std::fs::rename(partial.file.path(), &path);
                kept.with_context(|| format!("cannot write to {}", path.display()))?;
                Ok(written_bytes)
            }
        }
    }
}
