//! Entry points for fuzzing. Each takes bytes that a client could send, and must not panic. Each returns
//! whether the bytes are valid, and [`seeds`] has valid bytes for each.

pub mod seeds;

use lazuli_concurrency::Stamp;
use lazuli_protocol::{Operation, Query, Version};

use crate::batch::multipart::{self, BatchContents};
use crate::entity::Entity;
use crate::filter::Filter;
use crate::filter::evaluate::FoundEntity;
use crate::filter::range::ScanRanges;
use crate::json::parse;
use crate::json::render::{Metadata, Placement, Renderer};
use crate::keys::{Keys, partition_key, row_key};
use crate::value::Value;
use crate::write::Write;

/// Parses the body of a write. If that succeeds, the entity must round-trip through JSON.
pub fn entity(data: &[u8]) -> bool {
    let _ = parse::table_name(data);
    let Ok(sent) = parse::entity(data) else { return false };
    let renderer = Renderer { metadata: Metadata::Minimal, endpoint: "http://h", account: "a", table: "t" };
    let mut json = Vec::new();
    let keys = Keys::default();
    renderer.entity(&mut json, Placement::Alone, (&keys, Stamp::from_ticks(1), &sent.entity), None);
    let again = parse::entity(&json).map(|again| again.entity.encode());
    assert_eq!(again, Ok(sent.entity.encode()), "{:?}", String::from_utf8_lossy(&json));
    true
}

/// Parses the address of an entity or a table.
pub fn address(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    crate::address::keys(text).is_ok() | crate::address::table(text).is_ok()
}

/// Parses a filter. The rows that are read for the filter must contain its matches.
pub fn filter(data: &[u8]) -> bool {
    let Some(filter) = std::str::from_utf8(data).ok().and_then(|text| Filter::parse(text).ok()) else {
        return false;
    };
    let ranges = ScanRanges::of(Some(&filter));
    let entity = Entity { properties: vec![("P".into(), Value::Int32(5))] };
    for (partition, row) in [("", ""), ("p", ""), ("p", "r"), ("\u{FF61}", "😀")] {
        let keys = Keys { partition: partition.into(), row: row.into() };
        let matches =
            filter.matches(&FoundEntity { keys: &keys, stamp: Stamp::from_ticks(1), entity: &entity });
        let at = (partition_key(partition), row_key(row));
        let is_read = ranges.spans.iter().any(|span| span.contains(&at));
        assert!(is_read || !matches);
    }
    true
}

/// Parses the options of a query, including continuation tokens.
pub fn query(data: &[u8]) -> bool {
    let query = std::str::from_utf8(data).ok().and_then(|text| Query::parse(text).ok());
    let Some(query) = query else { return false };
    let options = [
        crate::query::select(&query).is_ok(),
        crate::query::top(&query).is_ok(),
        crate::query::filter(&query).is_ok(),
        crate::query::check_options(&query).is_ok(),
        crate::continuation::table(&query).is_ok(),
    ];
    let position = crate::continuation::position(&query);
    if let Ok(Some(from)) = &position {
        let mut headers = http::HeaderMap::new();
        crate::continuation::put_position(&mut headers, from);
    }
    options == [true; 5] && position.is_ok()
}

/// Parses a batch and all operations in it. The boundary is `b`, or taken from the first line.
pub fn batch(data: &[u8]) -> bool {
    let (first, rest) = data.split_at(data.iter().position(|byte| *byte == b'\n').unwrap_or_default());
    let (first, query) = (String::from_utf8_lossy(first), Query::default());
    let mut is_valid = false;
    for (content_type, body) in [("multipart/mixed; boundary=b", data), (&*first, rest)] {
        let requests = match multipart::parse(content_type, body) {
            Ok(BatchContents::Query(request)) => vec![*request],
            Ok(BatchContents::ChangeSet(requests)) => requests,
            Err(_) => continue,
        };
        let mut valid_requests = 0;
        for request in &requests {
            let (options, uri) = ((&request.head.headers, &query, Version::NEWEST), &request.head.uri);
            let object = uri.path().find('(').map_or("", |at| &uri.path()[at..]);
            let operations = [Operation::InsertEntity, Operation::MergeEntity, Operation::DeleteEntity];
            let writes = operations.map(|operation| Write::parse(operation, object, options, request.body));
            let is_query = self::query(uri.query().unwrap_or_default().as_bytes());
            let is_valid = match request.head.method {
                http::Method::GET => is_query,
                _ => writes.iter().any(Result::is_ok),
            };
            valid_requests += usize::from(is_valid);
        }
        is_valid |= valid_requests == requests.len();
    }
    is_valid
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    type FuzzTarget = fn(&[u8]) -> bool;

    /// Valid inputs for each target. Mutations of them are mostly invalid.
    const SEEDS: [(FuzzTarget, &[&str]); 5] = [
        (
            super::entity,
            &[r#"{"P":"5","P@odata.type":"Edm.Int64","D":1.5e3,"N":null,"S":"\u00e4\ud83d\ude00"}"#],
        ),
        (super::address, &["(PartitionKey='it''s',RowKey='r')", "('Table')", "(TableName='t')"]),
        (
            super::filter,
            &[
                "not (PartitionKey eq 'p' and RowKey ge 'r') or P gt 5 and true",
                "D lt -1.5e3 or L eq 5L or G eq guid'c9da6455-213d-42c9-9a79-3e9149a57833'",
                "T ge datetime'2020-02-03T04:05:06.1234567Z' and (Y ne X'00ff' or 'it''s' le S)",
            ],
        ),
        (
            super::query,
            &["$select=A,B,*&$top=7&NextPartitionKey=1!4!cGFy&NextRowKey=1!0!&NextTableName=1!4!cGFy"],
        ),
        (
            super::batch,
            &[
                "--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\nContent-Type: application/http\r\n\
                 \r\nPOST http://h/t HTTP/1.1\r\nPrefer: return-content\r\n\r\n\
                 {\"PartitionKey\":\"p\",\"RowKey\":\"r\"}\r\n--c\r\nContent-Type: application/http\r\n\r\n\
                 DELETE /t(PartitionKey='p',RowKey='r') HTTP/1.1\r\nIf-Match: *\r\n\r\n\r\n--c--\r\n--b--\r\n",
                "--b\nContent-Type: application/http\n\nGET t()?$top=1 HTTP/1.1\nAccept: a\n\n--b--",
                "multipart/mixed; boundary=\"c d\"\n--c d\nContent-Type: multipart/mixed; boundary=c\n\n--c\n--c d\n",
            ],
        ),
    ];

    #[test]
    fn mutated_inputs_are_parsed_or_refused() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        for (target, seeds) in SEEDS {
            for round in 0..2000 {
                let mut data = seeds[round % seeds.len()].as_bytes().to_vec();
                target(&data);
                for _ in 0..rng.random_range(1..6) {
                    let (at, other) = (rng.random_range(0..data.len()), rng.random_range(0..data.len()));
                    match rng.random_range(0..4) {
                        0 => data[at] = rng.random(),
                        1 => data.swap(at, other),
                        2 => data.insert(at, data[other]),
                        _ => data.extend_from_within(at.min(other)..at.max(other)),
                    }
                }
                data.truncate(rng.random_range(1..=data.len()));
                target(&data);
            }
            for _ in 0..500 {
                target(&(0..rng.random_range(0..40)).map(|_| rng.random()).collect::<Vec<u8>>());
            }
        }
    }
}
