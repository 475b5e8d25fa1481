//! Options that make the SMB endpoint require signatures.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use support::Server;

/// Returns the security mode in a server's reply to Negotiate.
fn security_mode(arguments: &[&str], variables: &[(&str, &str)]) -> u8 {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), arguments, variables);
    let mut stream = TcpStream::connect(server.address("smb")).unwrap();
    let mut frame = vec![0; 4 + 64 + 38];
    frame[3] = 64 + 38;
    frame[4..10].copy_from_slice(b"\xfeSMB\x40\0");
    // One dialect, 2.1; signing enabled.
    frame[68..73].copy_from_slice(&[36, 0, 1, 0, 1]);
    frame[104..].copy_from_slice(&[0x10, 0x02]);
    stream.write_all(&frame).unwrap();
    let mut answer = [0; 4 + 64 + 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[12..16], [0; 4], "status");
    answer[70]
}

#[test]
fn signing_is_required_by_option_and_for_remote_plaintext() {
    const ENABLED: u8 = 1;
    const REQUIRED: u8 = 3;
    for (arguments, variables, expected) in [
        (&[][..], &[][..], ENABLED),
        (&["--smb-require-signing"], &[], REQUIRED),
        (&[], &[("LAZULI_SMB_REQUIRE_SIGNING", "true")], REQUIRED),
        (&["--smb-unencrypted"], &[], REQUIRED),
        (&["--smb-unencrypted", "--smb-require-signing=false"], &[], REQUIRED),
    ] {
        assert_eq!(security_mode(arguments, variables), expected, "{arguments:?} {variables:?}");
    }
}
