//! The session file: a session's description of itself in its trace's directory while it lasts. From it, `salvage`
//! finds a dead owner's memory.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use dormouse_control::{boot, is_dead, open, start_of};
use dormouse_transport::is_answered;

use crate::dir::{Dir, not_read};
use crate::error::Error;

/// Name of the file. Readers of traces skip names that begin with a dot.
pub(crate) const FILE_NAME: &str = ".session";

/// Maximum length of a session file in bytes: it has two paths and a few numbers.
pub(crate) const LEN_MAX: u64 = 64 << 10;

/// First entry of the file.
const FORMAT: &str = "dormouse-session=1";

/// A session's identity, and the place of its socket and memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SessionFile {
    /// UUID of the session.
    pub(crate) uuid: [u8; 16],
    /// Id of the boot that the clock counts from, if the kernel tells.
    pub(crate) boot: String,
    /// Process id of the process that has begun the session: `dormouse record`, which starts the owner, or the owner
    /// itself. Its entry in the file is called `owner`.
    pub(crate) recorder: u32,
    /// Start time of that process, as the kernel reports it: process ids are reused.
    pub(crate) recorder_start: String,
    /// Path of the session's socket.
    pub(crate) socket: PathBuf,
    /// Path of the file with the session's memory, if it has one.
    pub(crate) buffers: Option<PathBuf>,
}

impl SessionFile {
    /// Encodes it as entries `name=value`, each ended by a NUL, as in `/proc/PID/environ`: a path may contain any other
    /// byte.
    fn encode(&self) -> Vec<u8> {
        let uuid: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut out = format!(
            "{FORMAT}\0uuid={uuid}\0boot={}\0owner={}\0owner_start={}\0",
            self.boot, self.recorder, self.recorder_start
        )
        .into_bytes();
        let mut put = |name: &str, path: &Path| {
            out.extend(name.as_bytes());
            out.extend(path.as_os_str().as_bytes());
            out.push(0);
        };
        put("socket=", &self.socket);
        self.buffers.iter().for_each(|path| put("buffers=", path));
        out
    }

    /// Decodes it. `None` for bytes that [`SessionFile::encode`] cannot have written, or not completely.
    pub(crate) fn decode(bytes: &[u8]) -> Option<SessionFile> {
        let mut entries = bytes.strip_suffix(&[0])?.split(|byte| *byte == 0);
        if entries.next()? != FORMAT.as_bytes() {
            return None;
        }
        let entries: Vec<&[u8]> = entries.collect();
        let find = |name: &str| entries.iter().find_map(|entry| entry.strip_prefix(name.as_bytes()));
        let text = |name: &str| std::str::from_utf8(find(name)?).ok();
        let path = |name: &str| find(name).map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)));
        let uuid =
            text("uuid=").filter(|text| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        Some(SessionFile {
            uuid: u128::from_str_radix(uuid, 16).ok()?.to_be_bytes(),
            boot: text("boot=")?.into(),
            recorder: text("owner=")?.parse().ok()?,
            recorder_start: text("owner_start=")?.into(),
            socket: path("socket=")?,
            buffers: path("buffers="),
        })
    }

    /// Whether the process that has begun the session is alive.
    pub(crate) fn is_recorder_alive(&self) -> bool {
        // A dead process may stay a zombie for a long time.
        let is_running = open(self.recorder).is_ok_and(|process| !is_dead(&process));
        is_running && start_of(self.recorder) == self.recorder_start
    }

    /// Whether the session has an owner, or gets one: the recorder is alive, or a process answers at its socket (the
    /// owner of a killed recorder, or one in another container).
    pub(crate) fn is_owner_alive(&self) -> bool {
        self.is_recorder_alive() || is_answered(&self.socket)
    }
}

/// Whether the owner of the session that is recorded into a directory is alive; `None` if there is no session file.
pub fn is_owner_alive(dir: &Path) -> Option<bool> {
    let file = Dir::open(dir).ok()?.read_all(FILE_NAME, LEN_MAX).ok()?;
    Some(SessionFile::decode(&file)?.is_owner_alive())
}

/// Returns the path of the socket of the live session that is recorded into a directory.
///
/// # Errors
/// One line, if there is no such session.
pub fn socket_of(dir: &Path) -> Result<PathBuf, Error> {
    let (opened, shown) = (Dir::open(dir)?, dir.display());
    let bytes = match opened.read_all(FILE_NAME, LEN_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let what = if opened.read("metadata").is_ok() { "its session has ended" } else { "it is not a trace" };
            return Err(format!("{shown} names no live session: {what}").into());
        }
        Err(error) => return Err(not_read(&opened.path_of(FILE_NAME))(error)),
    };
    let file = SessionFile::decode(&bytes).ok_or_else(|| format!("{shown} has a damaged session file"))?;
    if !file.is_owner_alive() {
        return Err(format!("the session of {shown} was killed; `dormouse salvage {shown}` makes a trace of it").into());
    }
    Ok(file.socket)
}

