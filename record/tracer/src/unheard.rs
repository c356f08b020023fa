//! How a program is counted that could not tell the session's owner of itself.
//!
//! One whose 50 ms are over before the session's socket takes it appends a byte to a file beside that socket; the owner counts the bytes. It waits
//! for nobody, and the kernel has appends of several processes follow one another.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use dormouse_abi::environment::UNHEARD_EXTENSION;
use rustix::process::{Resource, geteuid, getrlimit};

/// Has the owner of the session with this socket count this process. Where that cannot be done, it is not counted.
pub(crate) fn say(socket: &Path) {
    // No FIFO or device is waited for, and no link is followed.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().append(true).custom_flags(flags).open(socket.with_extension(UNHEARD_EXTENSION));
    let Ok(mut file) = file else { return };
    let Ok(metadata) = file.metadata() else { return };
    let is_ours = metadata.is_file() && [0, geteuid().as_raw()].contains(&metadata.uid());
    if is_ours && may_write_up_to(metadata.len() + OTHERS_MEANWHILE) {
        let _ = file.write(b".");
    }
}

/// Bytes by which other processes may have made the file longer since its length was looked at.
const OTHERS_MEANWHILE: u64 = 4096;

/// Whether the program may write to the file's byte before this one. Beyond its limit of file sizes it would be killed (SIGXFSZ).
pub(crate) fn may_write_up_to(end: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|limit| end <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_adds_a_byte_to_a_file_that_is_there_and_to_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("session-1-0.sock");
        let file = socket.with_extension(UNHEARD_EXTENSION);
        say(&socket);
        assert!(!file.exists(), "a file of a session that nobody owns is made");
        std::fs::write(&file, "").unwrap();
        (0..3).for_each(|_| say(&socket));
        assert_eq!(std::fs::read(&file).unwrap(), b"...");
        let elsewhere = place.path().join("elsewhere");
        std::fs::rename(&file, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        say(&socket);
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"...", "a link is followed");
        std::fs::remove_file(&file).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        say(&socket);
    }
}
