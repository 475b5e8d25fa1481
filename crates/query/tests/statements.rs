//! Statements and their results. Each test row has a blob, a statement and the expected result.
#![allow(clippy::unwrap_used)]

mod support;

use lazuli_query::{Delimited, Format, MAX_RECORD};
use support::{Outcome, csv, json, run, with_headers};

const SALES: &str = "id,name,price\n1,mouse,12.5\n2,\"key,board\",80\n3,screen,\n4,mouse,7\n";
const STOCK: &str = r#"{"id":1,"name":"mouse","price":12.5,"tags":["wireless","accessory"],"dimensions":{"length":3,"width":2},"weight":0.2,"warehouses":[{"latitude":41.8,"longitude":-87.6},{"latitude":1,"longitude":2}]}
{"id":2,"name":"screen","price":null,"tags":[],"Weight":5,"warehouses":[]}"#;

#[track_caller]
fn check(input: &Format, output: &Format, blob: &str, rows: &[(&str, &str)]) {
    for (statement, expected) in rows {
        let outcome = run(statement, input, output, blob.as_bytes(), 1 << 20);
        assert_eq!(outcome, Ok(Outcome { data: expected.to_string(), errors: vec![] }), "{statement}");
    }
}

#[test]
fn columns_and_conditions_of_delimited_text() {
    check(
        &with_headers(),
        &csv(),
        SALES,
        &[
            ("SELECT * FROM BlobStorage", "1,mouse,12.5\n2,\"key,board\",80\n3,screen,\n4,mouse,7\n"),
            ("SELECT name FROM BlobStorage", "mouse\n\"key,board\"\nscreen\nmouse\n"),
            ("SELECT NAME, _1 FROM BlobStorage LIMIT 1", "mouse,1\n"),
            ("SELECT \"name\" FROM BlobStorage WHERE id = 2", "\"key,board\"\n"),
            ("SELECT id FROM BlobStorage WHERE name = 'mouse' AND price < 10", "4\n"),
            ("SELECT id FROM BlobStorage WHERE name IN ('screen', 'mouse')", "1\n3\n4\n"),
            ("SELECT id FROM BlobStorage WHERE name NOT LIKE 'm%'", "2\n3\n"),
            ("SELECT id FROM BlobStorage WHERE id BETWEEN 2 AND 3", "2\n3\n"),
            ("SELECT id FROM BlobStorage WHERE id > 1 AND (name = 'mouse' OR name = 'screen')", "3\n4\n"),
            ("SELECT id * 2 + 1, id % 2, -id FROM BlobStorage LIMIT 2", "3,1,-1\n5,0,-2\n"),
            ("SELECT id FROM BlobStorage WHERE NULL", ""),
            ("SELECT id FROM BlobStorage LIMIT 0", ""),
            ("SELECT 'x' FROM BlobStorage LIMIT 1", "x\n"),
        ],
    );
}

#[test]
fn functions_return_their_documented_results() {
    check(
        &csv(),
        &csv(),
        "7,Größe,2020-02-29T10:11:12Z\n",
        &[
            ("SELECT CHARACTER_LENGTH('abcdefg'), CHAR_LENGTH(_2) FROM BlobStorage", "7,5\n"),
            ("SELECT LOWER('AbCdEfG'), UPPER(_2) FROM BlobStorage", "abcdefg,GRÖSSE\n"),
            ("SELECT SUBSTRING('123456789', 1, 5), SUBSTRING(_2, 3) FROM BlobStorage", "23456,ße\n"),
            ("SELECT TRIM(BOTH '123' FROM '1112211Microsoft22211122') FROM BlobStorage", "Microsoft\n"),
            (
                "SELECT TRIM('  a '), TRIM(LEADING FROM '  a '), TRIM(TRAILING 'a' FROM 'baa') FROM BlobStorage",
                "a,a ,b\n",
            ),
            (
                "SELECT CAST(_1 AS INT) + 1, CAST(_1 AS FLOAT), CAST('true' AS BOOLEAN) FROM BlobStorage",
                "8,7.0,true\n",
            ),
            (
                "SELECT DATE_ADD('minute', 1, CAST('2017-01-02T03:04:05.006Z' AS TIMESTAMP)) FROM BlobStorage",
                "2017-01-02T03:05:05.006Z\n",
            ),
            (
                "SELECT DATE_DIFF('hour','2018-11-09T00:00+05:30','2018-11-09T01:00:23-08:00') FROM BlobStorage",
                "14\n",
            ),
            (
                "SELECT EXTRACT(YEAR FROM '2010-01-01T'), EXTRACT(second FROM _3) FROM BlobStorage",
                "2010,12\n",
            ),
            (
                "SELECT TO_STRING(CAST('1969-07-20T20:18Z' AS TIMESTAMP), 'MMMM d, y') FROM BlobStorage",
                "\"July 20, 1969\"\n",
            ),
            (
                "SELECT TO_TIMESTAMP('2007T'), UTCNOW() FROM BlobStorage",
                "2007-01-01T00:00:00Z,2026-01-02T03:04:05Z\n",
            ),
            ("SELECT CAST(_3 AS TIMESTAMP) + 1 FROM BlobStorage", "2020-03-01T10:11:12Z\n"),
            ("SELECT _1 FROM BlobStorage WHERE CAST(_3 AS TIMESTAMP) > '2020-02T'", "7\n"),
            ("SELECT COALESCE(NULL, NULLIF(_1, 7), 'other'), NULLIF(_1, 8) FROM BlobStorage", "other,7\n"),
            ("SELECT 7 / 2, 7.0 / 2, NULL + 1 FROM BlobStorage", "3,3.5,\n"),
            ("SELECT 1 = 1, 'a' < 'b', NOT TRUE FROM BlobStorage", "true,true,false\n"),
        ],
    );
}

