//! The open directory of a trace: its files are found below the descriptor, even if the path changes meanwhile.
//!
//! The path that a user names may lead through links. But another user may have put anything *into* the directory: a
//! trace's file must be a regular file in it, never a link to a file elsewhere, nor a FIFO, a socket or a device, which
//! would block the process that opens it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dormouse_directory::{DIR_FLAGS, no_file};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, fstat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::error::Error;

/// An open directory. All readers of traces share its reading functions.
#[derive(Debug)]
pub(crate) struct Dir(dormouse_directory::Dir);

impl std::ops::Deref for Dir {
    type Target = dormouse_directory::Dir;

    fn deref(&self) -> &dormouse_directory::Dir {
        &self.0
    }
}

/// Returns the error for a file of a trace that cannot be written.
pub(crate) fn not_written(path: &Path, error: &std::io::Error) -> Error {
    let remedy = match error.raw_os_error() {
        Some(libc::EFBIG) => "raise the limit of file sizes (ulimit -f)",
        _ => "free space or give another directory with -o",
    };
    format!("cannot write {}: {error}; {remedy}", path.display()).into()
}

/// Returns the error for a file of a trace that cannot be read.
pub(crate) fn not_read(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| format!("cannot read {}: {error}; check its owner and permissions", path.display()).into()
}

fn not_made(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| format!("cannot make the directory {}: {error}; give another one with -o", path.display()).into()
}

impl Dir {
    /// Opens a directory that a user has named, for reading.
    ///
    /// # Errors
    /// One line with the reason, also if the directory cannot contain a trace.
    pub(crate) fn open(path: &Path) -> Result<Dir, Error> {
        dormouse_directory::open_dir(path).map(Dir).map_err(|error| error.to_string().into())
    }

    /// Creates a directory that belongs to this user alone, regardless of the umask. An existing directory is accepted
    /// if it is empty and this user's.
    ///
    /// From then on only this user can change its contents, even if another user owns the parent directory.
    pub(crate) fn make(path: &Path) -> Result<Dir, Error> {
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).map_err(not_made(path))?;
        }
        let is_new = match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(not_made(path)(error.into())),
        };
        // A directory that was just made is not a link, unless another process has replaced it by one.
        let flags = if is_new { DIR_FLAGS | OFlags::NOFOLLOW } else { DIR_FLAGS };
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(|error| not_made(path)(error.into()))?;
        let dir = Dir((fd, path).into());
        let shown = path.display();
        if dir.owner().map_err(not_made(path))? != rustix::process::geteuid().as_raw() {
            let text = format!(
                "{shown} is another user's, who could change what is written there; give another directory with -o"
            );
            return Err(text.into());
        }
        if !dir.names().map_err(not_made(path))?.is_empty() {
            let text = format!("{shown} exists and is not empty; give another directory with -o, or remove it");
            return Err(text.into());
        }
        fchmod(dir.as_fd(), Mode::RWXU).map_err(|error| not_made(path)(error.into()))?;
        Ok(dir)
    }

    /// Returns the id of its owner.
    pub(crate) fn owner(&self) -> std::io::Result<u32> {
        Ok(fstat(self.as_fd())?.st_uid)
    }

    /// Creates a file, writes `bytes` and leaves it open for writing. Only this user can access it, regardless of the
    /// umask.
    pub(crate) fn create(&self, name: impl AsRef<OsStr>, bytes: &[u8]) -> Result<File, Error> {
        let name = name.as_ref();
        let failed = |error: std::io::Error| not_written(&self.path_of(name), &error);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = openat(self.as_fd(), name, flags, mode).map_err(|error| failed(error.into()))?;
        let mut file = File::from(fd);
        let made = fchmod(file.as_fd(), mode).map_err(Into::into).and_then(|()| file.write_all(bytes));
        made.map_err(failed).inspect_err(|_| self.remove(name))?;
        Ok(file)
    }

    /// Returns a directory that this process has inherited, and that was found at this path.
    pub(crate) fn inherited(fd: OwnedFd, path: &Path) -> Dir {
        Dir((fd, path).into())
    }

    /// Returns the descriptor, for a process that inherits it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    /// Opens a file that this user's session has made, to continue writing it. Follows no link.
    pub(crate) fn go_on(&self, name: &str) -> std::io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(self.as_fd(), name, flags, Mode::empty())?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(no_file()),
        }
    }

    /// Renames a file, and replaces an existing one.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        renameat(self.as_fd(), from, self.as_fd(), to).map_err(|error| not_written(&self.path_of(to), &error.into()))
    }

    /// Removes a file, if it exists.
    pub(crate) fn remove(&self, name: impl AsRef<OsStr>) {
        let _ = unlinkat(self.as_fd(), name.as_ref(), AtFlags::empty());
    }
}

/// Removes the file at a path if it is still the open one. Never removes another file, even if another user can change
/// directories on the way.
pub(crate) fn remove_opened(path: &Path, file: &File) -> std::io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(no_file()) };
    let parent = openat(CWD, parent, DIR_FLAGS, Mode::empty())?;
    let (stat, opened) = (rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?, file.metadata()?);
    if (stat.st_dev, stat.st_ino) != (opened.dev(), opened.ino()) {
        return Err(std::io::Error::other("it is another file by now"));
    }
    // A user that swaps the name at this moment can write to the file's directory, and could remove the other file
    // anyway.
    Ok(unlinkat(&parent, name, AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn created_files_are_private_to_this_user() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b");
        let dir = Dir::make(&path).unwrap();
        dir.create("file", b"x").unwrap();
        assert_eq!((mode(&path), mode(&path.join("file"))), (0o700, 0o600));
        // An existing empty directory that other users could write to.
        let open = place.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        Dir::make(&open).unwrap();
        assert_eq!(mode(&open), 0o700);
        assert!(Dir::make(&path).unwrap_err().to_string().contains("is not empty"));
    }

    #[test]
    fn files_are_created_in_the_open_directory_not_at_its_path() {
        let place = tempfile::tempdir().unwrap();
        let (path, moved, other) = (place.path().join("dir"), place.path().join("moved"), place.path().join("other"));
        let dir = Dir::make(&path).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        symlink(&other, &path).unwrap();
        dir.create("file", b"x").unwrap();
        dir.create("new", b"y").unwrap();
        dir.rename("new", "file").unwrap();
        assert_eq!(std::fs::read(moved.join("file")).unwrap(), b"y");
        assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
        // Nothing is written through a link, either.
        symlink(other.join("target"), moved.join("link")).unwrap();
        assert!(dir.create("link", b"x").is_err());
        assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
    }

    #[test]
    fn only_the_file_that_was_opened_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::write(&path, "1").unwrap();
        let file = File::open(&path).unwrap();
        std::fs::rename(&path, place.path().join("kept")).unwrap();
        std::fs::write(&path, "2").unwrap();
        assert!(remove_opened(&path, &file).is_err());
        std::fs::rename(place.path().join("kept"), &path).unwrap();
        remove_opened(&path, &file).unwrap();
        assert!(!path.exists());
    }
}
