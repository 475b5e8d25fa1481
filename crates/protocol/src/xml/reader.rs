//! Reads the XML body of a request, element by element.
//!
//! The document has to be UTF-8, well-formed and at most [`MAX_DEPTH`] levels deep. DTDs are refused, and the
//! only entities are the five of XML and character references, so a document cannot grow while it is read.
//! Attributes and namespaces are ignored. The caller limits the size of the body.

use std::fmt::Display;
use std::ops::RangeInclusive;

use quick_xml::events::{BytesRef, Event};

use crate::error::{ErrorCode, Refusal};

/// Maximum depth. The deepest document of the protocol has five levels.
const MAX_DEPTH: usize = 16;

/// A position in an XML document: inside an element, before its next child.
///
/// ```
/// # use lazuli_protocol::{Refusal, xml::Reader};
/// let document = b"<BlockList><Latest>AAA=</Latest><Latest>BBB=</Latest></BlockList>";
/// let mut xml = Reader::root(document, "BlockList")?;
/// let mut blocks = Vec::new();
/// while let Some(list) = xml.child()? {
///     match list {
///         "Latest" => blocks.push(xml.text()?),
///         _ => return Err(xml.unsupported()),
///     }
/// }
/// xml.finish()?;
/// assert_eq!(blocks, ["AAA=", "BBB="]);
/// # Ok::<(), Refusal>(())
/// ```
#[derive(Debug)]
pub struct Reader<'a> {
    inner: quick_xml::Reader<&'a [u8]>,
    depth: usize,
    /// The name of the element entered last.
    name: String,
}

impl<'a> Reader<'a> {
    /// Enters the root element of a document, which has to have this name.
    pub fn root(document: &'a [u8], name: &str) -> Result<Self, Refusal> {
        let text = std::str::from_utf8(document).map_err(|_| invalid("The document is not UTF-8."))?;
        if !text.chars().all(super::is_char) {
            return Err(invalid("The document holds a character that XML does not allow."));
        }
        let mut inner = quick_xml::Reader::from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
        inner.config_mut().expand_empty_elements = true;
        let mut reader = Self { inner, depth: 0, name: String::new() };
        match reader.child()? {
            Some(found) if found == name => Ok(reader),
            Some(found) => Err(invalid(format!("The root element is {found}, not {name}."))),
            None => Err(invalid("The document is empty.")),
        }
    }

    /// Enters the next child of the current element and returns its name. If there is none, leaves the
    /// current element and returns `None`. An entered element has to be read to its end, with
    /// [`Reader::text`], [`Reader::skip`] or further calls.
    pub fn child(&mut self) -> Result<Option<&str>, Refusal> {
        loop {
            match self.event()? {
                Event::Start(element) => {
                    let name = String::from_utf8_lossy(element.local_name().into_inner()).into_owned();
                    self.enter(name)?;
                    return Ok(Some(&self.name));
                }
                Event::End(_) => {
                    self.depth -= 1;
                    return Ok(None);
                }
                Event::Text(text) if text.trim_ascii().is_empty() => {}
                Event::Eof if self.depth == 0 => return Ok(None),
                Event::Eof => return Err(invalid("The document ends too early.")),
                _ => return Err(invalid("There is text where only elements may be.")),
            }
        }
    }

    /// Returns the text of the element just entered, which may contain no elements, and leaves the element.
    pub fn text(&mut self) -> Result<String, Refusal> {
        let depth = self.depth;
        self.read_text(depth, LineEnds::Normalized)
    }

    /// Returns the text of the element just entered without its markup, with line ends as sent, and leaves
    /// the element.
    pub fn text_without_markup(&mut self) -> Result<String, Refusal> {
        self.read_text(MAX_DEPTH, LineEnds::AsSent)
    }

    fn read_text(&mut self, max_depth: usize, line_ends: LineEnds) -> Result<String, Refusal> {
        let (outer, mut text) = (self.depth, String::new());
        while self.depth >= outer {
            match self.event()? {
                Event::Text(part) => text.push_str(&match line_ends {
                    LineEnds::Normalized => part.xml10_content().map_err(invalid)?,
                    LineEnds::AsSent => part.decode().map_err(invalid)?,
                }),
                Event::CData(part) => text.push_str(&match line_ends {
                    LineEnds::Normalized => part.xml10_content().map_err(invalid)?,
                    LineEnds::AsSent => part.decode().map_err(invalid)?,
                }),
                Event::GeneralRef(reference) => text.push(resolve(&reference)?),
                Event::Start(_) if self.depth < max_depth => self.depth += 1,
                Event::Start(_) => return Err(self.unsupported()),
                Event::End(_) => self.depth -= 1,
                _ => return Err(invalid("The document ends too early.")),
            }
        }
        Ok(text)
    }