#[test]
fn aggregates_cover_all_rows() {
    check(
        &with_headers(),
        &csv(),
        SALES,
        &[
            ("SELECT COUNT(*) FROM BlobStorage", "4\n"),
            ("SELECT COUNT(*) FROM BlobStorage WHERE name = 'mouse'", "2\n"),
            (
                "SELECT SUM(id), AVG(id), AVERAGE(id), MIN(name), MAX(name) FROM BlobStorage",
                "10,2.5,2.5,\"key,board\",screen\n",
            ),
            ("SELECT MAX(CAST(price AS FLOAT)) FROM BlobStorage WHERE price <> ''", "80.0\n"),
            ("SELECT SUM(id), COUNT(id), MIN(id) FROM BlobStorage WHERE id > 9", ",0,\n"),
            ("SELECT COUNT(*) FROM BlobStorage LIMIT 1", "4\n"),
            ("SELECT COUNT(*) FROM BlobStorage LIMIT 0", ""),
        ],
    );
    check(
        &csv(),
        &json("\n"),
        "9223372036854775807\n9223372036854775807\n",
        &[("SELECT SUM(_1) AS total FROM BlobStorage", "{\"total\":1.8446744073709552e19}\n")],
    );
}

#[test]
fn paths_select_parts_of_json() {
    check(
        &json("\n"),
        &json("\n"),
        STOCK,
        &[
            ("SELECT id FROM BlobStorage", "{\"id\":1}\n{\"id\":2}\n"),
            ("SELECT latitude FROM BlobStorage[*].warehouses[*]", "{\"latitude\":41.8}\n{\"latitude\":1}\n"),
            ("SELECT length FROM BlobStorage[*].dimensions", "{\"length\":3}\n"),
            (
                "SELECT weight,warehouses[0].longitude,id,tags[1] FROM BlobStorage[*] LIMIT 1",
                "{\"weight\":0.2,\"longitude\":-87.6,\"id\":1,\"tags\":\"accessory\"}\n",
            ),
            ("SELECT \"weight\" FROM BlobStorage", "{\"weight\":0.2}\n{}\n"),
            ("SELECT weight AS w FROM BlobStorage", "{\"w\":0.2}\n{\"w\":5}\n"),
            ("SELECT price FROM BlobStorage WHERE price IS NULL", "{\"price\":null}\n"),
            ("SELECT id FROM BlobStorage WHERE dimensions IS MISSING", "{\"id\":2}\n"),
            ("SELECT id FROM BlobStorage WHERE price IS MISSING OR price > 12", "{\"id\":1}\n"),
            ("SELECT * FROM BlobStorage[*].tags[*]", "{\"_1\":\"wireless\"}\n{\"_1\":\"accessory\"}\n"),
            (
                "SELECT b.dimensions FROM BlobStorage b LIMIT 1",
                "{\"dimensions\":{\"length\":3,\"width\":2}}\n",
            ),
            ("SELECT id + 1, name FROM BlobStorage LIMIT 1", "{\"_1\":2,\"name\":\"mouse\"}\n"),
            ("SELECT COUNT(price) FROM BlobStorage", "{\"_1\":1}\n"),
        ],
    );
    check(&json(""), &csv(), "[{\"a\":1},{\"a\":\"x,y\"}]", &[("SELECT * FROM BlobStorage", "1\n\"x,y\"\n")]);
}

