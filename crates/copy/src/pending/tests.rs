//! Who fetches when, with a clock that does not wait.

use std::net::SocketAddr;

use lazuli_concurrency::ManualClock;
use lazuli_outbound::Outbound;
use lazuli_protocol::{Account, Service, SourceAccess, SourceRead};
use lazuli_store::{Embedded, Options};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::Neighbours;

const NOW: Timestamp = Timestamp::from_unix_seconds(1_767_323_045);
const LENGTH: usize = 100;

/// Nothing of this server is a source here.
struct Nobody;

#[async_trait]
impl SourceAccess for Nobody {
    async fn admit(&self, _: &SourceRead<'_>, _: &dyn Service) -> Result<Arc<Account>, Refusal> {
        Err(ErrorCode::AuthenticationFailed.into())
    }

    async fn account(&self, _: &str) -> Result<Arc<Account>, Refusal> {
        Err(ErrorCode::AuthenticationFailed.into())
    }

    fn now(&self) -> Timestamp {
        NOW
    }
}

/// Targets that always wait for their copies.
#[derive(Clone)]
struct Targets(Arc<Copies>);

#[async_trait]
impl Destination for Targets {
    const GONE: ErrorCode = ErrorCode::ContainerNotFound;
    type Target = ();
    type Sink = Vec<u8>;

    fn copies(&self) -> &Copies {
        &self.0
    }

    async fn spaces(&self, _: Option<Bytes>) -> Result<(Vec<SpaceId>, Option<Bytes>), Refusal> {
        Ok((vec![], None))
    }

    async fn open(&self, _: SpaceId, _: &PendingCopy<()>) -> Result<Option<Vec<u8>>, Refusal> {
        Ok(Some(vec![]))
    }

    async fn is_wanted(&self, _: SpaceId, _: &PendingCopy<()>) -> Result<bool, Refusal> {
        Ok(true)
    }

    async fn push(&self, sink: &mut Vec<u8>, bytes: Bytes) -> Result<(), Refusal> {
        sink.extend_from_slice(&bytes);
        Ok(())
    }

    async fn note(&self, _: SpaceId, _: &PendingCopy<()>, _: u64) -> Result<bool, Refusal> {
        Ok(true)
    }

    async fn end(&self, _: SpaceId, _: &PendingCopy<()>, _: Result<Vec<u8>, Refusal>) -> Result<(), Refusal> {
        Ok(())
    }
}

/// Serves a document whose bytes are their places, so slowly.
async fn serve(pause: Option<Duration>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, pause));
        }
    });
    address
}

async fn answer(mut stream: TcpStream, pause: Option<Duration>) -> std::io::Result<()> {
    let mut head = vec![];
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let range = head.lines().find_map(|line| line.strip_prefix("range: bytes=")).unwrap();
    let from: usize = range.split('-').next().unwrap().parse().unwrap();
    let (left, last) = (LENGTH - from, LENGTH - 1);
    let lines = format!("content-length: {left}\r\ncontent-range: bytes {from}-{last}/{LENGTH}");
    stream.write_all(format!("HTTP/1.1 206 Partial Content\r\n{lines}\r\n\r\n").as_bytes()).await?;
    for at in from..LENGTH {
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        stream.write_u8(at as u8).await?;
    }
    Ok(())
}

fn copy_of(address: SocketAddr) -> PendingCopy<()> {
    let mut seen = Seen::default();
    seen.length = LENGTH as u64;
    PendingCopy {
        id: [1; 16],
        target: (),
        url: format!("http://{address}/document"),
        service: None,
        seen,
        version: Version::NEWEST,
        started: NOW,
    }
}

fn targets(directory: &std::path::Path) -> Targets {
    let store = Embedded::open(directory, Arc::new(ManualClock::new(NOW)), Options::SMALL).unwrap();
    let sources = CopySources {
        access: Arc::new(Nobody),
        host_suffixes: vec![],
        outbound: Outbound::new(["127.0.0.1".parse().unwrap()]),
        neighbours: Neighbours::default(),
    };
    Targets(Arc::new(Copies::new(Arc::new(store), b"w", Some(sources))))
}

#[tokio::test(start_paused = true)]
async fn sources_that_trickle_keep_no_other_copy_waiting_however_many() {
    let directory = tempfile::tempdir().unwrap();
    let targets = targets(directory.path());
    let (slow, fast) = (serve(Some(Duration::from_secs(8))).await, serve(None).await);
    let mut tricklers = JoinSet::new();
    // More than fetch, are slow, and keep what they have, at once.
    for _ in 0..MAX_CONNECTIONS + MAX_PARKED + 20 {
        let targets = targets.clone();
        tricklers.spawn(async move {
            loop {
                match fetch(&targets, SpaceId(1), &copy_of(slow)).await {
                    Err(Stopped::Later) => continue,
                    ended => return ended,
                }
            }
        });
        tokio::task::yield_now().await;
    }
    let before = Instant::now();
    let fetched = fetch(&targets, SpaceId(1), &copy_of(fast)).await;
    let bytes: Vec<u8> = (0..LENGTH).map(|at| at as u8).collect();
    assert!(matches!(fetched, Ok(fetched) if fetched == bytes));
    assert!(before.elapsed() < Duration::from_secs(600), "{:?}", before.elapsed());
    assert!(tricklers.try_join_next().is_none(), "none of them has ended yet");
    while let Some(fetched) = tricklers.join_next().await {
        assert!(
            matches!(fetched.unwrap(), Ok(fetched) if fetched == bytes),
            "all of them do, with all bytes"
        );
    }
}
