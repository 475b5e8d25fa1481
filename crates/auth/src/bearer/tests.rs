use super::*;
use lazuli_protocol::account::Settings;

/// Created by `tests/vectors/generate.py`.
#[derive(Deserialize)]
struct Vectors {
    jwks: serde_json::Value,
    tokens: Vec<Vector>,
    by_sub: String,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    token: String,
    error: Option<String>,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../../tests/vectors/tokens.json")).unwrap()
}

fn issuer(keys: impl KeySource + 'static) -> Issuer {
    Issuer {
        name: "https://issuer.example/tenant".into(),
        audiences: vec!["my-client".into()],
        authorization_uri: String::new(),
        keys: Arc::new(keys),
    }
}

fn verify(issuer: &Issuer, token: &str) -> Result<Subject, TokenError> {
    let account = Account {
        name: "devstoreaccount1".into(),
        generation: 0,
        keys: vec![],
        settings: Settings::default(),
        roles: vec![],
    };
    let now = Timestamp::from_unix_seconds(1_779_278_400); // 2026-05-20T12:00:00Z
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(issuer.verify(token, &account, ServiceKind::Blob, now))
}

#[test]
fn tokens_are_accepted_or_refused_for_the_expected_reason() {
    let vectors = vectors();
    let issuer = issuer(StaticKeys::new(KeySet::parse(vectors.jwks.to_string().as_bytes()).unwrap()));
    for Vector { name, token, error } in vectors.tokens {
        let result = verify(&issuer, &token);
        assert_eq!(result.as_ref().err().map(|e| format!("{e:?}")), error, "{name}");
        if let Ok(subject) = result {
            assert_eq!(subject.id, "11111111-2222-3333-4444-555555555555", "{name}");
            assert_eq!(subject.tenant.as_deref(), Some("66666666-7777-8888-9999-000000000000"), "{name}");
        }
    }
    let by_sub = verify(&issuer, &vectors.by_sub).unwrap();
    assert_eq!(by_sub, Subject { id: "subject".into(), tenant: None });
}

#[test]
fn key_file_is_read_again_if_a_key_is_missing() {
    let vectors = vectors();
    let file = tempfile::NamedTempFile::new().unwrap();
    let earlier = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    let write = |text: &str| std::fs::write(file.path(), text).unwrap();
    write("{\"keys\":[]}");
    file.as_file().set_modified(earlier).unwrap();
    let issuer = issuer(FileKeys::new(file.path()));
    let token = &vectors.tokens[0].token;
    assert_eq!(verify(&issuer, token), Err(TokenError::UnknownKey));
    write(&vectors.jwks.to_string());
    assert!(verify(&issuer, token).is_ok());
    // Known keys stay valid while no key is missing.
    write("not json");
    assert!(verify(&issuer, token).is_ok());
}

#[test]
fn key_that_is_removed_from_the_file_is_no_longer_accepted() {
    let vectors = vectors();
    let file = tempfile::NamedTempFile::new().unwrap();
    let now = std::time::SystemTime::now();
    let write = |text: &str, age| {
        std::fs::write(file.path(), text).unwrap();
        file.as_file().set_modified(now - std::time::Duration::from_secs(age)).unwrap();
    };
    write(&vectors.jwks.to_string(), 60);
    let issuer = issuer(FileKeys::watched(file.path()));
    let token = &vectors.tokens[0].token;
    assert!(verify(&issuer, token).is_ok());
    write("half a file", 50);
    assert!(verify(&issuer, token).is_ok());
    write("{\"keys\":[]}", 40);
    assert_eq!(verify(&issuer, token), Err(TokenError::UnknownKey));
}

#[tokio::test]
async fn slow_key_file_does_not_block_other_requests_of_the_worker() {
    use std::sync::mpsc;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jwks.json");
    // Reading a pipe takes until its writer has closed it.
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (free, worker_is_free) = mpsc::channel();
    let jwks = vectors().jwks.to_string();
    let writer = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            // If the worker is blocked, write anyway, so that the test ends.
            let was_free = worker_is_free.recv_timeout(std::time::Duration::from_secs(10)).is_ok();
            std::io::Write::write_all(&mut pipe, jwks.as_bytes()).unwrap();
            was_free
        }
    });
    let source = FileKeys::new(path);
    let other = async { free.send(()).unwrap() };
    let (keys, ()) = tokio::join!(source.keys(false), other);
    assert!(keys.is_ok() && writer.join().unwrap(), "the other request waited for the file");
}

#[test]
fn token_is_refused_if_the_keys_are_unavailable() {
    let missing = issuer(FileKeys::new("/nowhere/jwks.json"));
    assert_eq!(verify(&missing, &vectors().tokens[0].token), Err(TokenError::Keys));
}

#[test]
fn discovery_document_names_issuer_and_keys() {
    let document =
        br#"{"issuer":"https://i","jwks_uri":"https://i/keys","token_endpoint":"https://i/token"}"#;
    let discovery = Discovery::parse(document).unwrap();
    assert_eq!((discovery.issuer.as_str(), discovery.jwks_uri.as_str()), ("https://i", "https://i/keys"));
    assert!(Discovery::parse(b"{}").is_err());
    assert!(Discovery::parse(&vec![b' '; 2 << 20]).is_err());
}
