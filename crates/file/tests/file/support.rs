//! A file service under test, with helpers.

use lazuli_copy::CopySources;
use lazuli_file::FileService;
use lazuli_outbound::Outbound;
use lazuli_protocol::ServiceKind;
use lazuli_testing::TestServer;

pub(crate) type Server = TestServer<FileService>;

/// Starts a server with a share `docs`.
pub(crate) async fn start() -> Server {
    let make = |parts: lazuli_testing::Parts| {
        let sources = CopySources {
            access: parts.gate,
            host_suffixes: vec![],
            outbound: Outbound::new(vec!["*".parse().unwrap()]),
            local_services: Default::default(),
        };
        FileService::new(parts.store, parts.extents, parts.accounts).with_copy_sources(sources)
    };
    let server = lazuli_testing::start(ServiceKind::File, make).await;
    server.put("/docs?restype=share", "", "").await.expect(201);
    server
}

pub(crate) async fn make_directory(server: &Server, path: &str) {
    server.put(&format!("/docs/{path}?restype=directory"), "", "").await.expect(201);
}

/// Creates a file of `length` bytes.
pub(crate) async fn make_file(server: &Server, path: &str, length: u64) {
    let headers = format!("x-ms-type: file\nx-ms-content-length: {length}");
    server.put(&format!("/docs/{path}"), &headers, "").await.expect(201);
}

/// Writes bytes at an offset.
pub(crate) async fn write(server: &Server, path: &str, offset: usize, bytes: &[u8]) {
    let range = format!("x-ms-write: update\nx-ms-range: bytes={offset}-{}", offset + bytes.len() - 1);
    server.put(&format!("/docs/{path}?comp=range"), &range, bytes.to_vec()).await.expect(201);
}

/// Returns the names of the files and directories in a directory, in order.
pub(crate) async fn names(server: &Server, path: &str) -> Vec<String> {
    let listed = server.get(&format!("/docs/{path}?restype=directory&comp=list"), "").await.expect(200);
    let text = listed.text().to_owned();
    text.split("<Name>").skip(1).map(|rest| rest.split("</Name>").next().unwrap().to_owned()).collect()
}
