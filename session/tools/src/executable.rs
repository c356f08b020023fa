//! Information about a program from its file: the first bytes, the ELF headers and the names of the sections.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use dormouse_abi::site::EVENTS_SECTION;
use rustix::fs::StatVfsMountFlags;
use serde::{Deserialize, Serialize};

use crate::elf::{self, Elf, Section};

/// The section in which Go's linker describes its build.
const GO_SECTION: &[u8] = b".go.buildinfo";
/// Names that a program requests from the loader if it needs the runtime of a sanitizer with an allocator of its own:
/// the compilers' libraries, and the functions that compiled code calls.
const SANITIZERS: [(&[u8], &str); 8] = [
    (b"libasan.so", "AddressSanitizer"),
    (b"__asan_init\0", "AddressSanitizer"),
    (b"liblsan.so", "LeakSanitizer"),
    (b"__lsan_init\0", "LeakSanitizer"),
    (b"libtsan.so", "ThreadSanitizer"),
    (b"__tsan_init\0", "ThreadSanitizer"),
    (b"libhwasan.so", "HWAddressSanitizer"),
    (b"__hwasan_init\0", "HWAddressSanitizer"),
];

/// Kind of program, as far as it decides whether a preloaded library can be in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Has a dynamic loader that is not musl's.
    Dynamic,
    /// Has the runtime of the named sanitizer.
    Sanitized(&'static str),
    /// Has musl's loader.
    Musl,
    /// Has no loader.
    Static,
    /// Is of the named other architecture.
    Foreign(String),
}

/// Information about a program from its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Executable {
    pub(crate) kind: Kind,
    /// Whether it contains a tracer or tracepoints.
    pub(crate) has_events: bool,
    /// Whether it is a program in Go.
    pub(crate) is_go: bool,
}

/// Privileges that a program's file gives it and that the calling user does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Privileges {
    /// The privileges of this user (set-user-ID).
    OfUser(u32),
    /// The privileges of this group (set-group-ID).
    OfGroup(u32),
    /// Capabilities.
    Capabilities,
}

/// A command's file; for a script, that of its interpreter.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) path: PathBuf,
    /// The script that it runs, if any.
    pub(crate) script: Option<PathBuf>,
    pub(crate) executable: Executable,
    /// Privileges that the system runs it with and that the calling user does not have.
    pub(crate) privileges: Option<Privileges>,
}

impl Command {
    /// Finds what `execvp` would run. `None` if there is nothing, or it may not be inspected.
    pub(crate) fn find(program: &OsStr) -> Option<Command> {
        let shown = Path::new(program);
        let mut path = if shown.components().count() > 1 || shown.is_absolute() {
            shown.to_owned()
        } else {
            std::env::split_paths(&std::env::var_os("PATH")?)
                .map(|dir| dir.join(program))
                .find(|path| path.is_file())?
        };
        let mut script = None;
        // An interpreter may be a script itself, up to four levels deep (execve(2)).
        for _ in 0..5 {
            // FIFOs and devices are never opened: only regular files can be run.
            let file = path.is_file().then(|| File::open(&path).ok())??;
            match interpreter(&file) {
                Some(next) => script = Some(script.unwrap_or(std::mem::replace(&mut path, next))),
                None => {
                    let (executable, privileges) = (Executable::of(&file)?, privileges(&file));
                    return Some(Command { path, script, executable, privileges });
                }
            }
        }
        None
    }
}

/// Returns the interpreter of a script.
pub(crate) fn interpreter(file: &File) -> Option<PathBuf> {
    let mut head = [0; 256];
    let len = file.read_at(&mut head, 0).ok()?;
    let line = head[..len].strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = std::str::from_utf8(line).ok()?.split_whitespace().next()?;
    Some(word.into())
}

