//! Random operations and queries, compared with a model in memory.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

use crate::support::{JSON, Server, at, encoded, fill, next, start_with_runs, values};

const PARTITIONS: [&str; 4] = ["", "a", "b", "ä"];
const ROWS: [&str; 6] = ["", "1", "10", "2", "😀", "\u{FF61}"];
const NAMES: [&str; 3] = ["X", "Y", "Z"];
const OPERATIONS: usize = 1500;
/// Entities that never change, between the others: enough for queries to be answered from memory.
const FILLERS: usize = 100;
/// One of this many operations is a query.
const QUERY_INTERVAL: usize = 3;
const STALE: &str = "W/\"datetime'2012-06-15T22%3A51%3A44.9662825Z'\"";

/// The PartitionKey and the RowKey of an entity, ordered by UTF-16 code units like in the service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EntityKey(String, String);

impl Ord for EntityKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let partition = self.0.encode_utf16().cmp(other.0.encode_utf16());
        partition.then_with(|| self.1.encode_utf16().cmp(other.1.encode_utf16()))
    }
}

impl PartialOrd for EntityKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Debug)]
struct Stored {
    tag: String,
    properties: BTreeMap<String, Value>,
}

type Model = BTreeMap<EntityKey, Stored>;

/// Returns a random Int32, Boolean or String.
fn random_value(rng: &mut StdRng) -> Value {
    match rng.random_range(0..3) {
        0 => json!(rng.random_range(-2..3)),
        1 => json!(rng.random_bool(0.5)),
        _ => json!(["", "b", "it's", "ä", "😀"][rng.random_range(0..5)]),
    }
}

fn random_properties(rng: &mut StdRng) -> BTreeMap<String, Value> {
    let names: Vec<_> = NAMES.into_iter().filter(|_| rng.random_bool(0.5)).collect();
    names.into_iter().map(|name| (name.to_owned(), random_value(rng))).collect()
}

/// A filter: its text, and the rule that decides which entities match.
type Filter = (String, Box<dyn Fn(&EntityKey, &Stored) -> bool>);

fn random_filter(rng: &mut StdRng, depth: usize) -> Filter {
    match rng.random_range(0..if depth == 0 { 4 } else { 8 }) {
        0 => comparison(rng, "PartitionKey", &PARTITIONS, |key| key.0.clone()),
        1 => comparison(rng, "RowKey", &ROWS, |key| key.1.clone()),
        2 | 3 => {
            let name = NAMES[rng.random_range(0..NAMES.len())].to_owned();
            let (literal, operator) = (random_value(rng), random_operator(rng));
            let text = format!("{name} {operator} {}", shown(&literal));
            (
                text,
                Box::new(move |_, stored| {
                    stored.properties.get(&name).is_some_and(|v| holds(v, operator, &literal))
                }),
            )
        }
        4 => {
            let (text, rule) = random_filter(rng, depth - 1);
            (format!("not ({text})"), Box::new(move |key, stored| !rule(key, stored)))
        }
        choice => {
            let ((a, left), (b, right)) = (random_filter(rng, depth - 1), random_filter(rng, depth - 1));
            match choice {
                5 => (format!("({a}) and ({b})"), Box::new(move |k, s| left(k, s) && right(k, s))),
                _ => (format!("({a}) or ({b})"), Box::new(move |k, s| left(k, s) || right(k, s))),
            }
        }
    }
}

fn comparison(rng: &mut StdRng, name: &str, keys: &[&str], of: fn(&EntityKey) -> String) -> Filter {
    let (literal, operator) = (json!(keys[rng.random_range(0..keys.len())]), random_operator(rng));
    let text = format!("{name} {operator} {}", shown(&literal));
    (text, Box::new(move |key, _| holds(&json!(of(key)), operator, &literal)))
}

fn random_operator(rng: &mut StdRng) -> &'static str {
    ["eq", "ne", "lt", "le", "gt", "ge"][rng.random_range(0..6)]
}

fn shown(literal: &Value) -> String {
    literal.as_str().map_or_else(|| literal.to_string(), |text| format!("'{}'", text.replace('\'', "''")))
}

fn holds(value: &Value, operator: &str, literal: &Value) -> bool {
    let ordering = match (value, literal) {
        (Value::String(a), Value::String(b)) => a.encode_utf16().cmp(b.encode_utf16()),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => a.as_i64().cmp(&b.as_i64()),
        _ => return false,
    };
    match operator {
        "eq" => ordering.is_eq(),
        "ne" => ordering.is_ne(),
        "lt" => ordering.is_lt(),
        "le" => ordering.is_le(),
        "gt" => ordering.is_gt(),
        _ => ordering.is_ge(),
    }
}

