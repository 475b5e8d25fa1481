//! Issuers by URL and by file. The issuer on the web is one on this machine.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","y":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}"#;

/// Answers every request, and counts them.
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
async fn an_issuer_by_url_is_asked_when_needed_and_not_too_often() {
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
async fn a_missed_key_and_the_passing_of_time_are_reasons_to_ask_again() {
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
        // Keys that are held do not wait for newer ones.
        let all = async {
            while requests.load(Ordering::SeqCst) < asked {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), all).await.unwrap();
        assert_eq!(requests.load(Ordering::SeqCst), asked, "{wait:?} {refresh}");
    }
}

#[tokio::test]
async fn an_issuer_that_fails_or_is_another_has_no_keys() {
    for (status, name) in [("500 Oops", None), ("200 OK", Some("https://other.example"))] {
        let (url, requests) = web(status, name).await;
        let issuer = issuer(&named(&url)).unwrap();
        assert!(issuer.keys.keys(false).await.is_err(), "{status}");
        assert!(issuer.keys.keys(true).await.is_err(), "{status}");
        assert_eq!(requests.load(Ordering::SeqCst), 1, "it is not asked again at once");
    }
}

#[tokio::test]
async fn an_issuer_that_does_not_answer_keeps_nobody_whose_key_is_held() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", silent.local_addr().unwrap());
    let source = WebKeys::new(IssuerKeys::Keys(url.parse().unwrap()));

    let begun = Instant::now();
    let nobody = tokio::join!(source.keys(false), source.keys(false));
    assert!(nobody.0.is_err() && nobody.1.is_err());
    assert!(begun.elapsed() < 2 * WAIT, "one does not wait behind the other");

    let long_ago = Instant::now().checked_sub(FRESH).unwrap();
    let keys = KeySet::parse(KEYS.as_bytes()).unwrap();
    source.0.held().keys = Some((long_ago, Arc::new(keys)));
    let begun = Instant::now();
    assert!(source.keys(false).await.is_ok());
    assert!(begun.elapsed() < WAIT / 2);
}

#[tokio::test]
async fn an_issuer_by_file_has_its_keys_in_a_file_beside_it() {
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
fn only_https_or_this_machine_is_believed() {
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
