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
/// `container` and `object` are those of its [`Address`](crate::address::Address).
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
    let place = place(service, container, object)?;
    // The JavaScript library takes an account in the path for a container, and a batch of the account for one of that.
    let of_account = place == Place::Service && comp.eq_ignore_ascii_case("batch");
    let restype =
        query.get("restype").filter(|restype| !(of_account && restype.eq_ignore_ascii_case("container")));
    let restype = restype.unwrap_or_default();
    let verb = match service {
        ServiceKind::Table => tunnelled(method, headers)?,
        _ => method.as_str(),
    };

    let here = || ROWS.iter().filter(move |row| row.service == service && row.places.contains(&place));
    let of_type = || here().filter(|row| row.restype.eq_ignore_ascii_case(restype));
    let named =
        || of_type().filter(|row| row.comp.eq_ignore_ascii_case(comp) && !row.operation.is_preflight());
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

/// The operation that a request to a static website asks for. Its path, query and headers do not matter.
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

fn place(service: ServiceKind, container: &str, object: &str) -> Result<Place, Refusal> {
    match (service, container, object) {
        (_, "", "") => Ok(Place::Service),
        (ServiceKind::Table, ..) => table_place(container, object),
        (_, _, "") => Ok(Place::Container),
        (ServiceKind::Queue, ..) => match object.split_once('/') {
            None if object == "messages" => Ok(Place::Messages),
            Some(("messages", "")) => Ok(Place::Messages),
            Some(("messages", id)) if !id.contains('/') => Ok(Place::Message),
            _ => Err(Refusal::new(ErrorCode::InvalidUri)),
        },
        (ServiceKind::Blob | ServiceKind::File, ..) => Ok(Place::Object),
    }
}

fn table_place(name: &str, object: &str) -> Result<Place, Refusal> {
    let name = name.to_ascii_lowercase();
    let is_table = !matches!(name.as_str(), "" | "tables" | "$batch");
    // The keys in it, nothing else, are looked at in what follows a table: clients whose address ends with a table ask
    // for `/table/Tables` and the like, and want to hear of that table.
    let keys = match object.strip_suffix(')') {
        _ if object.is_empty() => "",
        Some(keys) if is_table || keys.starts_with('(') => keys.trim_start_matches('('),
        None if is_table && !object.starts_with('(') => "",
        _ => return Err(Refusal::new(ErrorCode::InvalidUri)),
    };
    match (name.as_str(), keys) {
        ("", _) => Err(Refusal::new(ErrorCode::InvalidUri)),
        ("tables", "") => Ok(Place::Tables),
        ("tables", _) => Ok(Place::NamedTable),
        ("$batch", "") => Ok(Place::TableBatch),
        ("$batch", _) => Err(Refusal::new(ErrorCode::InvalidUri)),
        (_, "") => Ok(Place::Table),
        _ => Ok(Place::Entity),
    }
}

/// The verb of a table request: POST may stand for one that proxies do not let through. A header that repeats the
/// method changes nothing: the Java client of 2013 to 2020 sends it with MERGE.
fn tunnelled<'a>(method: &'a Method, headers: &HeaderMap) -> Result<&'a str, Refusal> {
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
