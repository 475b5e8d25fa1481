//! Finds the [`Operation`] of a request by its request line and headers.
//!
//! The key is address, method, `restype` and `comp`, then discriminators. Combinations that match no
//! operation are refused as the service does: an unknown `restype` or `comp` is an invalid query parameter, a
//! known one with another method an unsupported verb. method a bad verb.

use http::{HeaderMap, Method};

use super::table::ROWS;
use super::{AddressKind, Operation, Row};
use crate::error::{ErrorCode, Refusal};
use crate::kind::ServiceKind;
use crate::query::Query;

/// Returns the operation of a request.
///
/// `container` and `object` are those of the request's [`Address`](crate::address::Address).
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
    let comp = query.get("comp").unwrap_or_default();
    let address = address(service, container, object)?;
    // The JavaScript library treats an account in the path as a container, so it sends an account's batch as
    // a container's.
    let is_account_batch = address == AddressKind::Service && comp.eq_ignore_ascii_case("batch");
    let restype = query
        .get("restype")
        .filter(|restype| !(is_account_batch && restype.eq_ignore_ascii_case("container")));
    let restype = restype.unwrap_or_default();
    let verb = match service {
        ServiceKind::Table => tunneled(method, headers)?,
        _ => method.as_str(),
    };

    let at_address =
        || ROWS.iter().filter(move |row| row.service == service && row.addresses.contains(&address));
    let of_type = || at_address().filter(|row| row.restype.eq_ignore_ascii_case(restype));
    let named =
        || of_type().filter(|row| row.comp.eq_ignore_ascii_case(comp) && !row.operation.is_preflight());
    let matches = |row: &&Row| {
        row.methods.contains(&verb) && row.discriminators.iter().all(|w| w.holds(query, headers))
    };

    if let Some(row) = named().find(matches) {
        Ok(row.operation)
    } else if named().next().is_some() {
        Err(bad_verb(service))
    } else if !restype.is_empty() && of_type().next().is_none() {
        Err(Refusal::invalid_query("restype", restype, "No operation on this resource has this value."))
    } else {
        Err(Refusal::invalid_query("comp", comp, "No operation on this resource has this value."))
    }
}

/// Returns the operation of a request to a static website. Path, query and headers have no influence.
pub fn route_website(method: &Method) -> Result<Operation, Refusal> {
    match *method {
        Method::GET => Ok(Operation::GetWebContent),
        Method::HEAD => Ok(Operation::GetWebContentProperties),
        _ => Err(bad_verb(ServiceKind::Blob)),
    }
}

pub(super) const fn preflight(service: ServiceKind) -> Operation {
    match service {
        ServiceKind::Blob => Operation::PreflightBlobRequest,
        ServiceKind::Queue => Operation::PreflightQueueRequest,
        ServiceKind::Table => Operation::PreflightTableRequest,
        ServiceKind::File => Operation::PreflightFileRequest,
    }
}

fn bad_verb(service: ServiceKind) -> Refusal {
    Refusal::new(match service {
        ServiceKind::Table => ErrorCode::MethodNotAllowed,
        _ => ErrorCode::UnsupportedHttpVerb,
    })
}

fn address(service: ServiceKind, container: &str, object: &str) -> Result<AddressKind, Refusal> {
    match (service, container, object) {
        (_, "", "") => Ok(AddressKind::Service),
        (ServiceKind::Table, ..) => table_address(container, object),
        (_, _, "") => Ok(AddressKind::Container),
        (ServiceKind::Queue, ..) => match object.split_once('/') {
            None if object == "messages" => Ok(AddressKind::Messages),
            Some(("messages", "")) => Ok(AddressKind::Messages),
            Some(("messages", id)) if !id.contains('/') => Ok(AddressKind::Message),
            _ => Err(Refusal::new(ErrorCode::InvalidUri)),
        },
        (ServiceKind::Blob | ServiceKind::File, ..) => Ok(AddressKind::Object),
    }
}

fn table_address(name: &str, object: &str) -> Result<AddressKind, Refusal> {
    let name = name.to_ascii_lowercase();
    let is_table = !matches!(name.as_str(), "" | "tables" | "$batch");
    // Only keys are significant after a table's name. Clients whose endpoint ends with a table's name send
    // `/table/Tables` and the like, and expect an answer about that table.
    let keys = match object.strip_suffix(')') {
        _ if object.is_empty() => "",
        Some(keys) if is_table || keys.starts_with('(') => keys.trim_start_matches('('),
        None if is_table && !object.starts_with('(') => "",
        _ => return Err(Refusal::new(ErrorCode::InvalidUri)),
    };
    match (name.as_str(), keys) {
        ("", _) => Err(Refusal::new(ErrorCode::InvalidUri)),
        ("tables", "") => Ok(AddressKind::Tables),
        ("tables", _) => Ok(AddressKind::NamedTable),
        ("$batch", "") => Ok(AddressKind::TableBatch),
        ("$batch", _) => Err(Refusal::new(ErrorCode::InvalidUri)),
        (_, "") => Ok(AddressKind::Table),
        _ => Ok(AddressKind::Entity),
    }
}

/// Returns the verb of a table request. POST may tunnel a verb that proxies block. A header that repeats the
/// method has no effect: the Java client of 2013 to 2020 sends it with MERGE.
fn tunneled<'a>(method: &'a Method, headers: &HeaderMap) -> Result<&'a str, Refusal> {
    let mut values = headers.get_all("x-http-method").iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(method.as_str()),
        (Some(_), Some(_)) => Err(Refusal::new(ErrorCode::XMethodIncorrectCount)),
        (Some(verb), None) if verb == method.as_str() => Ok(method.as_str()),
        (Some(_), None) if method != Method::POST => Err(Refusal::new(ErrorCode::XMethodNotUsingPost)),
        (Some(verb), None) => match verb.as_bytes() {
            b"MERGE" => Ok("MERGE"),
            b"PUT" => Ok("PUT"),
            b"DELETE" => Ok("DELETE"),
            _ => Err(Refusal::new(ErrorCode::XMethodIncorrectValue)),
        },
    }
}
