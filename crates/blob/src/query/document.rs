//! Parses the body of Query Blob Contents: the expression, and the formats of the blob and of the reply.

use lazuli_protocol::{ErrorCode, Refusal, xml};
use lazuli_query::{Delimited, Format};

/// The query of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueryRequest {
    pub(super) expression: String,
    pub(super) input: Format,
    pub(super) output: Format,
}

/// A named format, with the settings of all formats in the document.
#[derive(Default)]
struct Serialization {
    kind: Option<String>,
    delimited: Delimited,
    json_separator: Option<String>,
}

/// Parses the body of a request. A format that the document omits is delimited text.
pub(crate) fn parse(document: &[u8]) -> Result<QueryRequest, Refusal> {
    let mut xml = xml::Reader::root(document, "QueryRequest")?;
    let (mut has_type, mut expression) = (false, None);
    let (mut input, mut output) = (Format::default(), Format::default());
    while let Some(name) = xml.child()? {
        match name {
            "QueryType" => {
                xml.value(|text| text.eq_ignore_ascii_case("SQL").then_some(()))?;
                has_type = true;
            }
            "Expression" => expression = Some(xml.text()?),
            "InputSerialization" => input = serialization(&mut xml, "Parquet")?,
            "OutputSerialization" => output = serialization(&mut xml, "Arrow")?,
            _ => return Err(xml.unsupported()),
        }
    }
    xml.finish()?;
    if !has_type {
        return Err(xml::missing("QueryType"));
    }
    let expression = expression.ok_or_else(|| xml::missing("Expression"))?;
    Ok(QueryRequest { expression, input, output })
}

/// Parses a serialization. `other` is the format that the protocol has for this direction and the server
/// lacks.
fn serialization(xml: &mut xml::Reader<'_>, other: &str) -> Result<Format, Refusal> {
    let mut read = None;
    while let Some(name) = xml.child()? {
        match name {
            "Format" => read = Some(format(xml)?),
            _ => return Err(xml.unsupported()),
        }
    }
    let Serialization { kind, delimited, json_separator } = read.ok_or_else(|| xml::missing("Format"))?;
    let kind = kind.ok_or_else(|| xml::missing("Type"))?;
    match kind.to_ascii_lowercase().as_str() {
        "delimited" => Ok(Format::Delimited(delimited)),
        "json" => Ok(Format::Json { record_separator: json_separator.unwrap_or_else(|| "\n".to_owned()) }),
        kind if kind == other.to_ascii_lowercase() => {
            Err(Refusal::not_implemented(format!("Query Blob Contents with {other}")))
        }
        _ => Err(invalid("Type", &kind)),
    }
}

fn format(xml: &mut xml::Reader<'_>) -> Result<Serialization, Refusal> {
    let mut read = Serialization::default();
    while let Some(name) = xml.child()? {
        match name {
            "Type" => read.kind = Some(xml.text()?.trim().to_owned()),
            "DelimitedTextConfiguration" => read.delimited = delimited(xml)?,
            "JsonTextConfiguration" => read.json_separator = json_separator(xml)?,
            "ArrowConfiguration" | "ParquetTextConfiguration" => xml.skip()?,
            _ => return Err(xml.unsupported()),
        }
    }
    Ok(read)
}

fn delimited(xml: &mut xml::Reader<'_>) -> Result<Delimited, Refusal> {
    let usual = Delimited::default();
    let (mut column, mut record) = (String::new(), String::new());
    let (mut read, mut has_headers) = (usual, false);
    while let Some(name) = xml.child()? {
        match name {
            // White space is significant here, including line ends as they were sent.
            "ColumnSeparator" => column = xml.text_without_markup()?,
            "RecordSeparator" => record = xml.text_without_markup()?,
            "FieldQuote" => read = read.quoted(character(xml, "FieldQuote")?),
            "EscapeChar" => read = read.escaped(character(xml, "EscapeChar")?),
            "HasHeaders" => has_headers = xml.flag()?,
            _ => return Err(xml.unsupported()),
        }
    }
    let read = read.with_headers(has_headers).separated_by(&column, &record);
    read.ok_or_else(|| {
        invalid("ColumnSeparator", &column).detail("Reason", "A separator has at most 8 bytes.")
    })
}

