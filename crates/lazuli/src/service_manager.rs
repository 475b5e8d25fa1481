//! Reports the server's state to the service manager that started it, if there is one (systemd's
//! `Type=notify`).

use sd_notify::NotifyState;

/// Reports that the server accepts requests.
pub(crate) fn ready() {
    send(&[NotifyState::Ready]);
}

/// Reports that the server drains and then ends.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Does nothing without `NOTIFY_SOCKET`.
fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "could not notify the service manager");
    }
}
