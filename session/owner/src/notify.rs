//! What a service manager is told (sd_notify(3)), where one wants to know: it has put the path of a socket into `NOTIFY_SOCKET`.

use std::path::Path;

use sd_notify::{NotifyState, notify};

/// Programs can join.
pub(crate) fn ready(dir: &Path) {
    // Nobody listens: nobody has asked.
    let _ = notify(&[NotifyState::Ready, NotifyState::Status(&format!("recording into {}", dir.display()))]);
}

/// The session ends.
pub(crate) fn stopping() {
    let _ = notify(&[NotifyState::Stopping]);
}

/// What there is to say of it.
pub(crate) fn status(text: &str) {
    let _ = notify(&[NotifyState::Status(text)]);
}