#[test]
fn formats_are_converted_to_each_other() {
    let all = "SELECT * FROM BlobStorage";
    check(
        &csv(),
        &json("\n"),
        "100,200\n300\n",
        &[(all, "{\"_1\":\"100\",\"_2\":\"200\"}\n{\"_1\":\"300\"}\n")],
    );
    check(&csv(), &json("\n"), "100,200\n", &[("SELECT _2 FROM BlobStorage", "{\"_1\":\"200\"}\n")]);
    check(&with_headers(), &json(";"), "a,b\n1,\"\"\"\"\n", &[(all, "{\"a\":\"1\",\"b\":\"\\\"\"};")]);
    check(
        &json("\n"),
        &csv(),
        "{\"a\":\"x,y\",\"b\":{\"c\":[1]}}",
        &[(all, "\"x,y\",\"{\"\"c\"\":[1]}\"\n")],
    );
    let named = &with_headers();
    check(
        named,
        named,
        "a,b\n1,2\n",
        &[(all, "a,b\n1,2\n"), ("SELECT _2, b AS c FROM BlobStorage", "_1,c\n2,2\n")],
    );
    check(named, named, "a,b\n", &[("SELECT a FROM BlobStorage", "a\n"), (all, "a,b\n")]);
    let dots = Format::Delimited(Delimited::default().separated_by(".", "!").unwrap().quoted(None));
    let dots_named = Format::Delimited(
        Delimited::default().separated_by(".", "!").unwrap().quoted(None).with_headers(true),
    );
    check(&dots_named, &dots, "100.200!150.250!180.280!", &[("select _1 from BlobStorage", "150!180!")]);
}

#[test]
fn failing_row_is_reported_and_skipped() {
    for (input, blob, statement, data, errors) in [
        (
            csv(),
            "100,pizza\n300,400\n",
            "SELECT _1 FROM BlobStorage WHERE _2 > 250",
            "300\n",
            vec![(0, "InvalidTypeConversion")],
        ),
        (
            with_headers(),
            "a,b\n1,2\n3\n4,5\n",
            "SELECT b FROM BlobStorage",
            "2\n5\n",
            vec![(8, "InvalidColumnOrdinal")],
        ),
        (
            csv(),
            "1.2\n3.4\n",
            "SELECT _1 FROM BlobStorage WHERE _2 > 1",
            "",
            vec![(0, "InvalidColumnOrdinal"), (4, "InvalidColumnOrdinal")],
        ),
        (
            csv(),
            "1,1\n2,x\n",
            "SELECT SUM(_1), SUM(_2), COUNT(*) FROM BlobStorage",
            "1,1,1\n",
            vec![(4, "InvalidTypeConversion")],
        ),
        (csv(), "0\n2\n", "SELECT 6 / _1 FROM BlobStorage", "3\n", vec![(0, "DivideByZero")]),
        (
            csv(),
            "9223372036854775807\n1\n",
            "SELECT _1 + 1 FROM BlobStorage",
            "2\n",
            vec![(0, "ArithmeticOverflow")],
        ),
        (
            json("\n"),
            "{\"a\":1}{\"a\":{}}{\"a\":3}",
            "SELECT a FROM BlobStorage WHERE a > 0",
            "1\n3\n",
            vec![(7, "InvalidTypeConversion")],
        ),
    ] {
        let outcome = run(statement, &input, &csv(), blob.as_bytes(), 3).unwrap();
        let found: Vec<_> = outcome.errors.iter().map(|error| (error.position, error.name)).collect();
        assert_eq!((outcome.data.as_str(), found), (data, errors), "{statement}");
        assert!(outcome.errors.iter().all(|error| !error.fatal));
    }
    let outcome = run("SELECT * FROM BlobStorage", &csv(), &csv(), b"a\n\xff\nb\n", 1).unwrap();
    assert_eq!((outcome.data.as_str(), outcome.errors[0].position), ("a\nb\n", 2));
}

