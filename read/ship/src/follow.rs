//! Waits until a name has come into a directory: a trace is closed by its metadata getting their name, and rotated by its directory getting its place.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Events that are read at a time, in bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// Directories that are watched.
#[derive(Debug)]
pub(crate) struct Watched {
    inotify: AsyncFd<OwnedFd>,
    dirs: HashMap<PathBuf, i32>,
}

impl Watched {
    /// Within a runtime.
    pub(crate) fn new() -> Result<Watched> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).context("cannot watch directories")?;
        let inotify = AsyncFd::register(inotify).context("cannot watch directories")?;
        Ok(Watched { inotify, dirs: HashMap::new() })
    }

    /// Watches these directories; whether some of them were not watched before, so that what is in them has to be looked for again.
    pub(crate) fn watch(&mut self, dirs: Vec<PathBuf>) -> Result<bool> {
        let known = std::mem::take(&mut self.dirs);
        let mut is_new = false;
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE | WatchFlags::ONLYDIR;
        for dir in dirs {
            // One of a name is another if it was made anew; the kernel knows.
            let watch = match add_watch(&self.inotify, &dir, flags) {
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

    /// Waits for a name, and takes all that have come.
    pub(crate) async fn changed(&mut self) -> Result<()> {
        loop {
            let mut ready = self.inotify.readable().await?;
            let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
            let mut reader = Reader::new(&self.inotify, &mut buffer);
            let mut is_any = false;
            loop {
                match reader.next() {
                    Ok(_) => is_any = true,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error).context("cannot watch directories"),
                }
            }
            ready.clear_ready();
            if is_any {
                return Ok(());
            }
        }
    }
}