/// Files that exist as long as the session lasts: the session file, and that of the buffers. A killed owner leaves
/// them.
#[derive(Debug)]
pub(crate) struct OwnerFiles(Vec<PathBuf>);

impl OwnerFiles {
    /// Holds the buffers' file, if there is one.
    pub(crate) fn new(buffers: Option<PathBuf>) -> OwnerFiles {
        OwnerFiles(buffers.into_iter().collect())
    }

    /// Writes the session file to the trace's directory.
    pub(crate) fn write(&mut self, dir: &Dir, uuid: [u8; 16], socket: &Path) -> Result<(), Error> {
        let (recorder, buffers) = (std::process::id(), self.0.first().cloned());
        let (boot, recorder_start, socket) = (boot(), start_of(recorder), socket.into());
        dir.create(FILE_NAME, &SessionFile { uuid, boot, recorder, recorder_start, socket, buffers }.encode())?;
        self.0.push(dir.path_of(FILE_NAME));
        Ok(())
    }

    /// Returns the owner files of a session that another process has begun.
    pub(crate) fn inherited(dir: &Dir, buffers: Option<PathBuf>) -> OwnerFiles {
        OwnerFiles(buffers.into_iter().chain([dir.path_of(FILE_NAME)]).collect())
    }

    /// Leaves the files to another process.
    pub(crate) fn leave(&mut self) {
        self.0.clear();
    }

    /// Removes the files, once: later, another session's may be at the same paths.
    pub(crate) fn remove(&mut self) {
        for path in self.0.drain(..) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for OwnerFiles {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(dir: &Path) -> SessionFile {
        SessionFile {
            uuid: [0xA7; 16],
            boot: boot(),
            recorder: std::process::id(),
            recorder_start: start_of(std::process::id()),
            socket: dir.join("a\nb \u{ff}.sock"),
            buffers: None,
        }
    }

    #[test]
    fn session_files_are_read_back_and_truncated_ones_are_refused() {
        let without = here(Path::new("/run"));
        let with = SessionFile { buffers: Some("/dev/shm/x=y".into()), ..without.clone() };
        for file in [without, with] {
            let bytes = file.encode();
            assert_eq!(SessionFile::decode(&bytes).as_ref(), Some(&file));
            for len in 0..bytes.len() {
                let cut = SessionFile::decode(&bytes[..len]);
                assert!(cut.is_none_or(|cut| cut.buffers.is_none() && cut.socket == file.socket), "{len}");
            }
        }
        assert_eq!(SessionFile::decode(b"dormouse-session=2\0"), None);
    }

    #[test]
    fn an_owner_is_alive_until_its_process_ends_or_its_id_is_reused() {
        let dir = tempfile::tempdir().unwrap();
        let me = here(dir.path());
        assert!(me.is_owner_alive());
        assert!(!SessionFile { recorder_start: "1".into(), ..me.clone() }.is_owner_alive());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = SessionFile { recorder: child.id(), recorder_start: start_of(child.id()), ..me.clone() };
        let process = open(child.id()).unwrap();
        while !is_dead(&process) {
            std::thread::yield_now();
        }
        // The child is a zombie here.
        assert!(!dead.is_owner_alive());
        child.wait().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&me.socket).unwrap();
        assert!(dead.is_owner_alive());
        drop(listener);
        assert!(!dead.is_owner_alive());
    }

    #[test]
    fn owner_files_are_removed_once() {
        let dir = tempfile::tempdir().unwrap();
        let buffers = dir.path().join("buffers");
        std::fs::write(&buffers, "").unwrap();
        let mut files = OwnerFiles::new(Some(buffers.clone()));
        files.write(&Dir::open(dir.path()).unwrap(), [7; 16], Path::new("/none")).unwrap();
        let file = SessionFile::decode(&std::fs::read(dir.path().join(FILE_NAME)).unwrap()).unwrap();
        assert_eq!((file.uuid, file.buffers), ([7; 16], Some(buffers.clone())));
        files.remove();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::fs::write(&buffers, "another's").unwrap();
        drop(files);
        assert!(buffers.exists());
    }
}
