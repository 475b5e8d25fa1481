//! The ids by which requests name share snapshots.

use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_protocol::{Query, Refusal, date};

const PARAMETER: &str = "sharesnapshot";

/// Parses the snapshot of a request.
pub(crate) fn named(query: &Query) -> Result<Option<Stamp>, Refusal> {
    parse(query, PARAMETER)
}

/// Parses the snapshot in a query parameter.
pub(crate) fn parse(query: &Query, parameter: &str) -> Result<Option<Stamp>, Refusal> {
    let Some(text) = query.get(parameter).filter(|text| !text.is_empty()) else { return Ok(None) };
    match date::parse_snapshot(text) {
        Some(moment) => Ok(Some(Stamp::from_ticks(moment.ticks()))),
        None => Err(Refusal::invalid_query(parameter, text, "It is not the id of a snapshot.")),
    }
}

/// Refuses to write to a snapshot.
pub(crate) fn check_not_named(query: &Query) -> Result<(), Refusal> {
    match query.get(PARAMETER).filter(|text| !text.is_empty()) {
        Some(text) => Err(Refusal::invalid_query(PARAMETER, text, "A snapshot cannot be written.")),
        None => Ok(()),
    }
}

/// Formats the id of a snapshot.
pub(crate) fn text(id: Stamp) -> String {
    date::iso8601(Timestamp::from_ticks(id.ticks()))
}
