//! Renders entities and tables as JSON, with the requested level of metadata.
//!
//! Members have the order of the live service: annotations, PartitionKey, RowKey, Timestamp, other
//! properties. A single object contains `odata.metadata`; a list contains it once, before the values.

use std::io::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_protocol::date;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use crate::entity::Entity;
use crate::keys::Keys;
use crate::value::{EdmType, Value};

/// The characters that are percent-encoded in links.
const LINK: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The properties that every entity has.
const KEYS: [&str; 3] = ["PartitionKey", "RowKey", "Timestamp"];

/// The level of metadata in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metadata {
    None,
    Minimal,
    Full,
}

/// The properties that a query selects, in the order of the query; `None` for all.
pub(crate) type Select<'a> = Option<&'a [String]>;

/// Renders the JSON of one reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renderer<'a> {
    pub(crate) metadata: Metadata,
    /// The URL of the service as the client addressed it.
    pub(crate) endpoint: &'a str,
    pub(crate) account: &'a str,
    /// The table's name as the client wrote it.
    pub(crate) table: &'a str,
}

/// Whether an object is rendered alone or in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Alone,
    InList,
}

impl Renderer<'_> {
    /// Begins a list. `set` is its name in `$metadata`: the name of the table, or `Tables`.
    pub(crate) fn open_list(&self, out: &mut Vec<u8>, set: &str) {
        out.push(b'{');
        if self.metadata != Metadata::None {
            let _ = write!(out, "\"odata.metadata\":\"{}/$metadata#{set}\",", self.endpoint);
        }
        out.extend_from_slice(b"\"value\":[");
    }

    /// Ends a list.
    pub(crate) fn close_list(out: &mut Vec<u8>) {
        out.extend_from_slice(b"]}");
    }

    /// Writes an entity, without a comma after it.
    pub(crate) fn entity(
        &self,
        out: &mut Vec<u8>,
        placement: Placement,
        (keys, stamp, entity): (&Keys, Stamp, &Entity<'_>),
        select: Select<'_>,
    ) {
        let moment = date::iso8601(stamp.timestamp());
        let mut object = JsonObject::open(out);
        if self.metadata != Metadata::None {
            if placement == Placement::Alone {
                let context = format!("{}/$metadata#{}/@Element", self.endpoint, self.table);
                object.text("odata.metadata", &context);
            }
            if self.metadata == Metadata::Full {
                object.text("odata.type", &format!("{}.{}", self.account, self.table));
                let link = entity_link(self.table, keys);
                object.text("odata.id", &format!("{}/{link}", self.endpoint));
                object.etag(&moment);
                object.text("odata.editLink", &link);
            } else {
                object.etag(&moment);
            }
        }
        let is_selected = |name: &str| select.is_none_or(|names| names.iter().any(|other| other == name));
        if is_selected("PartitionKey") {
            object.text("PartitionKey", &keys.partition);
        }
        if is_selected("RowKey") {
            object.text("RowKey", &keys.row);
        }
        if is_selected("Timestamp") {
            if self.metadata == Metadata::Full {
                object.text("Timestamp@odata.type", EdmType::DateTime.name());
            }
            object.name("Timestamp");
            push_date_time(object.out, &moment);
        }
        for (name, value) in entity.properties.iter().filter(|(name, _)| is_selected(name)) {
            object.property(name, value, self.metadata);
        }
        // The live service returns null for a selected property that the entity does not have.
        let is_missing = |name: &&String| !KEYS.contains(&name.as_str()) && entity.get(name).is_none();
        for name in select.unwrap_or_default().iter().filter(is_missing) {
            object.null(name);
        }
        object.close();
    }

    /// Writes a table, without a comma after it.
    pub(crate) fn table(&self, out: &mut Vec<u8>, placement: Placement, name: &str) {
        let mut object = JsonObject::open(out);
        if self.metadata != Metadata::None && placement == Placement::Alone {
            object.text("odata.metadata", &format!("{}/$metadata#Tables/@Element", self.endpoint));
        }
        if self.metadata == Metadata::Full {
            object.text("odata.type", &format!("{}.Tables", self.account));
            object.text("odata.id", &format!("{}/Tables('{name}')", self.endpoint));
            object.text("odata.editLink", &format!("Tables('{name}')"));
        }
        object.text("TableName", name);
        object.close();
    }
}

