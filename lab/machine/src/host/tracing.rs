//! What tracing needs of the machine, as results keep it: what `dormouse doctor` tries, and what bears on figures alone.

use dormouse_doctor::Patching;
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
        let found = dormouse_doctor::Tracing::read();
        let (patching, patching_reason) = match found.patching {
            Ok(Patching { writer, reason }) => (Fact::Told(writer), Fact::Told(reason)),
            Err(cause) => (Fact::NotTold(cause.clone()), Fact::NotTold(cause)),
        };
        Tracing {
            patching,
            patching_reason,
            rseq: found.rseq.into(),
            glibc_tunables: Fact::Told(std::env::var("GLIBC_TUNABLES").unwrap_or_else(|_| "not set".into())),
            membarrier: found.membarrier.into(),
            pagemap_scan: dormouse_backing::try_pagemap_scan().map_err(|error| error.to_string()).into(),
            sockets: found.sockets.into(),
        }
    }

    /// For the judgement of `dormouse doctor`.
    pub(crate) fn to_judge(&self) -> dormouse_doctor::Tracing {
        let patching = match &self.patching {
            Fact::Told(writer) => Ok(Patching { writer: writer.clone(), reason: self.patching_reason.to_string() }),
            Fact::NotTold(cause) => Err(cause.clone()),
        };
        let [rseq, membarrier, sockets] =
            [&self.rseq, &self.membarrier, &self.sockets].map(|found| found.clone().into());
        dormouse_doctor::Tracing { patching, rseq, membarrier, sockets }
    }
}