    /// Skips the element just entered.
    pub fn skip(&mut self) -> Result<(), Refusal> {
        self.text_without_markup().map(|_| ())
    }

    /// Returns the parsed value of the element just entered. `parse` returns `None` for an invalid value,
    /// which is refused.
    pub fn value<T>(&mut self, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Refusal> {
        let name = self.name.clone();
        let text = self.text()?;
        parse(text.trim()).ok_or_else(|| {
            Refusal::new(ErrorCode::InvalidXmlNodeValue)
                .detail("XmlNodeName", name)
                .detail("XmlNodeValue", text)
        })
    }

    /// Returns the flag in the element just entered: `true`, `false`, `1` or `0`, ignoring case.
    pub fn flag(&mut self) -> Result<bool, Refusal> {
        self.value(|text| match text {
            "1" => Some(true),
            "0" => Some(false),
            _ => text.to_ascii_lowercase().parse().ok(),
        })
    }

    /// Returns the whole number in the element just entered, within a range.
    pub fn number(&mut self, allowed: RangeInclusive<u32>) -> Result<u32, Refusal> {
        self.value(|text| text.parse().ok().filter(|number| allowed.contains(number)))
    }

    /// Refuses the element just entered, which is not supported at this position.
    pub fn unsupported(&self) -> Refusal {
        Refusal::new(ErrorCode::UnsupportedXmlNode).detail("XmlNodeName", &*self.name)
    }

    /// Checks that nothing follows the root element. All elements have to have been left.
    pub fn finish(mut self) -> Result<(), Refusal> {
        debug_assert_eq!(self.depth, 0, "an element was entered and not left");
        match self.child()? {
            None => Ok(()),
            Some(_) => Err(invalid("There is more than one root element.")),
        }
    }

    fn enter(&mut self, name: String) -> Result<(), Refusal> {
        if self.depth == MAX_DEPTH {
            return Err(invalid("The document is nested too deeply."));
        }
        self.depth += 1;
        self.name = name;
        Ok(())
    }

    /// Returns the next event that is not a comment, a processing instruction or the declaration.
    fn event(&mut self) -> Result<Event<'a>, Refusal> {
        loop {
            match self.inner.read_event().map_err(invalid)? {
                Event::Comment(_) | Event::PI(_) | Event::Decl(_) => {}
                Event::DocType(_) => return Err(invalid("A document type declaration is not allowed.")),
                event => return Ok(event),
            }
        }
    }
}

/// How to treat carriage returns in text. XML parsers turn them into line feeds, alone or together with one;
/// but some clients mean them literally and do not escape them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnds {
    Normalized,
    AsSent,
}

/// Refuses an invalid document.
pub fn invalid(reason: impl Display) -> Refusal {
    Refusal::new(ErrorCode::InvalidXmlDocument).detail("Reason", reason.to_string())
}

/// Refuses a document without a required element.
pub fn missing(name: &str) -> Refusal {
    Refusal::new(ErrorCode::MissingRequiredXmlNode).detail("XmlNodeName", name)
}

