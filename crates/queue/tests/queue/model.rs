//! Random operations, compared with a model in memory.

use std::collections::HashMap;

use lazuli_concurrency::Pace;
use rand::prelude::*;
use rand::rngs::StdRng;

use crate::support::{ListedMessage, Server, count, delete, get, put, start, update};

const STEPS: usize = 600;

/// A message that was not deleted. Times are in seconds since the start.
#[derive(Clone, Debug)]
struct ModelMessage {
    id: String,
    text: String,
    receipt: String,
    /// The time at which the message becomes visible, the step that set it, and the index within the step.
    visible: (u64, usize, usize),
    expires: u64,
    dequeue_count: u32,
}

#[derive(Default)]
struct Model {
    now: u64,
    step: usize,
    messages: HashMap<String, ModelMessage>,
    /// Every receipt that was given out, with its message.
    receipts: Vec<ListedMessage>,
}

impl Model {
    fn alive(&self) -> impl Iterator<Item = &ModelMessage> {
        self.messages.values().filter(|message| message.expires > self.now)
    }

    fn visible(&self, max: usize) -> Vec<ModelMessage> {
        let mut visible: Vec<_> =
            self.alive().filter(|message| message.visible.0 <= self.now).cloned().collect();
        visible.sort_unstable_by_key(|message| message.visible);
        visible.truncate(max);
        visible
    }

    /// Returns the message if the receipt is its current one.
    fn with_current_receipt(&self, shown: &ListedMessage) -> Option<&ModelMessage> {
        self.alive()
            .find(|message| message.id == shown.id && Some(&message.receipt) == shown.receipt.as_ref())
    }

    fn record(&mut self, message: ModelMessage) {
        let (id, receipt) = (message.id.clone(), Some(message.receipt.clone()));
        self.receipts.push(ListedMessage { id, receipt, ..ListedMessage::default() });
        self.messages.insert(message.id.clone(), message);
    }
}

async fn step(server: &Server, model: &mut Model, rng: &mut StdRng) {
    model.step += 1;
    let (now, step) = (model.now, model.step);
    match rng.random_range(0..100) {
        0..35 => {
            let wait = if rng.random_bool(0.7) { 0 } else { rng.random_range(1..20) };
            let life = if rng.random_bool(0.7) { 1000 } else { rng.random_range(wait + 1..wait + 30) };
            let text = format!("text {step}");
            let query = format!("?visibilitytimeout={wait}&messagettl={life}");
            let sent = put(server, &text, &query).await;
            model.record(ModelMessage {
                id: sent.id,
                text,
                receipt: sent.receipt.unwrap(),
                visible: (now + wait, step, 0),
                expires: now + life,
                dequeue_count: 0,
            });
        }
        35..60 => {
            let (max, timeout) = (rng.random_range(1..=5), rng.random_range(1..=15));
            let got = get(server, &format!("?numofmessages={max}&visibilitytimeout={timeout}")).await;
            let expected = model.visible(max);
            assert_eq!(got.len(), expected.len(), "step {step}");
            for (index, (got, expected)) in got.into_iter().zip(expected).enumerate() {
                let count = expected.dequeue_count + 1;
                assert_eq!((&got.id, got.text.as_ref()), (&expected.id, Some(&expected.text)), "step {step}");
                assert_eq!(got.dequeue_count, Some(count));
                let visible = (now + timeout, step, index);
                model.record(ModelMessage {
                    receipt: got.receipt.unwrap(),
                    visible,
                    dequeue_count: count,
                    ..expected
                });
            }
        }
        60..68 => {
            let max = rng.random_range(1..=8);
            let seen = get(server, &format!("?peekonly=true&numofmessages={max}")).await;
            let seen: Vec<_> = seen.into_iter().map(|seen| (seen.id, seen.dequeue_count)).collect();
            let expected = model.visible(max).into_iter();
            let expected: Vec<_> =
                expected.map(|message| (message.id, Some(message.dequeue_count))).collect();
            assert_eq!(seen, expected, "step {step}");
        }
        68..80 => {
            let Some(shown) = model.receipts.choose(rng).cloned() else { return };
            let expected = model.with_current_receipt(&shown).cloned();
            let reply = delete(server, &shown).await;
            match expected {
                Some(message) => {
                    reply.expect(204);
                    model.messages.remove(&message.id);
                }
                None => drop(reply.refused(404, "MessageNotFound")),
            }
        }
        80..90 => {
            let Some(shown) = model.receipts.choose(rng).cloned() else { return };
            let timeout = rng.random_range(0..15);
            let text = rng.random_bool(0.5).then(|| format!("text {step}"));
            let expected = model.with_current_receipt(&shown).cloned();
            let reply = update(server, &shown, timeout, text.as_deref()).await;
            match expected {
                // Each step is slightly later than the previous one.
                Some(message) if now + u64::from(timeout) < message.expires => {
                    let receipt = reply.expect(204).header("x-ms-popreceipt").unwrap().to_owned();
                    let visible = (now + u64::from(timeout), step, 0);
                    let text = text.unwrap_or(message.text.clone());
                    model.record(ModelMessage { receipt, visible, text, ..message });
                }
                Some(_) => drop(reply.refused(400, "InvalidQueryParameterValue")),
                None => drop(reply.refused(404, "MessageNotFound")),
            }
        }
        90..97 => {
            let seconds = rng.random_range(1..10);
            server.advance(seconds);
            model.now += seconds;
        }
        97 => assert_eq!(count(server).await, model.alive().count() as u64, "step {step}"),
        98 => drop(server.service.expire(Pace::FULL).await.unwrap()),
        _ => {
            if rng.random_bool(0.2) {
                server.delete("/jobs/messages", "").await.expect(204);
                model.messages.clear();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_behaves_like_a_list_in_memory() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut server = start().await;
    let mut model = Model::default();
    for n in 1..=STEPS {
        step(&server, &mut model, &mut rng).await;
        if n % 150 == 0 {
            server = server.restart().await;
        }
    }
    assert_eq!(count(&server).await, model.alive().count() as u64);
}
