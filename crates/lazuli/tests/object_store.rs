//! The integration suite of the `object_store` crate, which all its backends must pass, against the real
//! program.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use lazuli_account::DEVELOPMENT_KEY;
use lazuli_protocol::ServiceKind;
use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::integration::{
    copy_if_not_exists, get_opts, list_paginated, list_uses_directories_correctly, list_with_delimiter,
    list_with_offset_exclusivity, multipart, multipart_out_of_order, multipart_race_condition,
    put_get_attributes, put_get_delete_list, put_opts, rename_and_copy, stream_get,
};
use object_store::path::Path;
use object_store::{Error, ObjectStore, PutMode};
use support::{DEVELOPMENT_ACCOUNT, Server};

fn store(server: &Server) -> MicrosoftAzure {
    let reply = server.call(ServiceKind::Blob, "PUT", "/suite?restype=container", "");
    assert_eq!(reply.status, 201, "{}", reply.text());
    MicrosoftAzureBuilder::new()
        .with_account(DEVELOPMENT_ACCOUNT)
        .with_access_key(DEVELOPMENT_KEY)
        .with_endpoint(server.ready["blob"].clone())
        .with_allow_http(true)
        .with_container_name("suite")
        .build()
        .unwrap()
}

#[tokio::test]
async fn the_integration_suite_passes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let store = store(&server);
    put_get_delete_list(&store).await;
    list_with_offset_exclusivity(&store).await;
    list_paginated(&store, &store).await;
    get_opts(&store).await;
    list_uses_directories_correctly(&store).await;
    list_with_delimiter(&store).await;
    rename_and_copy(&store).await;
    copy_if_not_exists(&store).await;
    stream_get(&store).await;
    put_opts(&store, true).await;
    multipart(&store, &store).await;
    multipart_race_condition(&store, false).await;
    multipart_out_of_order(&store).await;
    put_get_attributes(&store).await;
}

#[tokio::test]
async fn exactly_one_of_many_conditional_creates_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let store = Arc::new(store(&server));
    let path = Path::from("once");
    let attempts = (0..32).map(|i: u32| {
        let (store, path) = (store.clone(), path.clone());
        tokio::spawn(async move {
            let put = store.put_opts(&path, i.to_string().into(), PutMode::Create.into()).await;
            assert!(matches!(put, Ok(_) | Err(Error::AlreadyExists { .. })), "{put:?}");
            put.is_ok()
        })
    });
    let mut winners = 0;
    for attempt in attempts.collect::<Vec<_>>() {
        winners += u32::from(attempt.await.unwrap());
    }
    assert_eq!(winners, 1);
}
