use super::*;
use crate::syntax::{Comparison, Expression, Literal};

fn refused(statement: &str) -> (usize, String) {
    let malformed = parse(statement).expect_err(statement);
    (malformed.position, malformed.reason)
}

fn field(name: &str) -> PathStep {
    PathStep::Field { name: name.into(), exact: false }
}

#[test]
fn valid_statements_are_parsed() {
    for statement in [
        "SELECT * FROM BlobStorage",
        "select * from blobstorage;",
        "SELECT * FROM BlobStorage[*]",
        "SELECT length FROM BlobStorage[*].dimensions",
        "SELECT latitude FROM BlobStorage[*].warehouses[*] WHERE latitude > -1 LIMIT 3",
        "SELECT weight,warehouses[0].longitude,id,tags[1] FROM BlobStorage[*]",
        "SELECT sys.split(10485760)FROM BlobStorage",
        "SELECT COUNT(*) FROM BlobStorage WHERE _1 IS NOT NULL",
        "SELECT AVERAGE(CAST(_1 AS FLOAT)) AS mean, MAX(_2) FROM BlobStorage",
        "SELECT s._1 first, s.\"second one\" FROM BlobStorage s WHERE NOT (s._1 = 'x' OR s._2 <> 'it''s')",
        "SELECT _1 FROM BlobStorage WHERE _1 BETWEEN 1 AND 2 AND _2 NOT IN (1, 2.5, 'x') OR _3 LIKE 'a!%%' ESCAPE '!'",
        "SELECT TRIM(_1), TRIM('x' FROM _1), TRIM(LEADING FROM _1), TRIM(BOTH '123' FROM _1) FROM BlobStorage",
        "SELECT DATE_ADD('minute', 1, CAST('2017-01-02T03:04:05.006Z' AS TIMESTAMP)) FROM BlobStorage",
        "SELECT EXTRACT(YEAR FROM '2010-01-01T'), UTCNOW(), TO_STRING(UTCNOW(), 'y') FROM BlobStorage",
        "SELECT COALESCE(a, b, 'c'), NULLIF(a, 1), SUBSTRING(a, 1, 5), CHAR_LENGTH(a) FROM BlobStorage",
        "SELECT a FROM BlobStorage WHERE a IS MISSING",
        "SELECT leading, \"from\", count, date_add FROM BlobStorage",
    ] {
        assert!(parse(statement).is_ok(), "{statement} {:?}", parse(statement));
    }
}

#[test]
fn operators_have_the_precedence_of_sql() {
    let select = parse("SELECT * FROM BlobStorage WHERE a = 1 OR NOT b = 2 AND c + 2 * 3 = 4").unwrap();
    let Some(Expression::Any(parts)) = select.predicate else { panic!("{select:?}") };
    let [Expression::Compare(..), Expression::All(parts)] = parts.as_slice() else { panic!("{parts:?}") };
    let [Expression::Not(_), Expression::Compare(sum, Comparison::Equal, four)] = parts.as_slice() else {
        panic!("{parts:?}")
    };
    assert_eq!(**four, Expression::Literal(Literal::Int(4)));
    let Expression::Arithmetic(_, rest) = &**sum else { panic!("{sum:?}") };
    assert!(matches!(rest.as_slice(), [(_, Expression::Arithmetic(..))]));
}

#[test]
fn fields_may_be_qualified_with_the_table() {
    for statement in [
        "SELECT BlobStorage.a.b FROM BlobStorage",
        "SELECT t.a.b FROM BlobStorage AS t",
        "SELECT a.b FROM BlobStorage",
    ] {
        let Projection::Columns(columns) = parse(statement).unwrap().projection else { panic!() };
        let Expression::Column(column) = &columns[0].expression else { panic!() };
        assert_eq!(column.steps, [field("a"), field("b")], "{statement}");
    }
}

#[test]
fn invalid_statement_is_refused_with_the_position() {
    for (statement, position) in [
        ("", 0),
        ("DELETE", 0),
        ("SELECT", 6),
        ("SELECT FROM BlobStorage", 7),
        ("SELECT a b c FROM BlobStorage", 11),
        ("SELECT * FROM elsewhere", 14),
        ("SELECT * FROM BlobStorage.a", 25),
        ("SELECT * FROM BlobStorage[0]", 28),
        ("SELECT * FROM BlobStorage WHERE", 31),
        ("SELECT * FROM BlobStorage WHERE a =", 35),
        ("SELECT * FROM BlobStorage WHERE (a = 1", 38),
        ("SELECT * FROM BlobStorage WHERE a NOT 1", 38),
        ("SELECT * FROM BlobStorage LIMIT x", 33),
        ("SELECT * FROM BlobStorage; SELECT", 27),
        ("SELECT f(a) FROM BlobStorage", 7),
        ("SELECT CAST(a AS TEXT) FROM BlobStorage", 17),
        ("SELECT CAST(a) FROM BlobStorage", 13),
        ("SELECT LOWER(a, b) FROM BlobStorage", 19),
        ("SELECT DATE_ADD(week, 1, a) FROM BlobStorage", 16),
        ("SELECT COUNT(*), a FROM BlobStorage", 19),
        ("SELECT SUM(*) FROM BlobStorage", 11),
        ("SELECT LOWER(COUNT(a)) FROM BlobStorage", 13),
        ("SELECT a[b] FROM BlobStorage", 10),
        ("SELECT 1e999 FROM BlobStorage", 7),
        ("SELECT * FROM BlobStorage GROUP BY a", 32),
    ] {
        assert_eq!(refused(statement).0, position, "{statement} {:?}", refused(statement));
    }
    assert!(refused("SELECT sys.split(1) FROM BlobStorage").1.contains("10485760"));
}

#[test]
fn statements_are_bounded() {
    let columns = |count: usize| format!("SELECT {} FROM BlobStorage", vec!["a"; count].join(","));
    assert!(parse(&columns(49)).is_ok());
    assert!(refused(&columns(50)).1.contains("49"));
    let nested =
        |depth: usize| format!("SELECT {}a{} FROM BlobStorage", "(".repeat(depth), ")".repeat(depth));
    assert!(parse(&nested(MAX_DEPTH)).is_ok());
    for (open, close) in
        [("(", ")"), ("NOT ", ""), ("- ", ""), ("LOWER(", ")"), ("a IN (", ")"), ("CAST(", " AS INT)")]
    {
        let deep = format!("SELECT {}a{} FROM BlobStorage", open.repeat(20_000), close.repeat(20_000));
        if deep.len() < MAX_STATEMENT {
            assert!(refused(&deep).1.contains("nested"), "{open}");
        }
    }
    let path = format!("SELECT a{} FROM BlobStorage", "[0]".repeat(100));
    assert!(refused(&path).1.contains("path"));
    // Chains are not nested, however long they are.
    for operator in [" OR ", " AND ", "+", "*"] {
        let chain = format!("SELECT {} FROM BlobStorage", vec!["1"; 20_000].join(operator));
        assert!(parse(&chain).is_ok(), "{operator}");
    }
    assert!(refused(&" ".repeat(MAX_STATEMENT + 1)).1.contains("256 KiB"));
}
