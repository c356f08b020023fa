//! The open directory of a trace. Its files are opened relative to the descriptor, whatever happens to its path
//! meanwhile.
//!
//! The path that a user names may contain links. The *contents* of the directory are not trusted: a file of a trace is
//! a regular file in the directory, never a link to a file elsewhere, nor a FIFO, a socket or a device, on which
//! opening would block.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, openat};
use rustix::io::Errno;

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    /// Path by which it was opened, for messages.
    pub path: PathBuf,
}

/// Flags with which a directory is opened.
pub const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Returns the error for a name that is not a regular file.
pub fn no_file() -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")
}

impl From<(OwnedFd, &Path)> for Dir {
    /// Wraps an open directory. `path`: the path by which it was opened.
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
    /// Opens a directory that a user has named, for reading.
    pub fn open(path: &Path) -> std::io::Result<Dir> {
        Ok(Dir { fd: openat(CWD, path, DIR_FLAGS, Mode::empty())?, path: path.into() })
    }

    /// Returns the path of a file in it, for messages.
    pub fn path_of(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// Returns the names of its entries, sorted.
    pub fn names(&self) -> std::io::Result<Vec<OsString>> {
        // A separate descriptor, because reading moves its position.
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

    /// Opens a file for reading, without blocking and without following links.
    pub fn read(&self, name: impl AsRef<OsStr>) -> std::io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, name.as_ref(), flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            // Errors of open(2) for a link that must not be followed, and for a socket or a device without a driver.
            Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Err(no_file()),
            Err(error) => return Err(error.into()),
        };
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(no_file()),
        }
    }

    /// Returns the contents of a file that is not longer than `len_max`.
    pub fn read_all(&self, name: &str, len_max: u64) -> std::io::Result<Vec<u8>> {
        let too_long =
            || Err(std::io::Error::new(ErrorKind::InvalidData, format!("it is longer than {len_max} bytes")));
        let file = self.read(name)?;
        if file.metadata()?.len() > len_max {
            return too_long();
        }
        let mut bytes = Vec::new();
        // The file can have grown meanwhile.
        file.take(len_max + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= len_max { Ok(bytes) } else { too_long() }
    }

    /// Whether there is a directory of this name. A directory is not a file of a trace, and is not reported as one.
    pub fn has_dir(&self, name: &OsStr) -> bool {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir())
    }

    /// Opens a directory in it for reading; a link is an error.
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
