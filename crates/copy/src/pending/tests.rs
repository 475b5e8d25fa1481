//! The scheduling of copies, with a paused clock.

use std::net::SocketAddr;

use lazuli_concurrency::ManualClock;
use lazuli_outbound::Outbound;
use lazuli_protocol::{Account, Service, SourceAccess, SourceRead};
use lazuli_store::{InMemoryStore, SpaceHeader};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::LocalServices;
use crate::streamed_source::Transport;

const NOW: Timestamp = Timestamp::from_unix_seconds(1_767_323_045);
const LENGTH: usize = 100;
const SPACE: SpaceId = SpaceId(1);

/// Refuses all sources in this server.
struct NoLocalSources;

#[async_trait]
impl SourceAccess for NoLocalSources {
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

fn target_space(space: SpaceId, account: &str) -> TargetSpace {
    TargetSpace { space, account: account.into() }
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

    async fn spaces(&self, _: Option<Bytes>) -> Result<(Vec<TargetSpace>, Option<Bytes>), Refusal> {
        Ok((vec![target_space(SPACE, "lapis")], None))
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

    async fn record_progress(&self, _: SpaceId, _: &PendingCopy<()>, _: u64) -> Result<bool, Refusal> {
        Ok(true)
    }

    async fn end(&self, _: SpaceId, _: &PendingCopy<()>, _: Result<Vec<u8>, Refusal>) -> Result<(), Refusal> {
        Ok(())
    }
}

/// Serves a document whose bytes are their own offsets, with a pause before each byte.
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
    let (rows_left, last) = (LENGTH - from, LENGTH - 1);
    let lines = format!("content-length: {rows_left}\r\ncontent-range: bytes {from}-{last}/{LENGTH}");
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
    let mut seen = SourceVersion::default();
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

fn targets() -> Targets {
    let store = InMemoryStore::new(Arc::new(ManualClock::new(NOW)), 1 << 20);
    let sources = CopySources {
        access: Arc::new(NoLocalSources),
        host_suffixes: vec![],
        outbound: Outbound::new(["127.0.0.1".parse().unwrap()]),
        local_services: LocalServices::default(),
    };
    Targets(Arc::new(Copies::new(Arc::new(store), b"w", Some(sources))))
}

#[tokio::test(start_paused = true)]
async fn resumed_copies_beyond_the_limit_run_after_others_have_ended() {
    const LIMIT: u32 = 2;
    const COPIES: u8 = 9;
    let Targets(copies) = targets();
    let mut copies = Arc::into_inner(copies).unwrap();
    (copies.pending, copies.max_pending) = (FairSemaphore::new(LIMIT), LIMIT);
    let targets = Targets(Arc::new(copies));
    let store = targets.0.store.clone();
    let open = SpaceHeader { epoch: 0, open: true };
    store.set_space(SPACE, None, open).await.unwrap();
    let address = serve(Some(Duration::from_millis(10))).await;
    for n in 0..COPIES {
        let copy = PendingCopy { id: [n; 16], ..copy_of(address) };
        let row = Mutation::Put(Bytes::copy_from_slice(&copy.id), record::encode(&copy).unwrap());
        targets.0.write::<Targets>(SPACE, row).await.unwrap();
    }
    assert!(targets.0.resume(&targets).await);
    let rows_left = async || {
        let reads = Reads::default().and_range(prefix_range(&[]), 100);
        store.read(&targets.0.rows(SPACE), &reads).await.unwrap().ranges[0].rows.len()
    };
    let mut max_pending_seen = 0;
    for _ in 0..100_000 {
        max_pending_seen = max_pending_seen.max(targets.0.pending());
        if rows_left().await == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((rows_left().await, max_pending_seen), (0, LIMIT as usize));
}

#[tokio::test]
async fn one_account_leaves_pending_copies_to_others() {
    const LIMIT: u32 = 8;
    let Targets(copies) = targets();
    let mut copies = Arc::into_inner(copies).unwrap();
    (copies.pending, copies.max_pending) = (FairSemaphore::new(LIMIT), LIMIT);
    let targets = Targets(Arc::new(copies));
    let open = SpaceHeader { epoch: 0, open: true };
    targets.0.store.set_space(SPACE, None, open).await.unwrap();
    // A source that never ends.
    let address = serve(Some(Duration::from_secs(1 << 20))).await;
    let streamed = targets.0.sources().unwrap().reopen(&copy_of(address)).await.unwrap();
    let begin = async |account: &str, n: u8| {
        let begun = async { Ok(()) };
        let space = target_space(SPACE, account);
        targets
            .0
            .begin(&targets, space, [n; 16], (), &streamed, begun)
            .await
            .map_err(|refusal| refusal.code())
    };
    for n in 0..6 {
        assert_eq!(begin("lapis", n).await, Ok(()));
    }
    assert_eq!(begin("lapis", 6).await, Err(ErrorCode::ServerBusy));
    for n in 10..12 {
        assert_eq!(begin("pyrite", n).await, Ok(()));
    }
    assert_eq!((begin("pyrite", 12).await, targets.0.pending()), (Err(ErrorCode::ServerBusy), 8));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_trickles_ends_a_request_that_waits_for_it() {
    let targets = targets();
    let sources = targets.0.sources().unwrap();
    let address = serve(Some(Duration::from_secs(8))).await;
    let mut streamed = sources.reopen(&copy_of(address)).await.unwrap();
    streamed.transport = Transport::Http(sources.outbound.for_account("lapis"));
    let before = Instant::now();
    let mut body = streamed.body(0..LENGTH as u64);
    let error = loop {
        match std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            Some(Ok(_)) => {}
            ended => break ended.expect("the source takes longer").unwrap_err(),
        }
    };
    assert!((60..70).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    let refusal = Refusal::from_body_error(error);
    assert_eq!(refusal.code(), ErrorCode::CannotVerifyCopySource);
    assert!(refusal.text().contains("too slowly"), "{}", refusal.text());
}

#[tokio::test(start_paused = true)]
async fn slow_sources_do_not_block_other_copies() {
    let targets = targets();
    let (slow, fast) = (serve(Some(Duration::from_secs(8))).await, serve(None).await);
    let mut tricklers = JoinSet::new();
    // This is more than the maximum number of copies that read, are slow, or keep their content.
    for _ in 0..MAX_CONNECTIONS + MAX_PARKED + 20 {
        let targets = targets.clone();
        tricklers.spawn(async move {
            loop {
                match fetch(&targets, SpaceId(1), &copy_of(slow)).await {
                    Err(FetchError::Requeue) => continue,
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
