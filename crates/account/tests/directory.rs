//! The directory of accounts on a real store.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lazuli_account::{
    AccountDirectory, AccountError, DEVELOPMENT_ACCOUNT, KeySlot, Ownership, Setting, random_key,
};
use lazuli_concurrency::{ManualClock, Span, SystemClock, Timestamp};
use lazuli_protocol::account::{Account, Role, RoleAssignment};
use lazuli_protocol::properties::{ServiceProperties, Update};
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
async fn change_takes_effect_at_once_and_survives_a_restart() {
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
async fn removed_account_can_be_restored_for_seven_days_and_then_its_data_is_orphaned() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(1_767_323_045)));
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let store: Arc<Embedded> = Arc::new(Embedded::open(dir.path(), clock.clone(), options).unwrap());
    let accounts = directory(&store).await;
    let alpha = accounts.add(account("alpha")).await.unwrap();
    accounts.set_properties("alpha", ServiceKind::Queue, cors_from("http://a.example")).await.unwrap();
    let owned =
        async |accounts: &AccountDirectory| accounts.ownership("alpha", alpha.generation).await.unwrap();
    assert_eq!(owned(&accounts).await, Ownership::Owned);
    let kept_until = accounts.retire("alpha").await.unwrap();
    assert_eq!(owned(&accounts).await, Ownership::KeptUntil(kept_until));
    assert!(accounts.get("alpha").await.unwrap().is_none());

    // Another account of that name owns other data.
    let other = accounts.add(account("alpha")).await.unwrap();
    assert_eq!(accounts.ownership("alpha", other.generation).await.unwrap(), Ownership::Owned);
    assert_eq!(owned(&accounts).await, Ownership::KeptUntil(kept_until));
    assert!(matches!(accounts.restore_retired("alpha", None).await, Err(AccountError::NameInUse(_))));
    accounts.remove("alpha").await.unwrap();
    assert_eq!(accounts.ownership("alpha", other.generation).await.unwrap(), Ownership::Orphaned);

    clock.advance(Span::seconds(7 * 24 * 3600 - 60));
    accounts.forget_expired().await.unwrap();
    assert!(!accounts.expiry_due());
    assert_eq!(accounts.retired().await.unwrap().len(), 1);
    let restored = accounts.restore_retired("alpha", None).await.unwrap();
    assert_eq!(restored, alpha);
    let cors = &accounts.service_properties(&alpha, ServiceKind::Queue).await.unwrap().cors;
    assert_eq!(cors[0].allowed_origins, ["http://a.example"]);
    assert_eq!(owned(&accounts).await, Ownership::Owned);
    assert!(matches!(
        accounts.restore_retired("alpha", None).await,
        Err(AccountError::NameInUse(_) | AccountError::NotRetired(_))
    ));

    accounts.retire("alpha").await.unwrap();
    // A restart knows of it.
    drop((accounts, store));
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let store: Arc<Embedded> = Arc::new(Embedded::open(dir.path(), clock.clone(), options).unwrap());
    let accounts = directory(&store).await;
    clock.advance(Span::seconds(7 * 24 * 3600 - 60));
    assert_eq!(accounts.forget_expired().await.unwrap(), 0);
    clock.advance(Span::seconds(61));
    assert!(accounts.expiry_due());
    assert_eq!(owned(&accounts).await, Ownership::Orphaned);
    assert!(matches!(accounts.restore_retired("alpha", None).await, Err(AccountError::NotRetired(_))));
    assert_eq!(accounts.forget_expired().await.unwrap(), 1);
    assert!(!accounts.expiry_due() && accounts.retired().await.unwrap().is_empty());
}

#[tokio::test]
async fn removal_of_the_development_account_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = directory(&store(dir.path())).await;
    assert!(!accounts.development_account_was_removed().await.unwrap());
    accounts.add(account(DEVELOPMENT_ACCOUNT)).await.unwrap();
    accounts.retire(DEVELOPMENT_ACCOUNT).await.unwrap();
    accounts.restore_retired(DEVELOPMENT_ACCOUNT, None).await.unwrap();
    accounts.remove(DEVELOPMENT_ACCOUNT).await.unwrap();
    assert!(accounts.development_account_was_removed().await.unwrap());
}