fn resolve(reference: &BytesRef<'_>) -> Result<char, Refusal> {
    let character = match reference.resolve_char_ref() {
        Ok(Some(c)) => Some(c).filter(|c| super::is_char(*c)),
        Ok(None) => match &**reference {
            b"amp" => Some('&'),
            b"lt" => Some('<'),
            b"gt" => Some('>'),
            b"quot" => Some('"'),
            b"apos" => Some('\''),
            _ => None,
        },
        Err(_) => None,
    };
    character.ok_or_else(|| invalid("A reference is not a character that XML allows."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(document: &str) -> Result<Vec<(String, String)>, ErrorCode> {
        let read = || {
            let mut xml = Reader::root(document.as_bytes(), "R")?;
            let mut words = Vec::new();
            while let Some(name) = xml.child()? {
                let name = name.to_owned();
                words.push((name, xml.text()?));
            }
            xml.finish()?;
            Ok(words)
        };
        read().map_err(|refusal: Refusal| refusal.code())
    }

    fn pairs(expected: &[(&str, &str)]) -> Result<Vec<(String, String)>, ErrorCode> {
        Ok(expected.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect())
    }

    #[test]
    fn elements_and_text_are_read_in_order() {
        for (document, expected) in [
            ("<R/>", &[][..]),
            ("<R></R>", &[]),
            (
                "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<R>\n <A>1</A> <B/>\n</R>\n",
                &[("A", "1"), ("B", "")],
            ),
            ("<!-- c --><R x='1'><A y=\"2\">1<!-- c -->2</A></R><!-- c -->", &[("A", "12")]),
            ("<m:R xmlns:m='urn:x'><m:A>1</m:A></m:R>", &[("A", "1")]),
            ("<R><A>&lt;&amp;&gt;&quot;&apos;&#65;&#x42;</A></R>", &[("A", "<&>\"'AB")]),
            ("<R><A><![CDATA[<b>&amp;]]></A></R>", &[("A", "<b>&amp;")]),
            ("<R><A> a\r\nb\rc </A></R>", &[("A", " a\nb\nc ")]),
        ] {
            assert_eq!(words(document), pairs(expected), "{document}");
        }
    }

    #[test]
    fn invalid_documents_are_refused() {
        let deep = format!("<R>{}", "<A>".repeat(1000));
        let bomb = "<!DOCTYPE R [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><R><A>&b;</A></R>";
        for document in [
            "",
            " ",
            "<",
            "<R",
            "<R>",
            "<R><A></R>",
            "<R><A>1</B></R>",
            "<R></R><R></R>",
            "<R></R>x",
            "x<R></R>",
            "<S></S>",
            "</R>",
            "<R>text</R>",
            "<R>&amp;</R>",
            "<R><A>&nbsp;</A></R>",
            "<R><A>&#0;</A></R>",
            "<R><A>&#xFFFF;</A></R>",
            "<R><A>&#xD800;</A></R>",
            "<R><A>& </A></R>",
            "<R><A>\u{1}</A></R>",
            "<R><A><![CDATA[</A></R>",
            "{\"a\":1}",
            bomb,
        ] {
            assert_eq!(words(document), Err(ErrorCode::InvalidXmlDocument), "{document}");
        }
        assert_eq!(words(&deep), Err(ErrorCode::UnsupportedXmlNode));
        assert!(Reader::root(b"<R>\xff</R>", "R").is_err());
    }

    #[test]
    fn depth_is_limited() {
        let deep = format!("<R>{}", "<A>".repeat(100_000));
        let mut xml = Reader::root(deep.as_bytes(), "R").unwrap();
        let mut depth = 1;
        let refusal = loop {
            match xml.child() {
                Ok(_) => depth += 1,
                Err(refusal) => break refusal,
            }
        };
        assert_eq!((depth, refusal.code()), (MAX_DEPTH, ErrorCode::InvalidXmlDocument));
        let mut xml = Reader::root(deep.as_bytes(), "R").unwrap();
        assert!(xml.skip().is_err());
    }

    #[test]
    fn markup_in_text_is_refused_or_dropped_as_requested() {
        let document = b"<R><T>a<b>c</b>\r\nd<![CDATA[\r]]></T></R>";
        let mut xml = Reader::root(document, "R").unwrap();
        assert_eq!(xml.child().unwrap(), Some("T"));
        assert_eq!(xml.text().unwrap_err().code(), ErrorCode::UnsupportedXmlNode);
        let mut xml = Reader::root(document, "R").unwrap();
        assert_eq!(xml.child().unwrap(), Some("T"));
        assert_eq!(xml.text_without_markup().unwrap(), "ac\r\nd\r");
        assert_eq!(xml.child().unwrap(), None);
        assert!(xml.finish().is_ok());
    }

    #[test]
    fn refusals_of_typed_values_name_the_element() {
        let read = |document: &str| {
            let mut xml = Reader::root(document.as_bytes(), "R").unwrap();
            xml.child().unwrap();
            let flag = xml.flag();
            xml.child().unwrap();
            (flag, xml.number(1..=365))
        };
        assert_eq!(read("<R><E>true</E><D> 365 </D></R>"), (Ok(true), Ok(365)));
        assert_eq!(read("<R><E>False</E><D>1</D></R>"), (Ok(false), Ok(1)));
        let (flag, number) = read("<R><E>yes</E><D>366</D></R>");
        assert_eq!(flag.unwrap_err().code(), ErrorCode::InvalidXmlNodeValue);
        assert_eq!(
            number.unwrap_err().details(),
            [("XmlNodeName", "D".to_string()), ("XmlNodeValue", "366".to_string())]
        );
    }
}