/// Returns the address of an entity, relative to the endpoint.
pub(crate) fn entity_link(table: &str, keys: &Keys) -> String {
    let key = |key: &str| utf8_percent_encode(&key.replace('\'', "''"), LINK).to_string();
    format!("{table}(PartitionKey='{}',RowKey='{}')", key(&keys.partition), key(&keys.row))
}

/// Writes a moment without trailing zeros in its decimals.
fn push_date_time(out: &mut Vec<u8>, iso8601: &str) {
    out.push(b'"');
    out.extend_from_slice(
        iso8601.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.').as_bytes(),
    );
    out.extend_from_slice(b"Z\"");
}

/// A JSON object that is being written.
struct JsonObject<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

impl<'a> JsonObject<'a> {
    fn open(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    fn close(self) {
        self.out.push(b'}');
    }

    fn name(&mut self, name: &str) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
        push_string(self.out, name);
        self.out.push(b':');
    }

    fn type_annotation_name(&mut self, name: &str) {
        self.name(name);
        self.out.truncate(self.out.len() - b"\":".len());
        self.out.extend_from_slice(b"@odata.type\":");
    }

    fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        push_string(self.out, value);
    }

    /// Writes the ETag of an entity from its formatted time, in the format of
    /// [`lazuli_concurrency::TableETag`]. Every entity in a list has one, so formatting the time only once
    /// saves work.
    fn etag(&mut self, moment: &str) {
        self.name("odata.etag");
        self.out.extend_from_slice(b"\"W/\\\"datetime'");
        for (i, part) in moment.split(':').enumerate() {
            self.out.extend_from_slice(if i == 0 { b"" } else { b"%3A" });
            self.out.extend_from_slice(part.as_bytes());
        }
        self.out.extend_from_slice(b"'\\\"\"");
    }

    fn null(&mut self, name: &str) {
        self.name(name);
        self.out.extend_from_slice(b"null");
    }

    fn property(&mut self, name: &str, value: &Value<'_>, metadata: Metadata) {
        let is_annotated = match value {
            Value::String(_) | Value::Boolean(_) | Value::Int32(_) => false,
            Value::Double(number) => !number.is_finite(),
            _ => true,
        };
        if is_annotated && metadata != Metadata::None {
            self.type_annotation_name(name);
            push_string(self.out, value.edm_type().name());
        }
        self.name(name);
        let out = &mut *self.out;
        let _ = match value {
            Value::String(text) => return push_string(out, text),
            Value::Boolean(is) => return push_json(out, is),
            Value::Int32(number) => return push_json(out, number),
            Value::Int64(number) => write!(out, "\"{number}\""),
            Value::Double(number) if number.is_nan() => write!(out, "\"NaN\""),
            Value::Double(f64::INFINITY) => write!(out, "\"Infinity\""),
            Value::Double(f64::NEG_INFINITY) => write!(out, "\"-Infinity\""),
            Value::Double(number) => return push_json(out, number),
            Value::DateTime(ticks) => {
                return push_date_time(out, &date::iso8601(Timestamp::from_ticks(*ticks)));
            }
            Value::Guid(bytes) => write!(out, "\"{}\"", uuid::Uuid::from_bytes(*bytes)),
            Value::Binary(bytes) => write!(out, "\"{}\"", BASE64.encode(bytes)),
        };
    }
}

/// Writes a string with its quotes.
fn push_string(out: &mut Vec<u8>, text: &str) {
    push_json(out, text);
}

