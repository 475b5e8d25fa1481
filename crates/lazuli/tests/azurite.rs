//! `lazuli azurite`, and the binary under the name of Azurite.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use support::{fail, http, lazuli};

/// A server that was started as Azurite.
struct Azurite {
    child: Child,
    /// Lines of stdout up to the last line that Azurite prints when it starts.
    lines: Vec<String>,
}

impl Azurite {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = vec![];
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            lines.push(line.unwrap());
            if lines.last().unwrap().starts_with("Azurite Table service is successfully listening at ") {
                break;
            }
        }
        Self { child, lines }
    }

    fn address(&self, service: &str) -> &str {
        let start = format!("Azurite {service} service is successfully listening at http://");
        self.lines.iter().find_map(|line| line.strip_prefix(&start)).unwrap()
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const FREE_PORTS: [&str; 6] = ["--blobPort", "0", "--queuePort", "0", "--tablePort", "0"];

#[test]
fn azurite_options_start_the_three_services_of_azurite_and_print_its_lines() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = lazuli();
    let options = ["--silent", "--loose", "--skipApiVersionCheck", "--blobHost", "0.0.0.0", "--location"];
    let server = Azurite::start(command.arg("azurite").args(FREE_PORTS).args(options).arg(dir.path()));
    for service in ["Blob", "Queue", "Table"] {
        let port = server.address(service).rsplit_once(':').unwrap().1;
        let address = format!("127.0.0.1:{port}");
        let reply = http(&address, "GET /devstoreaccount1/?comp=list HTTP/1.1\r\n", b"");
        assert!(reply.head.contains("x-ms-request-id"), "{service}");
    }
    assert!(dir.path().join("lazuli-data").exists());
    assert!(
        !server.lines.iter().any(|line| line.contains("smb") || line.contains("file ")),
        "{:?}",
        server.lines
    );
}

#[test]
fn binary_called_azurite_serves_as_azurite() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("azurite");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_lazuli"), &program).unwrap();
    let mut command = Command::new(program);
    command.env_clear().args(FREE_PORTS).arg("--inMemoryPersistence").current_dir(dir.path());
    let server = Azurite::start(&mut command);
    assert!(server.address("Blob").starts_with("127.0.0.1:"));
    drop(server);
    assert!(!dir.path().join("lazuli-data").exists());
}

#[test]
fn pfx_files_are_refused_with_the_way_to_convert_them() {
    let message = fail(&["azurite", "--cert", "cert.pfx", "--pwd", "secret"], 2);
    assert!(message.contains("openssl pkcs12") && !message.contains("secret"), "{message}");
}
