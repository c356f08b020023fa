//! Messages to a service manager (sd_notify(3)), if it has put the path of a socket into `NOTIFY_SOCKET`.

use std::path::Path;

use sd_notify::{NotifyState, notify};

/// Tells it that programs can join.
pub(crate) fn ready(dir: &Path) {
    // An error means that no service manager has asked.
    let _ = notify(&[NotifyState::Ready, NotifyState::Status(&format!("recording into {}", dir.display()))]);
}

/// Tells it that the session ends.
pub(crate) fn stopping() {
    let _ = notify(&[NotifyState::Stopping]);
}

/// Tells it a status text.
pub(crate) fn status(text: &str) {
    let _ = notify(&[NotifyState::Status(text)]);
}
