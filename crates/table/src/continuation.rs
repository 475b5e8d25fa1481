//! Continuation tokens: the position at which the next page begins, opaque to clients.
//!
//! A token has the form `1!LENGTH!TEXT` of the live service. The text is the Base64 of the key, and the
//! length is that of the text, so even the token of an empty key is not empty. The row need not exist any
//! longer when the token comes back. A forged token only begins the page elsewhere, and gives no access to
//! other entities.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use http::HeaderMap;
use lazuli_protocol::{Query, Refusal};
use lazuli_service::reply::put;
use lazuli_store::MAX_KEY_BYTES;

use crate::filter::range::Position;
use crate::json::parse::invalid;
use crate::keys::ENTITIES;

/// Returns the position at which a query continues, if it does.
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

/// Adds the position of the next page to a reply.
pub(crate) fn put_position(headers: &mut HeaderMap, (partition, row): &Position) {
    let partition = partition.strip_prefix(&[ENTITIES]).unwrap_or_default();
    put(headers, "x-ms-continuation-nextpartitionkey", token(partition));
    put(headers, "x-ms-continuation-nextrowkey", token(row));
}

/// Returns the name of the table at which a query of tables continues, if it does.
pub(crate) fn table(query: &Query) -> Result<Option<Vec<u8>>, Refusal> {
    parameter(query, "NextTableName")
}

/// Adds the table at which the next page begins to a reply.
pub(crate) fn put_table(headers: &mut HeaderMap, marker: &[u8]) {
    put(headers, "x-ms-continuation-nexttablename", token(marker));
}

fn token(key: &[u8]) -> String {
    let text = BASE64.encode(key);
    format!("1!{}!{text}", text.len())
}

/// Decodes a token in the query. An empty token counts as missing.
fn parameter(query: &Query, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
    let Some(token) = query.get(name).filter(|token| !token.is_empty()) else { return Ok(None) };
    key(token).map(Some).ok_or_else(|| invalid(format!("{name} is not a continuation token.")))
}

fn key(token: &str) -> Option<Vec<u8>> {
    let (length, text) = token.strip_prefix("1!")?.split_once('!')?;
    let is_valid = length.parse() == Ok(text.len()) && text.len() <= 2 * MAX_KEY_BYTES;
    BASE64.decode(text).ok().filter(|_| is_valid)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lazuli_protocol::ErrorCode;

    use super::*;

    fn parsed(query: &str) -> Result<Option<Position>, ErrorCode> {
        position(&Query::parse(query).unwrap()).map_err(|refusal| refusal.code())
    }

    #[test]
    fn tokens_round_trip() {
        for (partition, row) in [("e", ""), ("ep", "r"), ("ep\0", "\u{FF61}"), ("eit's", "a b")] {
            let start = (Bytes::from(partition), Bytes::from(row));
            let mut headers = HeaderMap::new();
            put_position(&mut headers, &start);
            let [partition, row] = ["partition", "row"]
                .map(|key| headers[format!("x-ms-continuation-next{key}key")].to_str().unwrap().to_owned());
            assert!(!partition.is_empty() && !row.is_empty());
            let query = format!("NextPartitionKey={partition}&NextRowKey={row}");
            assert_eq!(parsed(&query), Ok(Some(start.clone())));
            assert_eq!(parsed(&format!("NextPartitionKey={partition}&NextRowKey=")), {
                Ok(Some((start.0, Bytes::new())))
            });
        }
    }

    #[test]
    fn invalid_tokens_are_refused() {
        assert_eq!(parsed(""), Ok(None));
        assert_eq!(parsed("NextPartitionKey=&NextRowKey="), Ok(None));
        for token in ["x", "1!", "1!4!abc", "1!x!abcd", "2!4!abcd", "1!3!a b", "1!4!ab==", "1!1!a"] {
            assert_eq!(parsed(&format!("NextPartitionKey={token}")), Err(ErrorCode::InvalidInput), "{token}");
        }
        assert_eq!(parsed("NextRowKey=1!0!"), Err(ErrorCode::InvalidInput));
        let long = "A".repeat(2 * MAX_KEY_BYTES + 4);
        assert_eq!(
            parsed(&format!("NextPartitionKey=1!{}!{long}", long.len())),
            Err(ErrorCode::InvalidInput)
        );
    }
}