#[tokio::test]
async fn invalid_changes_are_refused_and_change_nothing() {
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
async fn account_that_is_added_again_has_default_properties() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = directory(&store(dir.path())).await;
    accounts.add(account("alpha")).await.unwrap();
    accounts.set_properties("alpha", ServiceKind::Queue, cors_from("http://a.example")).await.unwrap();
    accounts.remove("alpha").await.unwrap();
    let alpha = accounts.add(account("alpha")).await.unwrap();
    assert!(accounts.service_properties(&alpha, ServiceKind::Queue).await.unwrap().cors.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_are_all_kept_and_the_cache_equals_the_store() {
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
async fn cache_equals_the_store_after_callers_have_gone_away() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let accounts = directory(&store).await;
    accounts.add(account("alpha")).await.unwrap();
    for i in 0..50 {
        let change = accounts.set("alpha", vec![Setting::AddEncryptionScope(format!("scope-{i}"))]);
        // Poll the change once, so that it has begun, then drop it.
        let mut change = Box::pin(change);
        std::future::poll_fn(|cx| {
            let _ = change.as_mut().poll(cx);
            std::task::Poll::Ready(())
        })
        .await;
        drop(change);
    }
    // This change waits for the changes whose callers have gone.
    accounts.set("alpha", vec![Setting::BlobVersioning(true)]).await.unwrap();
    let in_memory = accounts.get("alpha").await.unwrap().unwrap();
    assert_eq!(in_memory.settings.encryption_scopes.len(), 50);
    assert_eq!(directory(&store).await.get("alpha").await.unwrap().unwrap(), in_memory);
}

#[tokio::test]
async fn all_accounts_are_read_if_they_need_several_scans() {
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

#[tokio::test]
async fn reserved_name_is_taken_and_the_account_appears_with_all_of_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let first = store(dir.path());
    let accounts = directory(&first).await;
    accounts.add(account("alpha")).await.unwrap();
    assert!(matches!(accounts.reserve("alpha").await, Err(AccountError::Exists(_))));
    assert!(matches!(accounts.reserve("No").await, Err(AccountError::Rejected(_))));
    let reserved = accounts.reserve("beta").await.unwrap();
    let generation = reserved.generation();
    assert!(matches!(accounts.reserve("beta").await, Err(AccountError::Restoring(_))));
    assert!(matches!(accounts.add(account("beta")).await, Err(AccountError::Restoring(_))));
    assert!(accounts.is_reserved("beta", generation) && !accounts.is_reserved("beta", generation + 1));
    assert_eq!(names(&accounts.list().await.unwrap()), ["alpha"]);

    let mut properties = ServiceProperties::default();
    properties.apply(cors_from("http://a.example"));
    let all = BTreeMap::from([(ServiceKind::Queue, properties.clone())]);
    let added = accounts.add_reserved(reserved, account("other"), all).await.unwrap();
    assert_eq!((added.name.as_str(), added.generation), ("beta", generation));
    assert!(!accounts.is_reserved("beta", generation));
    let found = accounts.properties("beta", ServiceKind::Queue).await.unwrap();
    assert_eq!(*found, properties);

    let abandoned = accounts.reserve("gamma").await.unwrap();
    assert!(abandoned.generation() > generation);
    drop(abandoned);
    accounts.add(account("gamma")).await.unwrap();
    drop(accounts);
    first.close();
    drop(first);
    let accounts = directory(&store(dir.path())).await;
    assert_eq!(names(&accounts.list().await.unwrap()), ["alpha", "beta", "gamma"]);
    assert_eq!(*accounts.properties("beta", ServiceKind::Queue).await.unwrap(), properties);
}
