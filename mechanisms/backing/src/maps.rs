//! The mappings of this or another process, from `/proc/PID/maps`. Names are arbitrary bytes.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Addresses of the mapping.
    pub range: Range<u64>,
    /// Access rights in the kernel's format, such as `rw-p`.
    pub access: [u8; 4],
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Inode of the file; zero for memory without a file.
    pub inode: u64,
    /// Path of the file, or a name such as `[heap]`; empty for memory without a name.
    pub name: Vec<u8>,
}

impl Map {
    /// Whether the process may write to it.
    pub fn is_writable(&self) -> bool {
        self.access[1] == b'w'
    }

    /// Whether other processes see what the process writes to it.
    pub fn is_shared(&self) -> bool {
        self.access[3] == b's'
    }

    /// Returns the file's path, as of the moment when the kernel was asked.
    pub fn path(&self) -> Option<PathBuf> {
        (self.inode != 0 && self.name.first() == Some(&b'/')).then(|| Path::new(OsStr::from_bytes(&self.name)).into())
    }
}

/// Reads all mappings of a process.
///
/// # Errors
/// Errors of the kernel: there is no such process, or it is another user's.
pub fn read(pid: u32) -> io::Result<Vec<Map>> {
    Ok(parse(&fs::read(format!("/proc/{pid}/maps"))?))
}

/// Returns the mappings in the text of `/proc/PID/maps`. Lines that do not parse are left out.
pub fn parse(text: &[u8]) -> Vec<Map> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// Parses a line: `7f12a000-7f12b000 rw-p 00001000 fe:00 1234                     /path with spaces`
fn parse_line(line: &[u8]) -> Option<Map> {
    let mut rest = line;
    let mut field = || {
        let start = rest.iter().position(|byte| *byte != b' ').unwrap_or(rest.len());
        let field = &rest[start..];
        let len = field.iter().position(|byte| *byte == b' ').unwrap_or(field.len());
        rest = &field[len..];
        &field[..len]
    };
    let [range, access, offset, _device, inode] = [(); 5].map(|()| field());
    let text = |bytes| str::from_utf8(bytes).ok();
    let hexadecimal = |bytes| u64::from_str_radix(text(bytes)?, 16).ok();
    let mut ends = range.splitn(2, |byte| *byte == b'-');
    let range = hexadecimal(ends.next()?)?..hexadecimal(ends.next()?)?;
    Some(Map {
        range,
        access: access.try_into().ok()?,
        offset: hexadecimal(offset)?,
        inode: text(inode)?.parse().ok()?,
        name: rest.trim_ascii_start().to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_any_name_are_parsed() {
        let line = b"7f12a000-7f12c000 rw-p 00001000 fe:00 1234                     /a b\xff (deleted)";
        let map = parse_line(line).unwrap();
        assert_eq!((map.range.clone(), map.offset, map.inode), (0x7f12_a000..0x7f12_c000, 0x1000, 1234));
        assert_eq!(map.name, b"/a b\xff (deleted)");
        assert!(map.is_writable() && !map.is_shared() && map.path().is_some());
        let map =
            parse_line(b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]").unwrap();
        assert_eq!((map.name.as_slice(), map.path()), (&b"[vsyscall]"[..], None));
        assert_eq!(parse_line(b"7f0-7f1 rw-s 0 00:01 5 /SYSV").unwrap().name, b"/SYSV");
        assert!(parse_line(b"7f0-7f1 rw-p 0 00:00 0 ").unwrap().name.is_empty());
        for odd in [&b""[..], b"7f0", b"7f0-7f1", b"x-y rw-p 0 0:0 0", b"0-1 rw 0 0:0 0"] {
            assert_eq!(parse_line(odd), None);
        }
    }

    #[test]
    fn this_process_has_mappings() {
        let maps = read(std::process::id()).unwrap();
        let local = 0_u8;
        let at = (&raw const local).addr() as u64;
        assert!(maps.iter().any(|map| map.range.contains(&at)));
        assert!(maps.is_sorted_by_key(|map| map.range.start));
    }
}
