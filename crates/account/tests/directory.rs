//! The directory of accounts on a real store.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use lazuli_account::{AccountDirectory, AccountError, KeySlot, Setting, random_key};
use lazuli_concurrency::SystemClock;
use lazuli_protocol::account::{Account, Role, RoleAssignment};
use lazuli_protocol::properties::Update;
use lazuli_protocol::{Accounts, Key, ServiceKind};
use lazuli_store::{Embedded, Options, Store};

fn store(dir: &Path) -> Arc<Embedded> {
    Arc::new(
        Embedded::open(dir, Arc::new(SystemClock), Options { cache_bytes: 1 << 20, ..Options::default() })
            .unwrap(),
    )
}

async fn directory(store: &Arc<Embedded>) -> AccountDirectory {
    AccountDirectory::open(store.clone() as Arc<dyn Store>).await.unwrap()
}

fn account(name: &str) -> Account {
    let keys = vec![Key::from_bytes(vec![1; 64]), Key::from_bytes(vec![2; 64])];
    Account { name: name.into(), keys, settings: Default::default(), roles: vec![], generation: 0 }
}

fn cors_from(origin: &str) -> Update {
    let xml = format!(
        "<StorageServiceProperties><Cors><CorsRule><AllowedOrigins>{origin}</AllowedOrigins>\
         <AllowedMethods>GET</AllowedMethods><AllowedHeaders/><ExposedHeaders/><MaxAgeInSeconds>5</MaxAgeInSeconds>\
         </CorsRule></Cors></StorageServiceProperties>"
    );
    Update::parse(ServiceKind::Queue, xml.as_bytes()).unwrap()
}

fn names(accounts: &[Arc<Account>]) -> Vec<&str> {
    accounts.iter().map(|account| account.name.as_str()).collect()
}

#[tokio::test]
async fn a_change_is_in_effect_at_once_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let first = store(dir.path());
    let accounts = directory(&first).await;
    accounts.add(account("beta")).await.unwrap();
    accounts.add(account("alpha")).await.unwrap();
    let role = RoleAssignment { subject: "me".into(), service: ServiceKind::Table, role: Role::Owner };
    let changed = accounts
        .set("beta", vec![Setting::BlobVersioning(true), Setting::SetRole(role.clone())])
        .await
        .unwrap();
    assert!(changed.settings.blob_versioning);
    let key = random_key().unwrap();
    accounts.rotate_key("beta", KeySlot::Key2, key.clone()).await.unwrap();
    accounts.set_properties("beta", ServiceKind::Queue, cors_from("http://a.example")).await.unwrap();
    accounts.add(account("gone")).await.unwrap();
    accounts.remove("gone").await.unwrap();
    let secret = accounts.master_secret();

    let check = async |accounts: &AccountDirectory| {
        assert_eq!(names(&accounts.list().await.unwrap()), ["alpha", "beta"]);
        let beta = accounts.get("beta").await.unwrap().unwrap();
        assert!(beta.settings.blob_versioning);
        assert_eq!(beta.roles, std::slice::from_ref(&role));
        assert_eq!(beta.keys, [Key::from_bytes(vec![1; 64]), key.clone()]);
        let cors = &accounts.service_properties(&beta, ServiceKind::Queue).await.unwrap().cors;
        assert_eq!(cors[0].allowed_origins, ["http://a.example"]);
        assert!(accounts.service_properties(&beta, ServiceKind::Blob).await.unwrap().cors.is_empty());
        assert!(accounts.get("gone").await.unwrap().is_none());
        assert_eq!(accounts.master_secret(), secret);
    };
    check(&accounts).await;
    drop((accounts, first));
    check(&directory(&store(dir.path())).await).await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = directory(&store(dir.path())).await;
    accounts.add(account("alpha")).await.unwrap();
    let before = accounts.get("alpha").await.unwrap();
    assert!(matches!(accounts.add(account("alpha")).await, Err(AccountError::Exists(_))));
    assert!(matches!(accounts.add(account("Alpha")).await, Err(AccountError::Rejected(_))));
    assert!(matches!(accounts.remove("other").await, Err(AccountError::NotFound(_))));
    assert!(matches!(accounts.set("other", vec![]).await, Err(AccountError::NotFound(_))));
    assert!(matches!(accounts.set_keys("alpha", vec![]).await, Err(AccountError::Rejected(_))));
    let half = vec![Setting::Disabled(true), Setting::DefaultTier("lukewarm".into())];
    assert!(matches!(accounts.set("alpha", half).await, Err(AccountError::Rejected(_))));
    let orphan = accounts.set_properties("other", ServiceKind::Blob, Update::default()).await;
    assert!(matches!(orphan, Err(AccountError::NotFound(_))));
    assert_eq!(accounts.get("alpha").await.unwrap(), before);
    assert_eq!(names(&accounts.list().await.unwrap()), ["alpha"]);
}

#[tokio::test]
async fn an_account_that_is_added_again_starts_afresh() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = directory(&store(dir.path())).await;
    accounts.add(account("alpha")).await.unwrap();
    accounts.set_properties("alpha", ServiceKind::Queue, cors_from("http://a.example")).await.unwrap();
    accounts.remove("alpha").await.unwrap();
    let alpha = accounts.add(account("alpha")).await.unwrap();
    assert!(accounts.service_properties(&alpha, ServiceKind::Queue).await.unwrap().cors.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_are_all_kept_and_memory_equals_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let accounts = directory(&store).await;
    accounts.add(account("alpha")).await.unwrap();
    let changes: Vec<_> = (0..32)
        .map(|i| {
            let accounts = accounts.clone();
            tokio::spawn(async move {
                accounts.set("alpha", vec![Setting::AddEncryptionScope(format!("scope-{i}"))]).await.unwrap()
            })
        })
        .collect();
    for (i, change) in changes.into_iter().enumerate() {
        let seen = change.await.unwrap();
        assert!(seen.settings.encryption_scopes.contains(&format!("scope-{i}")));
    }
    let in_memory = accounts.get("alpha").await.unwrap().unwrap();
    assert_eq!(in_memory.settings.encryption_scopes.len(), 32);
    assert_eq!(directory(&store).await.get("alpha").await.unwrap().unwrap(), in_memory);
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_memory_and_store_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let accounts = directory(&store).await;
    accounts.add(account("alpha")).await.unwrap();
    for i in 0..50 {
        let change = accounts.set("alpha", vec![Setting::AddEncryptionScope(format!("scope-{i}"))]);
        // Polled once, so that it has begun, then dropped.
        let mut change = Box::pin(change);
        std::future::poll_fn(|cx| {
            let _ = change.as_mut().poll(cx);
            std::task::Poll::Ready(())
        })
        .await;
        drop(change);
    }
    // This change waits its turn behind the ones that nobody waits for.
    accounts.set("alpha", vec![Setting::BlobVersioning(true)]).await.unwrap();
    let in_memory = accounts.get("alpha").await.unwrap().unwrap();
    assert_eq!(in_memory.settings.encryption_scopes.len(), 50);
    assert_eq!(directory(&store).await.get("alpha").await.unwrap().unwrap(), in_memory);
}

#[tokio::test]
async fn more_accounts_than_one_page_are_all_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let accounts = directory(&store).await;
    let added: Vec<_> = (0..300)
        .map(|i| {
            let accounts = accounts.clone();
            tokio::spawn(async move { accounts.add(account(&format!("account{i:03}"))).await.map(drop) })
        })
        .collect();
    for add in added {
        add.await.unwrap().unwrap();
    }
    assert_eq!(directory(&store).await.list().await.unwrap().len(), 300);
}
