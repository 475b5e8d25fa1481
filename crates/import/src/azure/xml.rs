//! Answers in XML as trees of elements, within limits on depth and size.

use percent_encoding::percent_decode_str;
use quick_xml::Reader;
use quick_xml::escape::escape;
use quick_xml::events::{BytesStart, Event};

/// Maximum depth of a document.
const MAX_DEPTH: usize = 16;
/// Maximum number of elements of a document: several times as many as the longest page of a listing has.
const MAX_ELEMENTS: usize = 1_000_000;

/// An element with its text and its children.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct XmlElement {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) children: Vec<XmlElement>,
    /// The text is percent-encoded, because XML cannot hold some of its characters.
    is_encoded: bool,
}

impl XmlElement {
    /// Parses a document. Refuses document type declarations, so a document cannot grow while it is read.
    pub(super) fn parse(document: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(document).map_err(|_| "the answer is not UTF-8")?;
        let mut reader = Reader::from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
        reader.config_mut().expand_empty_elements = true;
        let mut open: Vec<Self> = vec![Self::default()];
        let mut count = 0;
        loop {
            let invalid = |error: &dyn std::fmt::Display| format!("the answer is invalid XML: {error}");
            let event = reader.read_event().map_err(|error| invalid(&error))?;
            let depth = open.len();
            let Some(current) = open.last_mut() else { return Err("the answer is invalid XML".into()) };
            match event {
                Event::Start(start) => {
                    count += 1;
                    if depth > MAX_DEPTH || count > MAX_ELEMENTS {
                        return Err("the answer has too many elements".into());
                    }
                    open.push(Self::from_start(&start));
                }
                Event::End(_) => {
                    let Some(ended) = open.pop() else { return Err(invalid(&"an end")) };
                    match open.last_mut() {
                        Some(parent) => parent.children.push(ended),
                        None => return Err(invalid(&"an end")),
                    }
                }
                Event::Text(text) => {
                    current.text.push_str(&text.xml10_content().map_err(|error| invalid(&error))?);
                }
                Event::CData(text) => {
                    current.text.push_str(&text.xml10_content().map_err(|error| invalid(&error))?);
                }
                Event::GeneralRef(reference) => {
                    let character = match reference.resolve_char_ref() {
                        Ok(Some(character)) => Some(character),
                        _ => match &*reference {
                            b"amp" => Some('&'),
                            b"lt" => Some('<'),
                            b"gt" => Some('>'),
                            b"quot" => Some('"'),
                            b"apos" => Some('\''),
                            _ => None,
                        },
                    };
                    current.text.push(character.ok_or_else(|| invalid(&"an unknown reference"))?);
                }
                Event::DocType(_) => return Err(invalid(&"a document type declaration")),
                Event::Eof => break,
                _ => {}
            }
        }
        match (open.pop(), open.is_empty()) {
            (Some(mut document), true) if document.children.len() == 1 => {
                Ok(document.children.swap_remove(0))
            }
            _ => Err("the answer is not one XML document".into()),
        }
    }

    fn from_start(start: &BytesStart<'_>) -> Self {
        let name = String::from_utf8_lossy(start.local_name().into_inner()).into_owned();
        let is_encoded = start.attributes().flatten().any(|attribute| {
            attribute.key.local_name().into_inner() == b"Encoded"
                && attribute.value.eq_ignore_ascii_case(b"true")
        });
        Self { name, is_encoded, ..Self::default() }
    }

    /// Returns the first child of that name.
    pub(super) fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }

    /// Returns the text of the first child of that name, or an empty text.
    pub(super) fn value(&self, name: &str) -> &str {
        self.child(name).map_or("", |child| child.text.as_str())
    }

    /// Returns the text of the child `Name`, decoded.
    pub(super) fn object_name(&self) -> Result<String, String> {
        let name = self.child("Name").ok_or("an object of the listing has no name")?;
        if !name.is_encoded {
            return Ok(name.text.clone());
        }
        let decoded = percent_decode_str(&name.text).decode_utf8();
        decoded.map(Into::into).map_err(|_| format!("the name {} is not UTF-8", name.text))
    }

    /// Returns the element as XML.
    pub(super) fn to_xml(&self) -> String {
        let mut xml = String::new();
        self.write(&mut xml);
        xml
    }

    fn write(&self, xml: &mut String) {
        xml.push_str(&format!("<{}>", self.name));
        if self.children.is_empty() {
            xml.push_str(&escape(&self.text));
        }
        for child in &self.children {
            child.write(xml);
        }
        xml.push_str(&format!("</{}>", self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_decoded_if_they_are_encoded() {
        let document = "\u{feff}<?xml version=\"1.0\"?><R><Blob><Name Encoded=\"true\">a%EF%BF%BE</Name></Blob>\
                        <Blob><Name>b%2F&lt;&#252;</Name></Blob></R>";
        let root = XmlElement::parse(document.as_bytes()).unwrap();
        let names: Vec<_> = root.children.iter().map(|child| child.object_name().unwrap()).collect();
        assert_eq!(names, ["a\u{fffe}", "b%2F<ü"]);
        assert_eq!(root.children[1].to_xml(), "<Blob><Name>b%2F&lt;ü</Name></Blob>");
    }

    #[test]
    fn invalid_documents_are_refused() {
        let deep = "<a>".repeat(100);
        let bomb = "<!DOCTYPE R [<!ENTITY a \"aaaa\">]><R>&a;</R>";
        for document in ["", "<a>", "</a>", "<a></b>", "<a/><b/>", "text", "<a>&b;</a>", bomb, &deep] {
            assert!(XmlElement::parse(document.as_bytes()).is_err(), "{document}");
        }
    }
}
