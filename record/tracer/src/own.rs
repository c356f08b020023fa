//! Information of a process about itself from files of proc(5), read by openat(2), read(2) and close(2). The loader
//! makes these calls too, so no filter of system calls (seccomp) kills for them.

use core::ffi::CStr;

use rustix::fd::IntoRawFd;
use rustix::fs::{CWD, Mode, OFlags};

/// Maximum size of a file that is read.
const SIZE_BYTES_MAX: usize = 1 << 20;

/// Returns the contents of a file; empty if it cannot be read. Does not use the standard library, which asks for the
/// file's size first.
pub(crate) fn read(path: &CStr) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Ok(file) = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return bytes;
    };
    let mut part = [0; 4096];
    while bytes.len() < SIZE_BYTES_MAX {
        match rustix::io::read(&file, &mut part) {
            Ok(count @ 1..) => bytes.extend_from_slice(&part[..count]),
            _ => break,
        }
    }
    // SAFETY: opened above and not used elsewhere. (Dropping it in a debug build would first check it with fcntl(2).)
    unsafe { rustix::io::close(file.into_raw_fd()) };
    bytes
}

/// Returns the arguments, separated by blanks.
pub(crate) fn command_line() -> Vec<u8> {
    let bytes = read(c"/proc/self/cmdline");
    let arguments: Vec<&[u8]> = bytes.split(|byte| *byte == 0).filter(|argument| !argument.is_empty()).collect();
    arguments.join(&b' ')
}

/// Returns the path of the executable under a filter: that of the lowest mapping, which is the executable's. Empty if
/// not known.
pub(crate) fn lowest_mapping() -> Vec<u8> {
    let maps = read(c"/proc/self/maps");
    let first = maps.split(|byte| *byte == b'\n').next().unwrap_or_default();
    first.iter().position(|byte| *byte == b'/').map_or_else(Vec::new, |at| first[at..].to_vec())
}

/// Returns the value of a field in the text of `/proc/self/status`.
fn field<'a>(status: &'a [u8], name: &str) -> Option<&'a [u8]> {
    status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":\t"))
}

/// Returns the process's id in its own namespace under a filter, from the text of `/proc/self/status`: the last of its
/// ids in nested namespaces.
pub(crate) fn pid_in(status: &[u8]) -> Option<u32> {
    let ids = field(status, "NStgid").or_else(|| field(status, "Tgid"))?;
    let last = ids.rsplit(|byte| *byte == b'\t').next()?;
    core::str::from_utf8(last).ok()?.parse().ok()
}

/// Returns the process's name in the text of `/proc/self/status`.
pub(crate) fn name_in(status: &[u8]) -> [u8; 16] {
    let mut name = [0; 16];
    let said = field(status, "Name").unwrap_or_default();
    name.iter_mut().zip(&said[..said.len().min(15)]).for_each(|(target, byte)| *target = *byte);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_ids_agree_with_the_system_calls() {
        let status = read(c"/proc/self/status");
        assert_eq!(pid_in(&status), Some(std::process::id()));
        assert_eq!(pid_in(b"Name:\tx\nNStgid:\t70\t7\nNSpid:\t70\t7\n"), Some(7));
        assert_eq!(pid_in(b"Name:\tx\n"), None);
        assert_eq!(&name_in(b"Name:\tshop\nUmask:\t0022\n")[..5], b"shop\0");
        assert_eq!(lowest_mapping(), std::env::current_exe().unwrap().into_os_string().into_encoded_bytes());
        let arguments: Vec<String> = std::env::args().filter(|argument| !argument.is_empty()).collect();
        assert_eq!(command_line(), arguments.join(" ").into_bytes());
        assert!(read(c"/nowhere").is_empty());
    }
}
