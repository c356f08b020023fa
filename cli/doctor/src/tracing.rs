//! The mechanisms of the machine that tracing needs. Each is tried in the calling process.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};

use dormouse_imv::{CodeWriter, StaticKey};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::thread::MembarrierCommand;

/// Mechanisms that events depend on, each with its failure if it does not work.
#[derive(Debug)]
pub struct Tracing {
    /// Method by which sites are patched.
    pub patching: Result<Patching, String>,
    /// Restartable sequences, registered by libc.
    pub rseq: Result<(), String>,
    /// The expedited `membarrier` command that serialises cores, which patching needs.
    pub membarrier: Result<(), String>,
    /// Descriptors by which the kernel reports the end of a program.
    pub ends: Result<(), String>,
    /// Directory in which programs listen.
    pub sockets: Result<(), String>,
}

/// Method by which sites are patched.
#[derive(Debug)]
pub struct Patching {
    /// Name of the method: `mprotect`, `procmem` or `none`.
    pub writer: String,
    /// Reason for this method.
    pub reason: String,
}

impl Tracing {
    /// Tries all mechanisms.
    pub fn read() -> Tracing {
        Tracing { patching: patching(), rseq: rseq(), membarrier: membarrier(), ends: ends(), sockets: sockets() }
    }
}

/// Arms and disarms a site of this program.
fn patching() -> Result<Patching, String> {
    static KEY: StaticKey = StaticKey::new();
    fn gate() -> bool {
        dormouse_imv::static_branch!(KEY)
    }
    let tried = dormouse_imv::enable(&KEY).and_then(|()| {
        let is_open = gate();
        dormouse_imv::disable(&KEY).map(|()| is_open && !gate())
    });
    match (tried, dormouse_imv::status()) {
        (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
        (Ok(false), _) => Err("a patched site did not behave as its key says".into()),
        (Ok(true), Ok(status)) => {
            let is_patched = status.count.patched == status.count.sites;
            let writer = if is_patched { status.writer } else { CodeWriter::None };
            Ok(Patching { writer: writer.name().into(), reason: status.reason.into() })
        }
    }
}

/// Whether there are critical sections for this architecture.
pub(crate) const HAS_SECTIONS: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

fn rseq() -> Result<(), String> {
    if std::env::var(dormouse_abi::environment::ENV_NO_RSEQ).is_ok_and(|value| value == "1") {
        return Err(format!("{}=1 is set", dormouse_abi::environment::ENV_NO_RSEQ));
    }
    if HAS_SECTIONS && dormouse_percpu::Rseq::of_libc().is_some() {
        // Sections that run must be restarted when a session begins or ends.
        return barrier(MembarrierCommand::RegisterPrivateExpeditedRseq).map_err(|refused| {
            refused.unwrap_or("the kernel offers no PRIVATE_EXPEDITED_RSEQ (older than Linux 5.10)").into()
        });
    }
    let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    Err(if tunables.contains("glibc.pthread.rseq=0") {
        "disabled by GLIBC_TUNABLES=glibc.pthread.rseq=0".into()
    } else if !HAS_SECTIONS {
        "Dormouse has no critical sections for this architecture".into()
    } else {
        "libc has not registered any: it is older than glibc 2.35, or the kernel (or valgrind, or qemu) has no rseq(2)"
            .into()
    })
}

/// Opens this process as the session's owner opens its programs.
fn ends() -> Result<(), String> {
    let me = rustix::process::getpid();
    match rustix::process::pidfd_open(me, rustix::process::PidfdFlags::empty()) {
        Ok(_) => Ok(()),
        Err(Errno::NOSYS) => Err("the kernel has no pidfd_open(2) (older than Linux 5.3)".into()),
        Err(error) => Err(error.to_string()),
    }
}

fn membarrier() -> Result<(), String> {
    barrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore).map_err(|refused| {
        refused.unwrap_or("the kernel offers no PRIVATE_EXPEDITED_SYNC_CORE (older than Linux 4.16)").into()
    })
}

/// Registers for a barrier.
///
/// # Errors
/// The reason why there are none; `None` if there is no such barrier.
fn barrier(registration: MembarrierCommand) -> Result<(), Option<&'static str>> {
    match rustix::thread::membarrier(registration) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL) => Err(None),
        Err(_) => Err(Some("the kernel has no membarrier(2), or a sandbox forbids it")),
    }
}

/// Checks the socket directory as a traced program does: it must belong to this user, only this user may write to it,
/// and files can be created in it.
fn sockets() -> Result<(), String> {
    let dir = dormouse_control::socket_dir();
    let shown = dir.display();
    let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
    let metadata = match std::fs::symlink_metadata(&dir) {
        Ok(metadata) => metadata,
        Err(error) => {
            return Err(format!("{shown} cannot be created: {}", made.err().unwrap_or(error)));
        }
    };
    let uid = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != uid {
        return Err(format!("{shown} is not a directory of user {uid}"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(format!("other users can write to {shown}"));
    }
    match accessat(CWD, &dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => Ok(()),
        Err(error) => Err(format!("{shown} is not writable: {error}")),
    }
}