#[test]
fn unreadable_input_ends_the_query() {
    let all = "SELECT * FROM BlobStorage";
    let long = "x".repeat(MAX_RECORD + 1);
    for (input, blob, statement, data, position, name) in [
        (json("\n"), "100,200\n".to_owned(), all, "\n", 0, "ParseError"),
        (json("\n"), "{\"a\":1}\n{name: owner}\n{\"a\":2}".to_owned(), all, "1\n", 8, "ParseError"),
        (json("\n"), "{\"a\":1}\n{\"a\":".to_owned(), all, "1\n", 8, "ParseError"),
        (csv(), format!("a\n{long}"), all, "a\n", 2, "RecordTooLarge"),
        (csv(), format!("a\n\"{long}\"\nb"), all, "a\n", 2, "RecordTooLarge"),
        (json("\n"), format!(" \n{{\"a\":\"{long}\"}}"), all, "", 2, "RecordTooLarge"),
        (with_headers(), "a,b\n1,2\n".to_owned(), "SELECT c FROM BlobStorage", "", 0, "InvalidColumnName"),
    ] {
        for piece in [1000, 1 << 22] {
            let outcome = run(statement, &input, &csv(), blob.as_bytes(), piece).unwrap();
            assert_eq!(outcome.data, data, "{name}");
            let [error] = outcome.errors.as_slice() else { panic!("{:?}", outcome.errors) };
            assert_eq!((error.fatal, error.name, error.position), (true, name, position));
        }
    }
    let outcome = run(all, &json("\n"), &csv(), b"100,200,300,400\n", 4).unwrap();
    let expected = "Unexpected token ',' at [byte: 3]. Expecting tokens '{', or '['.";
    assert!(outcome.errors[0].description.starts_with(expected));
}

#[test]
fn record_of_maximum_size_is_read() {
    let record = "x".repeat(MAX_RECORD - 1);
    for piece in [1 << 16, 1 << 22] {
        let blob = format!("a\n{record}\nb\n");
        let outcome = run("SELECT * FROM BlobStorage", &csv(), &csv(), blob.as_bytes(), piece).unwrap();
        assert_eq!((outcome.data, outcome.errors), (blob, vec![]));
    }
}

#[test]
fn work_per_record_is_bounded() {
    let record = "a".repeat(1_000_000);
    let many = vec!["_1"; 49].join(",");
    let pattern = format!("%{}b", "a".repeat(10_000));
    for statement in [
        format!("SELECT {many} FROM BlobStorage"),
        format!("SELECT * FROM BlobStorage WHERE _1 LIKE '{pattern}'"),
    ] {
        let outcome = run(&statement, &csv(), &csv(), record.as_bytes(), 1 << 20).unwrap();
        assert_eq!(
            (outcome.data.as_str(), outcome.errors[0].name, outcome.errors[0].fatal),
            ("", "QueryTooComplex", true)
        );
    }
    // A field that has to be unquoted on each access.
    let quoted = format!("\"{}\"", "\"\"".repeat(400_000));
    let statement = format!("SELECT * FROM BlobStorage WHERE {}", vec!["_1 = 'a'"; 10_000].join(" OR "));
    let outcome = run(&statement, &csv(), &csv(), quoted.as_bytes(), 1 << 20).unwrap();
    assert_eq!(outcome.errors[0].name, "QueryTooComplex");
    let items = format!("{{\"a\":[{}]}}", vec!["0"; 400_000].join(","));
    let statement = format!("SELECT '{}' FROM BlobStorage[*].a[*]", "x".repeat(100_000));
    let outcome = run(&statement, &json("\n"), &csv(), items.as_bytes(), 1 << 20).unwrap();
    assert_eq!(outcome.errors[0].name, "QueryTooComplex");
}

#[test]
fn blob_is_split_at_the_ends_of_records() {
    let record = format!("{}\n", "x".repeat(1 << 20 >> 1));
    let blob = record.repeat(50);
    let outcome =
        run("SELECT sys.split(10485760) FROM BlobStorage", &csv(), &csv(), blob.as_bytes(), 1 << 20).unwrap();
    let sizes: Vec<usize> = outcome.data.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), blob.len());
    assert!(sizes.iter().all(|size| size % record.len() == 0));
    assert!(
        sizes[..sizes.len() - 1].iter().all(|size| (10_485_760..10_485_760 + record.len()).contains(size))
    );
}

#[test]
fn byte_order_mark_and_blank_lines_are_skipped() {
    let blob = "\u{feff}a,b\n\n1,2\r\n\r\n3,4\n\n";
    for piece in [1, 2, 100] {
        let outcome = run("SELECT a FROM BlobStorage", &with_headers(), &csv(), blob.as_bytes(), piece);
        assert_eq!(outcome, Ok(Outcome { data: "1\n3\n".into(), errors: vec![] }));
    }
}

#[test]
fn statement_must_fit_the_input_format() {
    for (statement, input) in [
        ("SELECT name FROM BlobStorage", csv()),
        ("SELECT a.b FROM BlobStorage", with_headers()),
        ("SELECT _1 FROM BlobStorage[*].a", csv()),
        ("SELECT sys.split(10485760) FROM BlobStorage", json("\n")),
    ] {
        assert!(run(statement, &input, &csv(), b"", 1).is_err(), "{statement}");
    }
    assert!(run("SELECT _1 FROM BlobStorage[*]", &csv(), &csv(), b"", 1).is_ok());
}