/// Returns the expected status and error code of a write.
fn expected(model: &Model, key: &EntityKey, verb: &str, condition: &str) -> (u16, &'static str) {
    match (verb, condition, model.get(key)) {
        ("POST", _, Some(_)) => (409, "EntityAlreadyExists"),
        ("POST", ..) => (201, ""),
        ("DELETE", "", _) => (400, "MissingRequiredHeader"),
        (_, "", _) | (_, "*", Some(_)) => (204, ""),
        (_, _, None) => (404, "ResourceNotFound"),
        (_, tag, Some(stored)) if stored.tag == tag => (204, ""),
        _ => (412, "UpdateConditionNotSatisfied"),
    }
}

async fn write(server: &Server, model: &mut Model, rng: &mut StdRng, old_tags: &mut Vec<String>) {
    let key = EntityKey(
        PARTITIONS[rng.random_range(0..PARTITIONS.len())].to_owned(),
        ROWS[rng.random_range(0..ROWS.len())].to_owned(),
    );
    let verb = ["POST", "PUT", "MERGE", "DELETE"][rng.random_range(0..4)];
    let current = model.get(&key).map(|stored| stored.tag.clone());
    let condition = match rng.random_range(0..4) {
        _ if verb == "POST" => String::new(),
        0 => String::new(),
        1 => "*".into(),
        2 => current.unwrap_or_else(|| STALE.into()),
        _ => {
            old_tags.get(rng.random_range(0..old_tags.len().max(1))).cloned().unwrap_or_else(|| STALE.into())
        }
    };
    let properties = random_properties(rng);
    let mut body: Map<String, Value> = properties.clone().into_iter().collect();
    if verb == "POST" {
        body.insert("PartitionKey".into(), json!(key.0));
        body.insert("RowKey".into(), json!(key.1));
    }
    let headers =
        if condition.is_empty() { JSON.to_owned() } else { format!("{JSON}\nif-match: {condition}") };
    let target = if verb == "POST" { "/people".to_owned() } else { at(&encoded(&key.0), &encoded(&key.1)) };
    let body = if verb == "DELETE" { String::new() } else { Value::Object(body).to_string() };
    let reply = server.call(verb, &target, &headers, body).await;
    assert_eq!(reply.outcome(), expected(model, &key, verb, &condition), "{verb} {key:?} {condition}");
    if reply.status.as_u16() >= 300 {
        return;
    }
    let old = model.remove(&key);
    old_tags.extend(old.as_ref().map(|old| old.tag.clone()));
    if verb != "DELETE" {
        let kept = old.filter(|_| verb == "MERGE").map(|old| old.properties).unwrap_or_default();
        let properties = kept.into_iter().chain(properties).collect();
        model.insert(key, Stored { tag: reply.etag().to_owned(), properties });
    }
}

async fn query(server: &Server, model: &Model, rng: &mut StdRng) {
    let (text, rule) = random_filter(rng, 3);
    let top = rng.random_range(1..60);
    let selected: Vec<_> = NAMES.into_iter().filter(|_| rng.random_bool(0.5)).collect();
    let select = if selected.is_empty() { NAMES.to_vec() } else { selected };
    let target = format!(
        "/people()?$filter={}&$top={top}&$select={}",
        encoded(&text),
        encoded(
            &["PartitionKey", "RowKey"]
                .into_iter()
                .chain(select.iter().copied())
                .collect::<Vec<_>>()
                .join(",")
        )
    );
    let (mut page, mut found) = (Some(target.clone()), vec![]);
    while let Some(this) = page {
        let reply = server.get(&this, "accept: application/json;odata=nometadata").await.expect(200);
        assert!(values(&reply).len() <= top, "{target}");
        found.extend(values(&reply));
        page = next(&target, &reply);
    }
    let matching = model.iter().filter(|(key, stored)| rule(key, stored));
    let expected = matching.map(|(key, stored)| {
        let mut entity = json!({"PartitionKey": key.0, "RowKey": key.1});
        for name in &select {
            entity[name] = stored.properties.get(*name).cloned().unwrap_or_default();
        }
        entity
    });
    assert_eq!(found, expected.collect::<Vec<_>>(), "{text} {select:?}");
}

#[tokio::test]
async fn table_behaves_like_a_map_under_random_operations() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let server = start_with_runs().await;
    let (mut model, mut old_tags) = (Model::new(), vec![]);
    for partition in ["a", "b"] {
        let rows = || (0..FILLERS).map(|row| format!("1-{row:03}"));
        fill(&server, partition, rows()).await;
        let stored = |row| Stored { tag: String::new(), properties: [("F".into(), json!(row))].into() };
        model.extend(rows().enumerate().map(|(row, key)| (EntityKey(partition.into(), key), stored(row))));
    }
    for _ in 0..OPERATIONS {
        if rng.random_range(0..QUERY_INTERVAL) == 0 {
            query(&server, &model, &mut rng).await;
        } else {
            write(&server, &mut model, &mut rng, &mut old_tags).await;
        }
        // Repeat a query, which may now be answered from memory.
        if rng.random_range(0..QUERY_INTERVAL) == 0 {
            query(&server, &model, &mut rng).await;
        }
    }
    assert!(!model.is_empty() && !old_tags.is_empty());
}
