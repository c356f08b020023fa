//! The layout of a session's memory: that of [`dormouse_abi`], but with the atomics of this crate's tests in them.

#[cfg(not(test))]
pub(crate) use dormouse_abi::session;

#[cfg(test)]
use {
    crate::atomic,
    dormouse_abi::{page, record, register, tag, vring},
};

#[cfg(test)]
#[allow(dead_code, reason = "this crate does not use all of the layout")]
#[path = "../../../record/abi/src/session.rs"]
pub(crate) mod session;
