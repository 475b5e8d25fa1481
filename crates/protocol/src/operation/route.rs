//! From a request line and its headers to an [`Operation`].
//!
//! The key is address, method, `restype` and `comp`, then discriminators. A combination that no operation has is
//! refused as the service does it: an unknown `restype` or `comp` is a bad query parameter, a known one with another
//! method a bad verb.

use http::{HeaderMap, Method};

use super::table::ROWS;
use super::{Operation, Place, Row};
use crate::error::{ErrorCode, Refusal};
use crate::query::Query;
use crate::service::ServiceKind;

/// The operation that a request asks for.
///
/// `container` and `object` are the decoded parts of the path after the account, split at the first slash. A blob in
/// the root container may be given as either `name` and nothing, or `$root` and `name`.
pub fn route(
    service: ServiceKind,
    method: &Method,
    container: &str,
    object: &str,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Operation, Refusal> {
    if method == Method::OPTIONS {
        return Ok(preflight(service));
    }
    let restype = query.get("restype").unwrap_or_default();
    let comp = query.get("comp").unwrap_or_default();
    let place = place(service, container, object, restype)?;
    let verb = match service {
        ServiceKind::Table => tunnelled(method, headers)?,
        _ => method.as_str(),
    };

    let here = || ROWS.iter().filter(move |row| row.service == service && row.places.contains(&place));
    let of_type = || here().filter(|row| row.restype.eq_ignore_ascii_case(restype));
    let named = || of_type().filter(|row| row.comp.eq_ignore_ascii_case(comp) && !is_preflight(row));
    let fits = |row: &&Row| row.methods.contains(&verb) && row.when.iter().all(|w| w.holds(query, headers));

    if let Some(row) = named().find(fits) {
        Ok(row.operation)
    } else if named().next().is_some() {
        Err(bad_verb(service))
    } else if !restype.is_empty() && of_type().next().is_none() {
        Err(Refusal::invalid_query("restype", restype, "No operation on this resource has this value."))
    } else {
        Err(Refusal::invalid_query("comp", comp, "No operation on this resource has this value."))
    }
}

const fn preflight(service: ServiceKind) -> Operation {
    match service {
        ServiceKind::Blob => Operation::PreflightBlobRequest,
        ServiceKind::Queue => Operation::PreflightQueueRequest,
        ServiceKind::Table => Operation::PreflightTableRequest,
        ServiceKind::File => Operation::PreflightFileRequest,
    }
}

fn is_preflight(row: &Row) -> bool {
    row.operation == preflight(row.service)
}

fn bad_verb(service: ServiceKind) -> Refusal {
    Refusal::new(match service {
        ServiceKind::Table => ErrorCode::MethodNotAllowed,
        _ => ErrorCode::UnsupportedHttpVerb,
    })
}

fn place(service: ServiceKind, container: &str, object: &str, restype: &str) -> Result<Place, Refusal> {
    if service == ServiceKind::Table {
        return table_place(container, object);
    }
    Ok(match (container, object) {
        ("", _) => Place::Service,
        // `/name` is a container only if the request says so, else a blob of the root container.
        (_, "") if service == ServiceKind::Blob && restype.is_empty() => Place::Object,
        (_, "") => Place::Container,
        (_, object) if service == ServiceKind::Queue => match object.split_once('/') {
            None if object == "messages" => Place::Messages,
            Some(("messages", "")) => Place::Messages,
            Some(("messages", id)) if !id.contains('/') => Place::Message,
            _ => return Err(Refusal::new(ErrorCode::InvalidUri)),
        },
        _ => Place::Object,
    })
}

/// Entity keys may hold slashes, so an address that has them arrives in two parts.
fn table_place(container: &str, object: &str) -> Result<Place, Refusal> {
    let (name, keys) = match container.split_once('(') {
        Some((name, keys)) if object.is_empty() => (name, Some(keys.strip_suffix(')'))),
        Some((name, _)) => (name, Some(object.strip_suffix(')'))),
        None if object.is_empty() => (container, None),
        None => (container, Some(object.strip_prefix('(').and_then(|keys| keys.strip_suffix(')')))),
    };
    let keys = match keys {
        Some(None) => return Err(Refusal::new(ErrorCode::InvalidUri)),
        Some(Some(keys)) => keys,
        None => "",
    };
    match name {
        "" if keys.is_empty() => Ok(Place::Service),
        "$batch" if keys.is_empty() => Ok(Place::TableBatch),
        _ if name.eq_ignore_ascii_case("tables") => {
            Ok(if keys.is_empty() { Place::Tables } else { Place::NamedTable })
        }
        "" | "$batch" => Err(Refusal::new(ErrorCode::InvalidUri)),
        _ => Ok(if keys.is_empty() { Place::Table } else { Place::Entity }),
    }
}

/// The verb of a table request: POST may stand for one that proxies do not let through.
fn tunnelled<'a>(method: &'a Method, headers: &HeaderMap) -> Result<&'a str, Refusal> {
    let mut values = headers.get_all("x-http-method").iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(method.as_str()),
        (Some(_), Some(_)) => Err(Refusal::new(ErrorCode::XMethodIncorrectCount)),
        (Some(_), None) if method != Method::POST => Err(Refusal::new(ErrorCode::XMethodNotUsingPost)),
        (Some(verb), None) => match verb.as_bytes() {
            b"MERGE" => Ok("MERGE"),
            b"PUT" => Ok("PUT"),
            b"DELETE" => Ok("DELETE"),
            _ => Err(Refusal::new(ErrorCode::XMethodIncorrectValue)),
        },
    }
}
