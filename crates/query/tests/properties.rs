//! Properties that hold for every blob: the result does not depend on how the blob is split into parts,
//! written text is read back unchanged, and nothing panics.
#![allow(clippy::unwrap_used)]

mod support;

use lazuli_query::{Delimited, Format, fuzz};
use proptest::prelude::*;
use support::{csv, json, run, with_headers};

/// Generates blobs from the character sequences that matter to the readers.
fn blob() -> impl Strategy<Value = Vec<u8>> {
    let parts: &[&[u8]] = &[
        b"a",
        b"1",
        b"-2.5",
        b",",
        b"::",
        b":",
        b"\n",
        b"\r\n",
        b"\r",
        b"!",
        b"\"",
        b"\"\"",
        b"'",
        b"''",
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b"{\"a\":1}",
        b"[2,3]",
        b"null",
        b"\xc3\xa9",
        b"\xef\xbb\xbf",
        b"\xff",
        b" ",
        b"--",
        b"-",
    ];
    prop::collection::vec(prop::sample::select(parts), 0..60).prop_map(|parts| parts.concat())
}

fn formats() -> impl Strategy<Value = Format> {
    let odd = Delimited::default().separated_by("::", "!").unwrap().quoted(Some('\'')).escaped(Some('\\'));
    let bare = Delimited::default().separated_by("é", "\r\n").unwrap().quoted(None);
    prop::sample::select(vec![
        csv(),
        with_headers(),
        Format::Delimited(odd),
        Format::Delimited(bare),
        json("\n"),
        json("--"),
    ])
}

fn statements() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "SELECT * FROM BlobStorage",
        "SELECT _1, _2 FROM BlobStorage WHERE _1 > 1 OR _2 IS NULL",
        "SELECT COUNT(*), MAX(_1) FROM BlobStorage",
        "SELECT _1 FROM BlobStorage LIMIT 2",
    ])
}

proptest! {
    #[test]
    fn result_does_not_depend_on_how_a_blob_is_split(
        blob in blob(), input in formats(), output in formats(), statement in statements(), piece in 1..9_usize,
    ) {
        let whole = run(statement, &input, &output, &blob, 1 << 20);
        prop_assert_eq!(run(statement, &input, &output, &blob, piece), whole);
    }

    #[test]
    fn written_text_is_read_back_unchanged(
        rows in prop::collection::vec(prop::collection::vec("[a,:!'\"\\\\ \r\né]{0,6}", 1..4), 0..6),
        escaped in any::<bool>(),
    ) {
        // A record with a single empty field is a blank line.
        let rows: Vec<_> = rows.into_iter().filter(|row| row.len() > 1 || !row[0].is_empty()).collect();
        let records: Vec<String> = rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect();
        let blob = format!("[{}]", records.join(","));
        let dialect = Delimited::default().separated_by("::", "!").unwrap().quoted(Some('\'')).escaped(escaped.then_some('\\'));
        for dialect in [Delimited::default(), dialect] {
            let format = Format::Delimited(dialect);
            let all = "SELECT * FROM BlobStorage";
            let text = run(all, &json(""), &format, blob.as_bytes(), 1 << 20).unwrap();
            let back = run(all, &format, &json("\n"), text.data.as_bytes(), 5).unwrap();
            let read: Vec<Vec<String>> = back.data.lines().map(|line| {
                let row: serde_json::Value = serde_json::from_str(line).unwrap();
                let row = row.as_object().unwrap();
                (1..=row.len()).map(|at| row[&format!("_{at}")].as_str().unwrap().to_owned()).collect()
            }).collect();
            prop_assert_eq!(&read, &rows, "{:?}", text.data);
        }
    }

    #[test]
    fn no_bytes_cause_a_panic_in_a_reader(bytes in prop::collection::vec(any::<u8>(), 0..200), blob in blob()) {
        fuzz::blob(&bytes);
        fuzz::blob(&blob);
    }

    #[test]
    fn no_statement_causes_a_panic_in_the_parser_or_a_scan(
        words in prop::collection::vec(prop::sample::select(WORDS), 0..30), blob in blob(),
    ) {
        let where_ = format!("SELECT {} FROM BlobStorage", words.join(" "));
        for statement in [words.join(" "), where_, format!("SELECT * FROM BlobStorage WHERE {}", words.join(" "))] {
            let mut data = statement.into_bytes();
            data.push(0);
            data.extend_from_slice(&blob);
            fuzz::statement(&data);
        }
    }
}

const WORDS: &[&str] = &[
    "SELECT",
    "FROM",
    "BlobStorage",
    "WHERE",
    "LIMIT",
    "*",
    "_1",
    "_2",
    "a",
    "\"a\"",
    "'x'",
    "1",
    "-",
    "+",
    "/",
    "%",
    "9223372036854775807",
    "0",
    "1.5",
    "1e300",
    "(",
    ")",
    ",",
    "=",
    "<>",
    "<",
    "AND",
    "OR",
    "NOT",
    "IN",
    "BETWEEN",
    "LIKE",
    "'%a_'",
    "IS",
    "NULL",
    "MISSING",
    "[*]",
    "[0]",
    ".",
    "CAST(",
    "AS",
    "INT",
    "FLOAT",
    "TIMESTAMP",
    "BOOLEAN",
    "STRING",
    "SUBSTRING(",
    "UPPER(",
    "TRIM(",
    "COALESCE(",
    "NULLIF(",
    "DATE_ADD(",
    "DATE_DIFF(",
    "EXTRACT(",
    "year",
    "'2020-02-29T10:11:12.5+05:30'",
    "TO_STRING(",
    "'y MM SSS XX'",
    "UTCNOW()",
    "COUNT(",
    "SUM(",
    "MIN(",
    "AVG(",
    ";",
    "sys.split(10485760)",
];