/// Returns the privileges that executing this file gives and that the caller does not have.
fn privileges(file: &File) -> Option<Privileges> {
    let metadata = file.metadata().ok()?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mount = rustix::fs::fstatvfs(file).ok()?;
    if mount.f_flag.contains(StatVfsMountFlags::NOSUID) || status.lines().any(|line| line == "NoNewPrivs:\t1") {
        return None;
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let has = |bits| metadata.mode() & bits == bits;
    if has(libc::S_ISUID) && metadata.uid() != uid {
        return Some(Privileges::OfUser(metadata.uid()));
    }
    if has(libc::S_ISGID | libc::S_IXGRP) && metadata.gid() != gid {
        return Some(Privileges::OfGroup(metadata.gid()));
    }
    // Only the length of the value matters.
    let len = rustix::fs::fgetxattr(file, "security.capability", &mut [0_u8; 0]).unwrap_or(0);
    (len > 0 && uid != 0).then_some(Privileges::Capabilities)
}

impl Executable {
    /// Reads a file's headers. `None` if it is not an ELF file or its headers point outside of it.
    pub(crate) fn of(file: &File) -> Option<Executable> {
        let elf = Elf::of(file)?;
        if let Some(name) = elf.other_machine() {
            return Some(Executable { kind: Kind::Foreign(name), has_events: false, is_go: false });
        }
        let sections = elf.sections().unwrap_or_default();
        let kind = match elf.loader() {
            None => Kind::Static,
            Some(loader) if String::from_utf8_lossy(&loader).contains("/ld-musl") => Kind::Musl,
            Some(_) => sanitizer(&elf, &sections).map_or(Kind::Dynamic, Kind::Sanitized),
        };
        let has = |name: &[u8]| elf::find(&sections, name).is_some();
        Some(Executable { kind, has_events: has(EVENTS_SECTION.as_bytes()), is_go: has(GO_SECTION) })
    }
}

/// Returns the sanitizer whose runtime is a library of the program. A runtime that is linked statically is not
/// reported: the preloaded library follows it in the search order, which does no harm.
fn sanitizer(elf: &Elf<'_>, sections: &[Section]) -> Option<&'static str> {
    let names = elf.content(elf::find(sections, b".dynstr")?)?;
    let has = |name: &[u8]| names.windows(name.len()).any(|window| window == name);
    SANITIZERS.iter().find(|(name, _)| has(name)).map(|(_, sanitizer)| *sanitizer)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn of(bytes: &[u8]) -> Option<Executable> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Executable::of(&file)
    }

    #[test]
    fn this_test_is_a_dynamic_program_without_events() {
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(Executable::of(&file), Some(Executable { kind: Kind::Dynamic, has_events: false, is_go: false }));
        let sections = Elf::of(&file).unwrap().sections().unwrap();
        assert!(elf::find(&sections, b".text").is_some() && elf::find(&sections, b".tex").is_none());
    }

    #[test]
    fn headers_with_invalid_offsets_are_refused() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(of(b"\x7fELF"), None);
        assert_eq!(of(&[0; 64]), None);
        let mut bytes = own[..4096].to_vec();
        // Makes it a 32-bit file.
        bytes[4] = 1;
        assert!(matches!(of(&bytes), Some(Executable { kind: Kind::Foreign(_), .. })));
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = seed | 1;
        for _ in 0..20_000 {
            let mut bytes = own[..4096].to_vec();
            for _ in 0..8 {
                // xorshift64: Marsaglia, "Xorshift RNGs", 2003.
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                bytes[4 + (random >> 8) as usize % 60] = random as u8;
            }
            let _ = of(&bytes);
        }
    }

    #[test]
    fn a_script_counts_as_its_interpreter() {
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = place.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let inner = write("inner", "#! /proc/self/exe -x\n");
        let outer = write("outer", &format!("#!{}\n", inner.display()));
        let command = Command::find(outer.as_os_str()).unwrap();
        assert_eq!((command.path.as_path(), command.script), (Path::new("/proc/self/exe"), Some(outer)));
        assert_eq!(command.privileges, None);
        let circle = place.path().join("circle");
        write("circle", &format!("#!{}\n", circle.display()));
        assert!(Command::find(circle.as_os_str()).is_none());
        assert!(Command::find(OsStr::new("/nowhere")).is_none());
        let fifo = place.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        // Opening it would block until a process opens it for writing.
        assert!(Command::find(fifo.as_os_str()).is_none());
    }
}
