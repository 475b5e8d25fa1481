//! Writes small XML documents: elements, attributes, text.
//!
//! Documents are always well-formed: elements are closed in order, text is escaped, and a character that XML
//! does not allow becomes U+FFFD. There is no byte order mark: some clients fail on one, and none needs it.

use std::fmt::{self, Display, Write as _};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

const DECLARATION: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>";

/// Characters that are escaped in a name sent as `Encoded="true"`. Characters beyond ASCII are escaped too.
const ENCODED_NAME: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%').add(b'&').add(b'<').add(b'>');

/// Returns the percent-encoded name if XML cannot hold the name itself.
pub fn encoded(name: &str) -> Option<String> {
    let fits = name.chars().all(super::is_char);
    (!fits).then(|| utf8_percent_encode(name, ENCODED_NAME).to_string())
}

/// An XML document under construction.
#[derive(Debug)]
pub struct Writer {
    out: String,
    open: Vec<&'static str>,
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    /// Creates a document that has only its declaration.
    pub fn new() -> Self {
        Self { out: DECLARATION.to_owned(), open: Vec::new() }
    }

    /// Opens an element.
    pub fn open(&mut self, name: &'static str) -> &mut Self {
        self.open_with(name, &[])
    }

    /// Opens an element that has attributes.
    pub fn open_with(&mut self, name: &'static str, attributes: &[(&str, &str)]) -> &mut Self {
        self.start(name, attributes);
        self.open.push(name);
        self
    }

    /// Closes the innermost open element.
    pub fn close(&mut self) -> &mut Self {
        debug_assert!(!self.open.is_empty(), "nothing is open");
        if let Some(name) = self.open.pop() {
            self.end(name);
        }
        self
    }

    /// Writes an element with text.
    pub fn text(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.text_with(name, &[], value)
    }

    /// Writes an element with text from a string: faster than [`Writer::text`], for listings.
    #[inline]
    pub fn string(&mut self, name: &str, value: &str) -> &mut Self {
        self.out.reserve(2 * name.len() + value.len() + "<></>".len());
        self.start(name, &[]);
        Escape(&mut self.out).push(value);
        self.end(name);
        self
    }

    /// Writes an element with attributes and text.
    pub fn text_with(&mut self, name: &str, attributes: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.start(name, attributes);
        self.escaped(value);
        self.end(name);
        self
    }

    /// Writes an element if there is a value.
    pub fn optional(&mut self, name: &str, value: Option<impl Display>) -> &mut Self {
        if let Some(value) = value {
            self.text(name, value);
        }
        self
    }

    /// Writes an empty element.
    #[inline]
    pub fn empty(&mut self, name: &str) -> &mut Self {
        self.out.push('<');
        self.out.push_str(name);
        self.out.push_str(" />");
        self
    }

    /// Writes the name of a blob, file or prefix: as it is, or percent-encoded and marked if XML cannot hold
    /// it.
    pub fn name(&mut self, element: &str, name: &str) -> &mut Self {
        match encoded(name) {
            None => self.string(element, name),
            Some(name) => self.text_with(element, &[("Encoded", "true")], name),
        }
    }

    /// Returns the number of bytes written so far.
    pub fn written(&self) -> usize {
        self.out.len()
    }

    /// Reserves memory for further output, so that the text is not moved repeatedly while it grows.
    pub fn reserve(&mut self, bytes: usize) {
        self.out.reserve(bytes);
    }

    /// Closes all open elements and returns the document.
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.out
    }

    // Inlined where names are constant, these take a few instructions each.
    #[inline]
    fn start(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.out.push('<');
        self.out.push_str(name);
        for (attribute, value) in attributes {
            self.out.push(' ');
            self.out.push_str(attribute);
            self.out.push_str("=\"");
            self.escaped(value);
            self.out.push('"');
        }
        self.out.push('>');
    }

    #[inline]
    fn end(&mut self, name: &str) {
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push('>');
    }

    fn escaped(&mut self, value: impl Display) {
        // Writing to a string cannot fail. A `Display` that fails leaves a shorter text, but a well-formed
        // document.
        let _ = write!(Escape(&mut self.out), "{value}");
    }
}

/// Returns whether a byte needs no escape. Has no branches, so that the compiler can vectorize its callers.
const fn is_plain(byte: u8) -> bool {
    (b' ' <= byte) & (byte <= b'~') & (byte != b'&') & (byte != b'<') & (byte != b'>') & (byte != b'"')
}

struct Escape<'a>(&'a mut String);

impl Escape<'_> {
    #[inline]
    fn push(&mut self, text: &str) {
        // Most text needs no escape.
        if text.bytes().fold(true, |plain, byte| plain & is_plain(byte)) {
            self.0.push_str(text);
        } else {
            self.push_escaped(text);
        }
    }

    fn push_escaped(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                // A parser would turn an unescaped carriage return into a line feed.
                '\r' => self.0.push_str("&#xD;"),
                c if super::is_char(c) => self.0.push(c),
                _ => self.0.push('\u{fffd}'),
            }
        }
    }
}

impl fmt::Write for Escape<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Writer)) -> String {
        let mut xml = Writer::new();
        write(&mut xml);
        xml.finish().strip_prefix(DECLARATION).unwrap().to_owned()
    }

    #[test]
    fn elements_nest_and_close() {
        let xml = written(|xml| {
            xml.open_with("EnumerationResults", &[("ServiceEndpoint", "http://h/?a=1&b=\"2\"")]);
            xml.open("Blobs")
                .text("Size", 7)
                .optional("Etag", None::<&str>)
                .optional("Tier", Some("Hot"))
                .close();
            xml.empty("NextMarker");
        });
        assert_eq!(
            xml,
            "<EnumerationResults ServiceEndpoint=\"http://h/?a=1&amp;b=&quot;2&quot;\">\
             <Blobs><Size>7</Size><Tier>Hot</Tier></Blobs><NextMarker /></EnumerationResults>"
        );
    }

    #[test]
    fn text_is_escaped_and_invalid_characters_are_replaced() {
        let xml = written(|xml| {
            let text = "a<b>&\"c'\r\n\té\u{1}\u{ffff}";
            xml.text("T", text).string("T", text);
        });
        let element = "<T>a&lt;b&gt;&amp;&quot;c'&#xD;\n\té\u{fffd}\u{fffd}</T>";
        assert_eq!(xml, [element, element].concat());
    }

    #[test]
    fn names_that_xml_cannot_hold_are_percent_encoded_and_marked() {
        let xml = written(|xml| {
            xml.name("Name", "a b%&").name("Name", "a b%\u{ffff}é/");
        });
        assert_eq!(xml, "<Name>a b%&amp;</Name><Name Encoded=\"true\">a%20b%25%EF%BF%BF%C3%A9/</Name>");
    }
}
