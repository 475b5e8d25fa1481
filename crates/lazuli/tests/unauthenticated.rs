//! The processor time of requests and logins without valid credentials, compared with that of a small upload.
//! Tests in `front` and `smb` bound their memory.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use lazuli_protocol::ServiceKind;
use support::{DEVELOPMENT_ACCOUNT as ACCOUNT, Server, http};

const ROUNDS: usize = 400;
/// A refused request, however large its head is, costs at most as much as this many uploads of 4 KiB.
const UPLOADS: f64 = 8.0;

/// Returns the processor time of the server so far, in clock ticks.
fn ticks(server: &Server) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<_> = fields.split_whitespace().collect();
    [fields[11], fields[12]].iter().map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Returns the processor time of the server per call, in clock ticks, averaged over many calls.
fn cost(server: &Server, mut call: impl FnMut(usize)) -> f64 {
    let before = ticks(server);
    (0..ROUNDS).for_each(&mut call);
    (ticks(server) - before) as f64 / ROUNDS as f64
}

/// Returns the frame of a Negotiate request for SMB 2.1.
fn negotiate() -> Vec<u8> {
    let mut message = vec![0; 64 + 36 + 2];
    message[..4].copy_from_slice(b"\xfeSMB");
    message[4] = 64;
    message[64] = 36;
    message[66] = 1;
    message[68] = 1;
    message[100..102].copy_from_slice(&0x0210_u16.to_le_bytes());
    let mut frame = u32::try_from(message.len()).unwrap().to_be_bytes().to_vec();
    frame.append(&mut message);
    frame
}

#[test]
fn unauthenticated_request_costs_at_most_a_few_small_uploads_of_cpu_time() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let blob = ServiceKind::Blob;
    assert_eq!(server.send(blob, "PUT", "/con?restype=container", "", b"").status, 201);
    let upload = cost(&server, |i| {
        let put =
            server.send(blob, "PUT", &format!("/con/{i}"), "x-ms-blob-type: BlockBlob", &[i as u8; 4096]);
        assert_eq!(put.status, 201);
    });

    let fields: String = (0..90).map(|i| format!("x-ms-meta-n{i}: {}\r\n", "v".repeat(600))).collect();
    let wrong_key = format!("Authorization: SharedKey {ACCOUNT}:{}=\r\n", "A".repeat(43));
    let token = format!("Authorization: Bearer {}\r\n", "A".repeat(7000));
    let sas = "sv=2021-12-02&ss=bfqt&srt=sco&sp=rwdla&se=2099-12-31T00:00:00Z&sig=aHVzaA%3D%3D";
    let version = "x-ms-version: 2021-12-02\r\nx-ms-date: Tue, 18 Nov 2026 12:00:00 GMT\r\n";
    let refused = [
        ("a wrong key", format!("PUT /{ACCOUNT}/con/b HTTP/1.1\r\n{wrong_key}{version}{fields}")),
        ("a token", format!("GET /{ACCOUNT}/con/b HTTP/1.1\r\n{token}{version}")),
        ("a wrong SAS", format!("GET /{ACCOUNT}/con/b?{sas} HTTP/1.1\r\n{version}{fields}")),
        ("an unknown account", format!("GET /unknown/con/b HTTP/1.1\r\n{wrong_key}{version}{fields}")),
        ("no credentials", format!("GET /{ACCOUNT}/con/b HTTP/1.1\r\n{version}{fields}")),
    ];
    for (what, head) in refused {
        let cost = cost(&server, |_| {
            let status = http(server.address("blob"), &head, b"").status;
            assert!((400..500).contains(&status), "{what}: {status}");
        });
        println!("{what}: {:.1} uploads", cost / upload);
        assert!(cost < upload * UPLOADS, "{what}: {cost} ticks, an upload {upload}");
    }

    let greeting = negotiate();
    let smb = cost(&server, |_| {
        let mut stream = TcpStream::connect(server.address("smb")).unwrap();
        stream.write_all(&greeting).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        stream.write_all(&[0, 0xff, 0xff, 0xff]).unwrap();
        let _ = stream.read_to_end(&mut vec![]);
    });
    println!("an SMB connection that is refused: {:.1} uploads", smb / upload);
    assert!(smb < upload * UPLOADS, "{smb} ticks, an upload {upload}");
    server.stop();
}