/// Writes a value. Writing to memory cannot fail.
fn push_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let _ = serde_json::to_writer(out, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::parse;

    // 2021-04-20T15:54:52.9740791Z
    const STAMP: Stamp = Stamp::from_ticks(637_545_308_929_740_791);

    fn keys() -> Keys {
        Keys { partition: "p'1".into(), row: "r/2".into() }
    }

    fn written(metadata: Metadata, placement: Placement, json: &str, select: Select<'_>) -> String {
        let renderer = Renderer { metadata, endpoint: "http://h/acc", account: "acc", table: "Tab" };
        let entity = parse::entity(json.as_bytes()).unwrap().entity;
        let mut out = vec![];
        renderer.entity(&mut out, placement, (&keys(), STAMP, &entity), select);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_metadata_level_has_its_documented_members() {
        let json = r#"{"I":5,"L":"7","L@odata.type":"Edm.Int64"}"#;
        assert_eq!(
            written(Metadata::None, Placement::Alone, json, None),
            r#"{"PartitionKey":"p'1","RowKey":"r/2","Timestamp":"2021-04-20T15:54:52.9740791Z","I":5,"L":"7"}"#
        );
        assert_eq!(
            written(Metadata::Minimal, Placement::Alone, json, None),
            concat!(
                r#"{"odata.metadata":"http://h/acc/$metadata#Tab/@Element","#,
                r#""odata.etag":"W/\"datetime'2021-04-20T15%3A54%3A52.9740791Z'\"","PartitionKey":"p'1","RowKey":"r/2","#,
                r#""Timestamp":"2021-04-20T15:54:52.9740791Z","I":5,"L@odata.type":"Edm.Int64","L":"7"}"#
            )
        );
        assert_eq!(
            written(Metadata::Full, Placement::InList, json, Some(&["Timestamp".into(), "I".into()])),
            concat!(
                r#"{"odata.type":"acc.Tab","odata.id":"http://h/acc/Tab(PartitionKey='p%27%271',RowKey='r%2F2')","#,
                r#""odata.etag":"W/\"datetime'2021-04-20T15%3A54%3A52.9740791Z'\"","#,
                r#""odata.editLink":"Tab(PartitionKey='p%27%271',RowKey='r%2F2')","#,
                r#""Timestamp@odata.type":"Edm.DateTime","Timestamp":"2021-04-20T15:54:52.9740791Z","I":5}"#
            )
        );
    }

    #[test]
    fn etag_in_the_body_equals_the_etag_header() {
        for ticks in [0, STAMP.ticks(), STAMP.ticks() + 9, u64::MAX] {
            let mut out = vec![];
            let stamp = Stamp::from_ticks(ticks);
            JsonObject { out: &mut out, is_empty: true }.etag(&date::iso8601(stamp.timestamp()));
            let tag = serde_json::to_string(&lazuli_concurrency::TableETag::from(stamp).to_string()).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), format!(r#""odata.etag":{tag}"#));
        }
    }

    #[test]
    fn every_value_round_trips() {
        let json = concat!(
            r#"{"S":"a\"\\\n\u0001ä😀","B":true,"I":-5,"L":"-9223372036854775808","L@odata.type":"Edm.Int64","#,
            r#""D":5.0,"E":1.7976931348623157e308,"F":"-Infinity","F@odata.type":"Edm.Double","#,
            r#""T":"2013-08-02T17:37:43.9004348Z","T@odata.type":"Edm.DateTime","#,
            r#""U":"9999-12-31T23:59:59.9999999Z","U@odata.type":"Edm.DateTime","#,
            r#""V":"2013-08-02T00:00:00Z","V@odata.type":"Edm.DateTime","#,
            r#""G":"c9da6455-213d-42c9-9a79-3e9149a57833","G@odata.type":"Edm.Guid","#,
            r#""Y":"AP8=","Y@odata.type":"Edm.Binary","Z":"","M":4.9e-324}"#
        );
        let once = written(Metadata::Minimal, Placement::Alone, json, None);
        assert_eq!(
            parse::entity(once.as_bytes()).unwrap().entity,
            parse::entity(json.as_bytes()).unwrap().entity
        );
        assert!(once.contains(r#""D":5.0"#) && once.contains(r#""V":"2013-08-02T00:00:00Z""#), "{once}");
    }
}
