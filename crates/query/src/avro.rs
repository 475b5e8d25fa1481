//! The encoding of a reply: an Avro container with four kinds of records.
//!
//! ```text
//! container = "Obj\x01"  metadata:map<bytes>  sync:16  block*
//! block     = count:long  length:long  record*  sync:16
//! record    = kind:long  (resultData | error | progress | end)
//! ```
//!
//! Numbers are zigzag-encoded in groups of seven bits. Strings and bytes are prefixed with their length.
//! Every record is its own block, so that clients receive it immediately.
//!
//! Implemented by hand: the Avro crates need a value in memory for each record, and include a schema parser.
//! Only this small part of the format is needed.

use crate::report::QueryError;

/// The schema of the records. Clients identify records by these names.
const SCHEMA: &str = concat!(
    r#"[{"type":"record","name":"com.microsoft.azure.storage.queryBlobContents.resultData","#,
    r#""doc":"Holds result data in the format specified for this query (CSV, JSON, etc.).","#,
    r#""fields":[{"name":"data","type":"bytes"}]},"#,
    r#"{"type":"record","name":"com.microsoft.azure.storage.queryBlobContents.error","#,
    r#""doc":"An error that occurred while processing the query.","#,
    r#""fields":[{"name":"fatal","type":"boolean"},{"name":"name","type":"string"},"#,
    r#"{"name":"description","type":"string"},{"name":"position","type":"long"}]},"#,
    r#"{"type":"record","name":"com.microsoft.azure.storage.queryBlobContents.progress","#,
    r#""doc":"Information about the progress of the query","#,
    r#""fields":[{"name":"bytesScanned","type":"long"},{"name":"totalBytes","type":"long"}]},"#,
    r#"{"type":"record","name":"com.microsoft.azure.storage.queryBlobContents.end","#,
    r#""doc":"Sent as the final message of the response","fields":[{"name":"totalBytes","type":"long"}]}]"#,
);

/// Encodes an Avro container.
#[derive(Debug)]
pub(crate) struct Container {
    sync: [u8; 16],
}

impl Container {
    /// Creates a container with a sync marker, which should be random.
    pub(crate) fn new(sync: [u8; 16]) -> Self {
        Self { sync }
    }

    pub(crate) fn begin(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"Obj\x01");
        long(out, 2);
        for (key, value) in [("avro.schema", SCHEMA), ("avro.codec", "null")] {
            bytes(out, key.as_bytes());
            bytes(out, value.as_bytes());
        }
        long(out, 0);
        out.extend_from_slice(&self.sync);
    }

    pub(crate) fn result_data(&self, out: &mut Vec<u8>, data: &[u8]) {
        let mut head = vec![];
        long(&mut head, 0);
        long(&mut head, data.len() as i64);
        self.block(out, &[&head, data]);
    }

    pub(crate) fn error(&self, out: &mut Vec<u8>, error: &QueryError) {
        let mut record = vec![];
        long(&mut record, 1);
        record.push(error.fatal.into());
        bytes(&mut record, error.name.as_bytes());
        bytes(&mut record, error.description.as_bytes());
        long(&mut record, error.position as i64);
        self.block(out, &[&record]);
    }

    pub(crate) fn progress(&self, out: &mut Vec<u8>, scanned: u64, total: u64) {
        let mut record = vec![];
        long(&mut record, 2);
        long(&mut record, scanned as i64);
        long(&mut record, total as i64);
        self.block(out, &[&record]);
    }

    pub(crate) fn end(&self, out: &mut Vec<u8>, total: u64) {
        let mut record = vec![];
        long(&mut record, 3);
        long(&mut record, total as i64);
        self.block(out, &[&record]);
    }

    fn block(&self, out: &mut Vec<u8>, record: &[&[u8]]) {
        long(out, 1);
        long(out, record.iter().map(|part| part.len()).sum::<usize>() as i64);
        for part in record {
            out.extend_from_slice(part);
        }
        out.extend_from_slice(&self.sync);
    }
}

fn long(out: &mut Vec<u8>, number: i64) {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    long(out, bytes.len() as i64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_zigzag_encoded() {
        let rows: [(i64, &[u8]); 7] = [
            (0, &[0]),
            (-1, &[1]),
            (1, &[2]),
            (63, &[0x7e]),
            (64, &[0x80, 1]),
            (-65, &[0x81, 1]),
            (i64::MIN, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ];
        for (number, expected) in rows {
            let mut out = vec![];
            long(&mut out, number);
            assert_eq!(out, expected, "{number}");
        }
    }

    #[test]
    fn schema_is_valid_json() {
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
        let names: Vec<_> =
            schema.as_array().unwrap().iter().map(|record| record["name"].as_str().unwrap()).collect();
        let of = |name: &str| format!("com.microsoft.azure.storage.queryBlobContents.{name}");
        assert_eq!(names, [of("resultData"), of("error"), of("progress"), of("end")]);
    }
}
