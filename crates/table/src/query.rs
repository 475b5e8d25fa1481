//! Query Entities: `$filter`, `$select`, `$top` and continuation.

use lazuli_protocol::{Query, Refusal};

use crate::json::parse::invalid;

/// The most names in `$select`.
const MAX_SELECTED: usize = 255;

/// The properties that `$select` names; `None`: all of them.
pub(crate) fn select(query: &Query) -> Result<Option<Vec<String>>, Refusal> {
    let Some(names) = query.get("$select").map(str::trim).filter(|names| !names.is_empty()) else {
        return Ok(None);
    };
    let names: Vec<_> = names.split(',').take(MAX_SELECTED + 1).map(|name| name.trim().to_owned()).collect();
    if names.len() > MAX_SELECTED {
        return Err(invalid("$select names too many properties."));
    }
    Ok((!names.iter().any(|name| name == "*")).then_some(names))
}