fn json_separator(xml: &mut xml::Reader<'_>) -> Result<Option<String>, Refusal> {
    const MAX_SEPARATOR: usize = 8;
    let mut separator = None;
    while let Some(name) = xml.child()? {
        match name {
            "RecordSeparator" => separator = Some(xml.text_without_markup()?),
            _ => return Err(xml.unsupported()),
        }
    }
    match separator {
        Some(separator) if separator.len() > MAX_SEPARATOR => Err(invalid("RecordSeparator", &separator)),
        separator => Ok(separator.filter(|separator| !separator.is_empty())),
    }
}

/// Parses text of at most one character.
fn character(xml: &mut xml::Reader<'_>, name: &str) -> Result<Option<char>, Refusal> {
    let text = xml.text_without_markup()?;
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (character, None) => Ok(character),
        _ => Err(invalid(name, &text)),
    }
}

fn invalid(name: &str, value: &str) -> Refusal {
    Refusal::new(ErrorCode::InvalidXmlNodeValue).detail("XmlNodeName", name).detail("XmlNodeValue", value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(inner: &str) -> String {
        format!(
            "<QueryRequest><QueryType>SQL</QueryType><Expression>SELECT</Expression>{inner}</QueryRequest>"
        )
    }

    fn input(format: &str) -> Result<Format, ErrorCode> {
        let document =
            document(&format!("<InputSerialization><Format>{format}</Format></InputSerialization>"));
        parse(document.as_bytes()).map(|read| read.input).map_err(|refusal| refusal.code())
    }

    #[test]
    fn omitted_settings_have_their_defaults() {
        let read = parse(document("").as_bytes()).unwrap();
        assert_eq!((read.input, read.output), (Format::default(), Format::default()));
        assert_eq!(input("<Type>delimited</Type>"), Ok(Format::default()));
        let empty = "<Type>delimited</Type><DelimitedTextConfiguration><ColumnSeparator/><RecordSeparator></RecordSeparator>\
                     </DelimitedTextConfiguration>";
        assert_eq!(input(empty), Ok(Format::default()));
        assert_eq!(input("<Type>JSON</Type>"), Ok(Format::Json { record_separator: "\n".into() }));
    }

    #[test]
    fn settings_are_parsed() {
        let text = "<Type>delimited</Type><DelimitedTextConfiguration><ColumnSeparator>\t</ColumnSeparator>\
                    <FieldQuote></FieldQuote><RecordSeparator>\r\n</RecordSeparator><EscapeChar>\\</EscapeChar>\
                    <HasHeaders>true</HasHeaders></DelimitedTextConfiguration>";
        let expected = Delimited::default().separated_by("\t", "\r\n").unwrap();
        let expected = expected.quoted(None).escaped(Some('\\')).with_headers(true);
        assert_eq!(input(text), Ok(Format::Delimited(expected)));
        let text = "<Type>json</Type><JsonTextConfiguration><RecordSeparator>;</RecordSeparator></JsonTextConfiguration>";
        assert_eq!(input(text), Ok(Format::Json { record_separator: ";".into() }));
    }

    #[test]
    fn invalid_query_request_is_refused() {
        let long = "<Type>delimited</Type><DelimitedTextConfiguration><ColumnSeparator>123456789</ColumnSeparator>\
                    </DelimitedTextConfiguration>";
        let quote = "<Type>delimited</Type><DelimitedTextConfiguration><FieldQuote>ab</FieldQuote></DelimitedTextConfiguration>";
        for (format, code) in [
            ("", ErrorCode::MissingRequiredXmlNode),
            ("<Type>text</Type>", ErrorCode::InvalidXmlNodeValue),
            ("<Type>arrow</Type>", ErrorCode::InvalidXmlNodeValue),
            ("<Type>parquet</Type>", ErrorCode::NotImplemented),
            ("<Kind>json</Kind>", ErrorCode::UnsupportedXmlNode),
            (long, ErrorCode::InvalidXmlNodeValue),
            (quote, ErrorCode::InvalidXmlNodeValue),
        ] {
            assert_eq!(input(format), Err(code), "{format}");
        }
        for (document, code) in [
            ("", ErrorCode::InvalidXmlDocument),
            ("<Other/>", ErrorCode::InvalidXmlDocument),
            ("<QueryRequest/>", ErrorCode::MissingRequiredXmlNode),
            ("<QueryRequest><QueryType>SQL</QueryType></QueryRequest>", ErrorCode::MissingRequiredXmlNode),
            ("<QueryRequest><QueryType>XPath</QueryType></QueryRequest>", ErrorCode::InvalidXmlNodeValue),
        ] {
            assert_eq!(parse(document.as_bytes()).map_err(|refusal| refusal.code()), Err(code), "{document}");
        }
    }
}
