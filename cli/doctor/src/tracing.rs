//! What tracing needs of the machine, each tried in the calling process.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};

use dormouse_imv::{StaticKey, Writer};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::thread::MembarrierQuery;
use serde::{Deserialize, Serialize};

use crate::fact::{Availability, Fact, tolerant};

/// The mechanisms that events go by.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tracing {
    /// How sites are patched: `mprotect`, `procmem`, `none`.
    #[serde(deserialize_with = "tolerant")]
    pub patching: Fact<String>,
    /// Why that way.
    pub patching_reason: Fact<String>,
    /// Restartable sequences, registered by libc.
    #[serde(deserialize_with = "tolerant")]
    pub rseq: Availability,
    /// `GLIBC_TUNABLES`, if it is set.
    pub glibc_tunables: Fact<String>,
    /// `membarrier` by expedited command that serialises cores, which patching needs.
    #[serde(deserialize_with = "tolerant")]
    pub membarrier: Availability,
    /// `PAGEMAP_SCAN`, which sees the zero page.
    #[serde(deserialize_with = "tolerant")]
    pub pagemap_scan: Availability,
    /// The directory in which programs listen.
    #[serde(deserialize_with = "tolerant")]
    pub sockets: Availability,
}

impl Tracing {
    /// Tries all of it.
    pub fn read() -> Tracing {
        let (patching, patching_reason) = patching();
        Tracing {
            patching,
            patching_reason,
            rseq: rseq(),
            glibc_tunables: Fact::Told(std::env::var("GLIBC_TUNABLES").unwrap_or_else(|_| "not set".into())),
            membarrier: membarrier(),
            pagemap_scan: match dormouse_backing::try_pagemap_scan() {
                Ok(()) => Availability::Available,
                Err(dormouse_backing::BackingError::System { errno: Errno::NOTTY, .. }) => {
                    Availability::Not("the kernel is older than Linux 6.7".into())
                }
                Err(error) => Availability::Not(error.to_string()),
            },
            sockets: sockets(),
        }
    }
}

/// A site of this program is armed and disarmed again.
fn patching() -> (Fact<String>, Fact<String>) {
    static KEY: StaticKey = StaticKey::new();
    fn gate() -> bool {
        dormouse_imv::static_branch!(KEY)
    }
    let tried = dormouse_imv::enable(&KEY).and_then(|()| {
        let is_open = gate();
        dormouse_imv::disable(&KEY).map(|()| is_open && !gate())
    });
    match (tried, dormouse_imv::status()) {
        (Err(error), _) | (_, Err(error)) => (Fact::NotTold(error.to_string()), Fact::NotTold(error.to_string())),
        (Ok(false), _) => {
            let cause = "a site did not answer as its key says".to_string();
            (Fact::NotTold(cause.clone()), Fact::NotTold(cause))
        }
        (Ok(true), Ok(status)) => {
            let is_patched = status.count.patched == status.count.sites;
            let writer = if is_patched { status.writer } else { Writer::None };
            (Fact::Told(writer.name().into()), Fact::Told(status.reason.into()))
        }
    }
}

fn rseq() -> Availability {
    if std::env::var(dormouse_abi::wire::ENV_NO_RSEQ).is_ok_and(|value| value == "1") {
        return Availability::Not(format!("{}=1 is set", dormouse_abi::wire::ENV_NO_RSEQ));
    }
    if cfg!(target_arch = "x86_64") && dormouse_percpu::Rseq::of_libc().is_some() {
        return Availability::Available;
    }
    let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    Availability::Not(if tunables.contains("glibc.pthread.rseq=0") {
        "switched off by GLIBC_TUNABLES=glibc.pthread.rseq=0".into()
    } else if cfg!(not(target_arch = "x86_64")) {
        "there are no critical sections for this architecture".into()
    } else {
        "libc has registered none: it is older than glibc 2.35, or the kernel (or valgrind, or qemu) has no rseq(2)"
            .into()
    })
}

fn membarrier() -> Availability {
    let query = rustix::thread::membarrier_query();
    if query.is_empty() {
        return Availability::Not("the kernel has no membarrier(2), or a sandbox forbids it".into());
    }
    if query.contains(MembarrierQuery::PRIVATE_EXPEDITED_SYNC_CORE) {
        return Availability::Available;
    }
    Availability::Not("the kernel offers no PRIVATE_EXPEDITED_SYNC_CORE (older than Linux 4.16)".into())
}

/// As a traced program does it: a directory of this user that nobody else can write to, and in which files can be made.
fn sockets() -> Availability {
    let dir = dormouse_consumer::socket_dir();
    let shown = dir.display();
    let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
    let metadata = match std::fs::symlink_metadata(&dir) {
        Ok(metadata) => metadata,
        Err(error) => {
            return Availability::Not(format!("{shown} cannot be made: {}", made.err().unwrap_or(error)));
        }
    };
    let uid = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != uid {
        return Availability::Not(format!("{shown} is not a directory of user {uid}"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Availability::Not(format!("others may write to {shown}"));
    }
    match accessat(CWD, &dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => Availability::Available,
        Err(error) => Availability::Not(format!("{shown} cannot be written: {error}")),
    }
}
