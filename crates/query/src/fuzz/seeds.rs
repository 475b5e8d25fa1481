//! Valid inputs for the entry points of [`super`], from which the fuzzer starts.

const SALES: &str =
    "id,name,price,day\n1,mouse,12.5,2020-02-29T10:11:12Z\n2,\"key,\"\"board\",80,2021-01-01T\r\n";
const STOCK: &str = concat!(
    r#"{"id":1,"name":"mo\u0075se","price":12.5,"tags":["wireless","accessory"],"dimensions":{"length":3},"#,
    r#""warehouses":[{"latitude":41.8,"longitude":-87.6},{"latitude":1e2,"longitude":null}],"new":true}"#,
);

/// Seeds of [`super::statement`].
pub fn statement() -> Vec<Vec<u8>> {
    // Columns by position and by name, conditions and arithmetic.
    let sales = [
        "SELECT * FROM BlobStorage",
        "select name, _1 from blobstorage where _2 <> 'x' limit 1;",
        "SELECT s.id AS a, s.\"name\" b FROM BlobStorage s WHERE NOT (s.id = 3 OR s.name IN ('it''s', 'm'))",
        "SELECT id * 2 + 1, id % 2, -id, 7 / 2, 1.5e3 - id FROM BlobStorage WHERE id BETWEEN 1 AND 2",
        "SELECT id FROM BlobStorage WHERE name LIKE 'm%_e' OR name NOT LIKE 'a!%%' ESCAPE '!' AND id NOT IN (9)",
        "SELECT id FROM BlobStorage WHERE price >= 12.5 AND price <= 100 AND id != 7 AND price IS NOT NULL",
        "SELECT COUNT(*), SUM(id), AVG(id), AVERAGE(id), MIN(name), MAX(CAST(price AS FLOAT)) FROM BlobStorage",
        "SELECT CHAR_LENGTH(name), CHARACTER_LENGTH('a'), LOWER(name), UPPER(name), SUBSTRING(name, 1, 2) FROM BlobStorage",
        "SELECT TRIM(name), TRIM(LEADING FROM name), TRIM(TRAILING 'e' FROM name), TRIM(BOTH '12' FROM '121') FROM BlobStorage",
        "SELECT CAST(id AS INT), CAST(price AS FLOAT), CAST('true' AS BOOLEAN), CAST(id AS STRING) FROM BlobStorage",
        "SELECT DATE_ADD('minute', 1, CAST(day AS TIMESTAMP)), DATE_DIFF(hour, day, '2018-11-09T01:00:23-08:00') FROM BlobStorage",
        "SELECT EXTRACT(YEAR FROM day), EXTRACT(timezone_hour FROM day), TO_TIMESTAMP(day), UTCNOW() FROM BlobStorage",
        "SELECT TO_STRING(CAST(day AS TIMESTAMP), 'MMMM d, yyyy HH:mm:ss.SSS a XXX') FROM BlobStorage",
        "SELECT COALESCE(NULL, NULLIF(id, 1), 'other'), TRUE, FALSE, 1 = 1 FROM BlobStorage",
    ];
    let csv =
        ["SELECT sys.split(10485760) FROM BlobStorage", "SELECT _3, _1 FROM BlobStorage WHERE _4 > '2'"];
    let stock = [
        "SELECT latitude FROM BlobStorage[*].warehouses[*] WHERE latitude > -1 LIMIT 3",
        "SELECT length FROM BlobStorage[*].dimensions",
        "SELECT price,warehouses[0].longitude,id,tags[1] FROM BlobStorage[*]",
        "SELECT b.dimensions.length, \"name\" FROM BlobStorage AS b WHERE weight IS MISSING AND new",
        "SELECT * FROM BlobStorage[*].tags[*]",
    ];
    let with = |blob: &'static str| move |statement: &str| [statement, blob].join("\0").into_bytes();
    let mut seeds: Vec<_> = sales.into_iter().chain(csv).map(with(SALES)).collect();
    seeds.extend(stock.into_iter().map(with(STOCK)));
    seeds
}

/// Seeds of [`super::blob`]. The first byte is the size of the parts, less one.
pub fn blob() -> Vec<Vec<u8>> {
    let odd = "a::'b!c'::d!'it''s'::e\\!f::!";
    let array = r#"[{"a":1},{"a":"x\"\\\/\n\ud83d\ude00"}, {"b":[[],{}]}]"#;
    let separated = format!("{STOCK}--{STOCK}--\n");
    let texts =
        [SALES, odd, array, &separated, "\u{feff}a,b\n\n1,\"2\r\n3\"\r\n", "{\"a\":-1.5E+10}{\"a\":false}"];
    let sizes = [0, 6, 255].into_iter().cycle();
    texts.into_iter().zip(sizes).map(|(text, size)| [&[size], text.as_bytes()].concat()).collect()
}
