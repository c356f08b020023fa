//! A trace's directory, open: its files are found below the descriptor, whatever happens to its path meanwhile.
//!
//! The path that a user names may lead through links. What is *in* the directory may be somebody else's doing: a file of a trace is a regular
//! file that lies there, never a link to one elsewhere, nor a FIFO, a socket or a device, which would keep whoever opens it waiting.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, openat};
use rustix::io::Errno;

/// A directory that is open.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    /// By which it was found, for messages.
    pub path: PathBuf,
}

/// As which it is opened.
pub const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The error of a name at which there is something that is no file of a trace.
pub fn no_file() -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")
}

impl From<(OwnedFd, &Path)> for Dir {
    /// The directory that is open, by which it was found at this path.
    fn from((fd, path): (OwnedFd, &Path)) -> Dir {
        Dir { fd, path: path.into() }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    /// Opens one that a user has named, for reading.
    pub fn open(path: &Path) -> std::io::Result<Dir> {
        Ok(Dir { fd: openat(CWD, path, DIR_FLAGS, Mode::empty())?, path: path.into() })
    }

    /// The path of a file in it, for messages.
    pub fn path_of(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// Names of what is in it, sorted.
    pub fn names(&self) -> std::io::Result<Vec<OsString>> {
        // A descriptor of its own, because reading moves its position.
        let fd = openat(&self.fd, c".", DIR_FLAGS, Mode::empty())?;
        let mut buffer = Vec::with_capacity(16 << 10);
        let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Opens a file to read it. Never waits, and follows no link.
    pub fn read(&self, name: impl AsRef<OsStr>) -> std::io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name.as_ref(), flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            // What open(2) says of a link that is not to be followed, and of a socket or a device without a driver.
            Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Err(no_file()),
            Err(error) => return Err(error.into()),
        };
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(no_file()),
        }
    }

    /// All of a file that is not longer than `len_max`.
    pub fn read_all(&self, name: &str, len_max: u64) -> std::io::Result<Vec<u8>> {
        let too_long =
            || Err(std::io::Error::new(ErrorKind::InvalidData, format!("it is longer than {len_max} bytes")));
        let file = self.read(name)?;
        if file.metadata()?.len() > len_max {
            return too_long();
        }
        let mut bytes = Vec::new();
        // It can have grown meanwhile.
        file.take(len_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= len_max { Ok(bytes) } else { too_long() }
    }

    /// Whether there is a directory of this name, which is no file of a trace, and does not pretend to be one.
    pub fn has_dir(&self, name: &OsStr) -> bool {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
    }

    /// Opens a directory in it, for reading; no link.
    pub fn open_below(&self, name: &OsStr) -> std::io::Result<Dir> {
        let fd = openat(&self.fd, name, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Dir { fd, path: self.path_of(name) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{FileType, mknodat};

    use super::*;

    #[test]
    fn only_files_are_opened() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        symlink("file", at("link")).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let dir = Dir::open(place.path()).unwrap();
        assert_eq!(dir.read_all("file", 4).unwrap(), b"text");
        assert_eq!(dir.read_all("file", 3).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(dir.read("none").unwrap_err().kind(), ErrorKind::NotFound);
        for name in ["link", "dir", "fifo", "socket"] {
            assert_eq!(dir.read(name).unwrap_err().to_string(), "it is not a regular file", "{name}");
        }
        assert!(dir.has_dir(OsStr::new("dir")) && !dir.has_dir(OsStr::new("link")));
        assert_eq!(dir.names().unwrap(), ["dir", "fifo", "file", "link", "socket"]);
        // The directory that a user names may be a link.
        symlink(".", at("here")).unwrap();
        assert_eq!(Dir::open(&at("here")).unwrap().read_all("file", 4).unwrap(), b"text");
    }
}
