//! Issuers by URL and by file. The web issuer runs on this machine.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","y":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}"#;

/// Starts a web server that counts its requests and answers all of them.
async fn web(status: &'static str, issuer: Option<&'static str>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let (base, counter) = (url.clone(), requests.clone());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counter.fetch_add(1, Ordering::SeqCst);
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            let body = if request[..read].starts_with(b"GET /.well-known/openid-configuration ") {
                format!(r#"{{"issuer":"{}","jwks_uri":"{base}/keys"}}"#, issuer.unwrap_or(&base))
            } else {
                KEYS.to_owned()
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).await.unwrap();
        }
    });
    (url, requests)
}

fn named(issuer: &str) -> Oidc {
    Oidc { issuer: issuer.into(), audiences: vec!["a".into()] }
}

#[tokio::test]
async fn issuer_url_is_fetched_on_demand_at_a_limited_rate() {
    let (url, requests) = web("200 OK", None).await;
    let issuer = issuer(&named(&url)).unwrap();
    assert_eq!((issuer.name.as_str(), issuer.audiences.as_slice()), (url.as_str(), &["a".to_owned()][..]));
    assert_eq!(requests.load(Ordering::SeqCst), 0, "nothing is fetched before it is needed");
    for refresh in [false, false, true, true] {
        issuer.keys.keys(refresh).await.unwrap();
    }
    assert_eq!(requests.load(Ordering::SeqCst), 2, "one discovery document, one key set");
}

#[tokio::test]
async fn unknown_key_or_stale_keys_trigger_a_refresh() {
    let (url, requests) = web("200 OK", None).await;
    let issuer = issuer(&named(&url)).unwrap();
    issuer.keys.keys(false).await.unwrap();
    for (wait, refresh, asked) in
        [(PATIENCE, false, 2), (PATIENCE, true, 4), (Duration::ZERO, true, 4), (FRESH, false, 6)]
    {
        tokio::time::pause();
        tokio::time::advance(wait).await;
        tokio::time::resume();
        issuer.keys.keys(refresh).await.unwrap();
        // Cached keys are returned before the refresh ends.
        let all = async {
            while requests.load(Ordering::SeqCst) < asked {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
        assert_eq!(requests.load(Ordering::SeqCst), asked, "{wait:?} {refresh}");
    }
}

#[tokio::test]
async fn failing_or_mismatching_issuer_has_no_keys() {
    for (status, name) in [("500 Oops", None), ("200 OK", Some("https://other.example"))] {
        let (url, requests) = web(status, name).await;
        let issuer = issuer(&named(&url)).unwrap();
        assert!(issuer.keys.keys(false).await.is_err(), "{status}");
        assert!(issuer.keys.keys(true).await.is_err(), "{status}");
        assert_eq!(requests.load(Ordering::SeqCst), 1, "the issuer is not requested again at once");
    }
}

// The clock is paused and advances only when all tasks wait for it.
#[tokio::test(start_paused = true)]
async fn silent_issuer_does_not_delay_requests_with_a_cached_key() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", silent.local_addr().unwrap());
    let source = WebKeys::new(IssuerKeys::Keys(url.parse().unwrap()));

    let begun = Instant::now();
    let replies = tokio::join!(source.keys(false), source.keys(false));
    assert!(replies.0.is_err() && replies.1.is_err());
    assert!(begun.elapsed() < 2 * WAIT, "both wait at the same time");

    let long_ago = Instant::now().checked_sub(FRESH).unwrap();
    let keys = KeySet::parse(KEYS.as_bytes()).unwrap();
    source.0.cached().keys = Some((long_ago, Arc::new(keys)));
    let begun = Instant::now();
    assert!(source.keys(false).await.is_ok());
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn issuer_file_refers_to_a_key_file_in_its_folder() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("issuer.json");
    let document = r#"{"issuer":"https://i.example","jwks_uri":"keys.json","authorization_endpoint":"https://a.example"}"#;
    std::fs::write(&file, document).unwrap();
    std::fs::write(directory.path().join("keys.json"), KEYS).unwrap();
    let issuer = issuer(&named(file.to_str().unwrap())).unwrap();
    assert_eq!(issuer.name, "https://i.example");
    assert_eq!(issuer.authorization_uri, "https://a.example");
    issuer.keys.keys(false).await.unwrap();
}

#[test]
fn only_https_or_loopback_issuers_are_accepted() {
    for (url, believed) in [
        ("https://login.example/tenant", true),
        ("http://127.0.0.1:8080", true),
        ("http://localhost/x", true),
        ("http://[::1]:80", true),
        ("http://login.example", false),
        ("ftp://login.example", false),
        ("https://", false),
        ("/no/such/file", false),
    ] {
        assert_eq!(issuer(&named(url)).is_ok(), believed, "{url}");
    }
}
