//! Count of programs that could not contact the session's owner in time.
//!
//! A program whose 50 ms are over before the session's socket accepts it appends a byte to a file beside that socket;
//! the owner counts the bytes. The write does not wait, and the kernel serialises appends of several processes.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use dormouse_abi::environment::UNHEARD_EXTENSION;
use rustix::process::{Resource, geteuid, getrlimit};

/// Adds this process to the count of the session with this socket. If that fails, the process is not counted.
pub(crate) fn say(socket: &Path) {
    // Does not wait for a FIFO or device, and does not follow a link.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().append(true).custom_flags(flags).open(socket.with_extension(UNHEARD_EXTENSION));
    let Ok(mut file) = file else { return };
    let Ok(metadata) = file.metadata() else { return };
    let is_ours = metadata.is_file() && [0, geteuid().as_raw()].contains(&metadata.uid());
    if is_ours && may_write_up_to(metadata.len() + OTHERS_MEANWHILE) {
        let _ = file.write(b".");
    }
}

/// Allowance, in bytes, for appends by other processes after the length was read.
const OTHERS_MEANWHILE: u64 = 4096;

/// Whether the program may write to the file up to byte `end`. Beyond its limit of file sizes it would be killed
/// (SIGXFSZ).
pub(crate) fn may_write_up_to(end: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|limit| end <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_appends_a_byte_only_to_an_existing_file() {
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
