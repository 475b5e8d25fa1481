//! Notifications of systemd.

#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use support::Server;

#[test]
fn service_manager_is_notified_when_the_server_is_ready_and_when_it_stops() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap())];
    let server = Server::start_with(&dir.path().join("data"), &[], &variables);
    assert_eq!(next(&socket), "READY=1");
    server.stop();
    assert_eq!(next(&socket), "STOPPING=1");
}

fn next(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 256];
    let length = socket.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
}
