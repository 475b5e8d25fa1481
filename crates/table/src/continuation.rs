//! Where the next page begins, as clients hand it back: opaque to them, the place of a row to us.
//!
//! A token is `1!LENGTH!TEXT`, as the live service has it: the text is Base64 of the key and the length is that of the
//! text, so that even the token of an empty key is not empty. The row need not exist any more when the token comes back. A
//! client that makes one up begins its page elsewhere, and sees nothing that it could not query anyway.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use http::HeaderMap;
use lazuli_protocol::{Query, Refusal};
use lazuli_store::MAX_KEY_BYTES;

use crate::filter::range::Position;
use crate::json::parse::invalid;
use crate::keys::ENTITIES;
use crate::write::put;

/// The row that a query is to begin at, if it is to go on with another one.
pub(crate) fn position(query: &Query) -> Result<Option<Position>, Refusal> {
    let partition = parameter(query, "NextPartitionKey")?;
    let row = parameter(query, "NextRowKey")?;
    match (partition, row) {
        (None, None) => Ok(None),
        (Some(partition), row) => {
            Ok(Some(([&[ENTITIES], &partition[..]].concat().into(), row.unwrap_or_default().into())))
        }
        (None, Some(_)) => Err(invalid("NextRowKey comes without NextPartitionKey.")),
    }
}

/// Says in a reply where the next page begins.
pub(crate) fn put_position(headers: &mut HeaderMap, (partition, row): &Position) {
    let partition = partition.strip_prefix(&[ENTITIES]).unwrap_or_default();
    put(headers, "x-ms-continuation-nextpartitionkey", &token(partition));
    put(headers, "x-ms-continuation-nextrowkey", &token(row));
}

/// The table that a query of tables is to begin at.
pub(crate) fn table(query: &Query) -> Result<Option<Vec<u8>>, Refusal> {
    parameter(query, "NextTableName")
}

/// Says in a reply at which table the next page begins.
pub(crate) fn put_table(headers: &mut HeaderMap, marker: &[u8]) {
    put(headers, "x-ms-continuation-nexttablename", &token(marker));
}

fn token(key: &[u8]) -> String {
    let text = BASE64.encode(key);
    format!("1!{}!{text}", text.len())
}

/// What a token in the query was made of. An empty one is none.
fn parameter(query: &Query, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
    let Some(token) = query.get(name).filter(|token| !token.is_empty()) else { return Ok(None) };
    key(token).map(Some).ok_or_else(|| invalid(format!("{name} is not a continuation token.")))
}

fn key(token: &str) -> Option<Vec<u8>> {
    let (length, text) = token.strip_prefix("1!")?.split_once('!')?;
    let is_whole = length.parse() == Ok(text.len()) && text.len() <= 2 * MAX_KEY_BYTES;
    BASE64.decode(text).ok().filter(|_| is_whole)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lazuli_protocol::ErrorCode;

    use super::*;

    fn asked(query: &str) -> Result<Option<Position>, ErrorCode> {
        position(&Query::parse(query).unwrap()).map_err(|refusal| refusal.code())
    }

    #[test]
    fn a_token_leads_back_to_the_row_it_was_made_of() {
        for (partition, row) in [("e", ""), ("ep", "r"), ("ep\0", "\u{FF61}"), ("eit's", "a b")] {
            let place = (Bytes::from(partition), Bytes::from(row));
            let mut headers = HeaderMap::new();
            put_position(&mut headers, &place);
            let [partition, row] = ["partition", "row"]
                .map(|key| headers[format!("x-ms-continuation-next{key}key")].to_str().unwrap().to_owned());
            assert!(!partition.is_empty() && !row.is_empty());
            let query = format!("NextPartitionKey={partition}&NextRowKey={row}");
            assert_eq!(asked(&query), Ok(Some(place.clone())));
            assert_eq!(asked(&format!("NextPartitionKey={partition}&NextRowKey=")), {
                Ok(Some((place.0, Bytes::new())))
            });
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        assert_eq!(asked(""), Ok(None));
        assert_eq!(asked("NextPartitionKey=&NextRowKey="), Ok(None));
        for token in ["x", "1!", "1!4!abc", "1!x!abcd", "2!4!abcd", "1!3!a b", "1!4!ab==", "1!1!a"] {
            assert_eq!(asked(&format!("NextPartitionKey={token}")), Err(ErrorCode::InvalidInput), "{token}");
        }
        assert_eq!(asked("NextRowKey=1!0!"), Err(ErrorCode::InvalidInput));
        let long = "A".repeat(2 * MAX_KEY_BYTES + 4);
        assert_eq!(asked(&format!("NextPartitionKey=1!{}!{long}", long.len())), Err(ErrorCode::InvalidInput));
    }
}
