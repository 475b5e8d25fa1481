//! Entities with their types, as the JSON of the table service shows them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::calls::encode;

/// The end of the name that annotates the type of a property.
const TYPE: &str = "@odata.type";

/// An entity in the form that is written, and in a form that can be compared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ImportedEntity {
    pub(super) partition: String,
    pub(super) row: String,
    /// The JSON that sets the entity.
    pub(super) body: String,
    /// The type and the value of each property, in a form of which each value has only one.
    pub(super) properties: BTreeMap<String, (String, String)>,
}

impl ImportedEntity {
    /// Reads an entity of an answer. Returns `None` if it is not an object with both keys.
    pub(super) fn read(entity: &Value) -> Option<Self> {
        let entity = entity.as_object()?;
        let (partition, row) = (entity.get("PartitionKey")?.as_str()?, entity.get("RowKey")?.as_str()?);
        let (mut body, mut properties) = (Map::new(), BTreeMap::new());
        for (name, value) in entity {
            if name == "Timestamp" || name.starts_with("odata.") || name.ends_with(TYPE) || value.is_null() {
                continue;
            }
            let annotation = format!("{name}{TYPE}");
            let kind = match (entity.get(&annotation).and_then(Value::as_str), value) {
                (Some(kind), _) => kind,
                (None, Value::Bool(_)) => "Edm.Boolean",
                (None, Value::Number(number)) if number.is_f64() => "Edm.Double",
                (None, Value::Number(_)) => "Edm.Int32",
                (None, _) => "Edm.String",
            };
            body.insert(name.clone(), value.clone());
            if !["Edm.Boolean", "Edm.Int32", "Edm.String"].contains(&kind) {
                body.insert(annotation, kind.into());
            }
            properties.insert(name.clone(), (kind.to_owned(), comparable(kind, value)));
        }
        let body = Value::Object(body).to_string();
        Some(Self { partition: partition.into(), row: row.into(), body, properties })
    }

    /// Returns whether both have the same keys, properties and types.
    pub(super) fn is_equal(&self, other: &Self) -> bool {
        self.partition == other.partition && self.row == other.row && self.properties == other.properties
    }

    /// Returns the path of the entity below the account, encoded.
    pub(super) fn path(&self, table: &str) -> String {
        format!("/{table}(PartitionKey={},RowKey={})", key(&self.partition), key(&self.row))
    }
}

/// Returns the only form of a value, as servers write times, numbers and GUIDs in several forms.
fn comparable(kind: &str, value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match kind {
        "Edm.DateTime" if text.contains('.') => {
            format!("{}Z", text.trim_end_matches('Z').trim_end_matches('0').trim_end_matches('.'))
        }
        "Edm.Guid" => text.to_ascii_lowercase(),
        "Edm.Double" => text.parse::<f64>().map_or(text, |number| format!("{number:?}")),
        _ => text,
    }
}

/// Returns a key as it is written in a URL: quoted, with quotes doubled, encoded.
pub(super) fn key(text: &str) -> String {
    format!("%27{}%27", encode(&text.replace('\'', "''")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entity(mut properties: Value) -> ImportedEntity {
        properties["PartitionKey"] = "p".into();
        properties["RowKey"] = "r".into();
        ImportedEntity::read(&properties).unwrap()
    }

    #[test]
    fn values_are_equal_if_they_differ_only_in_form() {
        let typed = |kind: &str, value: Value| entity(json!({"x": value, "x@odata.type": kind}));
        for (kind, one, other, is_equal) in [
            ("Edm.DateTime", json!("2020-01-02T03:04:05.1000000Z"), json!("2020-01-02T03:04:05.1Z"), true),
            ("Edm.DateTime", json!("2020-01-02T03:04:05.0000000Z"), json!("2020-01-02T03:04:05Z"), true),
            ("Edm.DateTime", json!("2020-01-02T03:04:50Z"), json!("2020-01-02T03:04:05Z"), false),
            ("Edm.Guid", json!("ABCD"), json!("abcd"), true),
            ("Edm.Double", json!(2), json!(2.0), true),
            ("Edm.Double", json!("NaN"), json!("NaN"), true),
            ("Edm.Double", json!(0.1), json!(0.2), false),
            ("Edm.Int64", json!("5"), json!("6"), false),
            ("Edm.Binary", json!("AAE="), json!("AAE="), true),
        ] {
            assert_eq!(typed(kind, one.clone()).is_equal(&typed(kind, other)), is_equal, "{kind} {one}");
        }
        assert!(!entity(json!({"x": 2})).is_equal(&entity(json!({"x": 2.0}))), "a double is no integer");
        assert!(!entity(json!({"x": "2"})).is_equal(&entity(json!({"x": 2}))), "a text is no integer");
    }

    #[test]
    fn body_keeps_types_and_drops_what_the_server_sets() {
        let read = entity(
            json!({"odata.etag": "e", "Timestamp": "t", "Timestamp@odata.type": "Edm.DateTime",
            "l": "5", "l@odata.type": "Edm.Int64", "d": 2.0, "s": "ü", "n": null, "s@odata.type": "Edm.String"}),
        );
        let body: Value = serde_json::from_str(&read.body).unwrap();
        let expected = json!({"PartitionKey": "p", "RowKey": "r", "l": "5", "l@odata.type": "Edm.Int64",
            "d": 2.0, "d@odata.type": "Edm.Double", "s": "ü"});
        assert_eq!(body, expected);
        assert_eq!(read.path("T"), "/T(PartitionKey=%27p%27,RowKey=%27r%27)");
        assert_eq!(ImportedEntity::read(&json!({"PartitionKey": "p"})), None);
    }
}
