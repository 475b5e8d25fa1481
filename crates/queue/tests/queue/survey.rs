//! The look at messages for operators, and the events about consumers.

use std::sync::{Arc, Mutex};

use lazuli_protocol::watch::{Interest, MessageEvent, Observer, RequestEvent, RequestWatch};
use lazuli_queue::{MessageState, QueueService};
use lazuli_testing::ACCOUNT;

use crate::support::{get_one, put, start};

const QUEUE: &str = "jobs";

#[tokio::test]
async fn survey_lists_visible_and_invisible_messages_without_counting() {
    let server = start().await;
    put(&server, "first", "").await;
    put(&server, "second", "").await;
    put(&server, "scheduled", "?visibilitytimeout=600").await;
    let got = get_one(&server, "?visibilitytimeout=60").await;
    let account = server.accounts.get(ACCOUNT).await.unwrap().unwrap();
    let survey = async |state| server.service.survey(&account, QUEUE, state, 10).await.unwrap();
    let (visible, more) = survey(MessageState::Visible).await;
    let texts: Vec<_> = visible.iter().map(|message| &*message.text).collect();
    assert_eq!((texts, more), (vec!["second"], false));
    for _ in 0..2 {
        let (invisible, _) = survey(MessageState::Invisible).await;
        let seen: Vec<_> = invisible.iter().map(|it| (&*it.text, it.dequeue_count)).collect();
        assert_eq!(seen, [("first", 1), ("scheduled", 0)]);
        assert_eq!(Some(&invisible[0].receipt), got.receipt.as_ref(), "the receipt of the holder");
        assert_eq!(invisible[0].id, got.id);
    }
    let (one, more) = server.service.survey(&account, QUEUE, MessageState::Invisible, 1).await.unwrap();
    assert_eq!((one.len(), more), (1, true));
}

#[derive(Default)]
struct Recorder(Mutex<Vec<MessageEvent>>);

impl Observer for Recorder {
    fn answered(&self, _: &RequestEvent) {}

    fn ended(&self, _: Box<RequestEvent>) {}

    fn got(&self, event: MessageEvent) {
        self.0.lock().unwrap().push(event);
    }
}

#[tokio::test]
async fn consumers_are_announced_only_while_an_observer_is_interested() {
    let watch = Arc::new(RequestWatch::default());
    let (recorder, of_server) = (Arc::new(Recorder::default()), watch.clone());
    watch.observe(recorder.clone());
    let server = lazuli_testing::start(lazuli_protocol::ServiceKind::Queue, move |parts| {
        QueueService::new(parts.store, parts.accounts).with_watch(of_server.clone())
    })
    .await;
    server.put(&format!("/{QUEUE}"), "", "").await.expect(201);
    put(&server, "a", "").await;
    put(&server, "b", "").await;
    get_one(&server, "").await;
    assert!(recorder.0.lock().unwrap().is_empty());
    watch.set_interest(Interest::WRITES);
    let got = get_one(&server, "").await;
    let events = recorder.0.lock().unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!((&*events[0].queue, &events[0].message, events[0].dequeue_count), (QUEUE, &got.id, 1));
}
