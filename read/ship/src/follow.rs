//! Waits until a name has come into a directory: a trace is closed by its metadata getting their name, and rotated by its directory getting its place.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use tokio::sync::mpsc::{Receiver, channel};

/// Events that are read at a time, in bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// Directories that are watched.
#[derive(Debug)]
pub(crate) struct Watched {
    inotify: Arc<OwnedFd>,
    dirs: HashMap<PathBuf, i32>,
    /// One for all names that have come since it was taken before.
    names: Receiver<Result<(), Errno>>,
}

impl Watched {
    /// Begins a thread that waits for names. It ends with the program.
    pub(crate) fn new() -> Result<Watched> {
        let inotify = Arc::new(init(CreateFlags::CLOEXEC).context("cannot watch directories")?);
        let (told, names) = channel(1);
        let waited = Arc::clone(&inotify);
        std::thread::spawn(move || {
            let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
            let mut reader = Reader::new(&*waited, &mut buffer);
            loop {
                match reader.next() {
                    Err(Errno::INTR) => {}
                    // It is full if somebody has been told, and has not looked yet.
                    Ok(_) => drop(told.try_send(Ok(()))),
                    Err(error) => {
                        let _ = told.blocking_send(Err(error));
                        return;
                    }
                }
            }
        });
        Ok(Watched { inotify, dirs: HashMap::new(), names })
    }

    /// Watches these directories; whether some of them were not watched before, so that what is in them has to be looked for again.
    pub(crate) fn watch(&mut self, dirs: Vec<PathBuf>) -> Result<bool> {
        let known = std::mem::take(&mut self.dirs);
        let mut is_new = false;
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR;
        for dir in dirs {
            // One of a name is another if it was made anew; the kernel knows.
            let watch = match add_watch(&*self.inotify, &dir, flags) {
                Ok(watch) => watch,
                // It is gone by now.
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                Err(Errno::NOSPC) => {
                    anyhow::bail!("more directories than may be watched: /proc/sys/fs/inotify/max_user_watches")
                }
                Err(error) => return Err(error).with_context(|| format!("cannot watch {}", dir.display())),
            };
            is_new |= known.get(&dir) != Some(&watch);
            self.dirs.insert(dir, watch);
        }
        Ok(is_new)
    }

    /// Waits for a name.
    pub(crate) async fn changed(&mut self) -> Result<()> {
        self.names.recv().await.unwrap_or(Err(Errno::BADF)).context("cannot watch directories")
    }
}
