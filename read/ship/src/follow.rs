//! Waits until an entry of a directory appears or has been written: a session closes a trace by renaming its metadata
//! file, and LTTng rotates one by moving its directory.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use tokio::sync::mpsc::{Receiver, channel};

/// Size of the buffer for inotify events, in bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// The watched directories.
#[derive(Debug)]
pub(crate) struct Watched {
    inotify: Arc<OwnedFd>,
    dirs: HashMap<PathBuf, i32>,
    /// A message for all changes since the previous message was received.
    names: Receiver<Result<(), Errno>>,
}

impl Watched {
    /// Starts a thread that waits for changes. It runs until the program ends, or reading fails.
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
                    // The channel is full if a message has not been received yet. That one covers this change, too.
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

    /// Watches these directories in place of the previous ones. Returns whether some were not watched before: these
    /// must be searched again.
    pub(crate) fn watch(&mut self, dirs: Vec<PathBuf>) -> Result<bool> {
        let known = std::mem::take(&mut self.dirs);
        let mut is_new = false;
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR;
        for dir in dirs {
            // A directory that was removed and made again under its name gets another watch descriptor.
            let watch = match add_watch(&*self.inotify, &dir, flags) {
                Ok(watch) => watch,
                // The directory was removed meanwhile.
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                Err(Errno::NOSPC) => {
                    anyhow::bail!("too many directories to watch; raise /proc/sys/fs/inotify/max_user_watches")
                }
                Err(error) => return Err(error).with_context(|| format!("cannot watch {}", dir.display())),
            };
            is_new |= known.get(&dir) != Some(&watch);
            self.dirs.insert(dir, watch);
        }
        Ok(is_new)
    }

    /// Waits for a change in a watched directory.
    pub(crate) async fn changed(&mut self) -> Result<()> {
        self.names.recv().await.unwrap_or(Err(Errno::BADF)).context("cannot watch directories")
    }
}
