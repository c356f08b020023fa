//! Programs that the session's owner has not heard of: their time to connect was over before its socket accepted them.

use std::os::fd::OwnedFd;
use std::path::Path;

use dormouse_abi::environment::UNHEARD_EXTENSION;
use rustix::fs::{FileType, Mode, OFlags};

use crate::directory::SocketDirectory;

/// The file beside a session's socket to which each program that could not connect in time appends a byte.
#[derive(Debug)]
pub struct UnheardFile(Option<OwnedFd>);

impl UnheardFile {
    /// Opens the file beside the socket with this name, of a new or an existing session. If that fails, none is
    /// counted.
    pub(crate) fn beside(directory: &SocketDirectory, socket: &str, is_new: bool) -> UnheardFile {
        let fresh = if is_new { OFlags::CREATE | OFlags::TRUNC } else { OFlags::empty() };
        let flags = fresh | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let name = Path::new(socket).with_extension(UNHEARD_EXTENSION);
        UnheardFile(directory.open_file(&name, flags, Mode::RUSR | Mode::WUSR).ok())
    }

    /// Returns how many programs have appended a byte so far.
    pub fn count(&self) -> u64 {
        let stat = self.0.as_ref().and_then(|fd| rustix::fs::fstat(fd).ok());
        let file = stat.filter(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        file.map_or(0, |stat| stat.st_size as u64)
    }
}
