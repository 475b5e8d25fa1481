//! Reads the XML document in which a client sends a message, and writes the list of messages in replies.

use http::StatusCode;
use lazuli_protocol::{ErrorCode, Refusal, Request, Response, Version, date, xml};
use lazuli_store::SpaceId;

use crate::record::Message;
use crate::slot::{PopReceipt, Slot};

/// Maximum size of a message's text, in bytes of UTF-8.
const MAX_TEXT: usize = 64 << 10;
/// Maximum size of a message's text before version 2011-08-18, in bytes of UTF-8.
const OLD_MAX_TEXT: usize = 8 << 10;

const ROOT: &str = "QueueMessage";
const TEXT: &str = "MessageText";

/// Reads the text of the message in a request's body. Returns `None` if the request has no body.
pub(crate) async fn read_text(request: &mut Request) -> Result<Option<String>, Refusal> {
    let body = request.read_document().await?;
    parse(&body, request.version)
}

/// Returns the refusal of a Put Message without text.
pub(crate) fn no_text() -> Refusal {
    xml::missing(TEXT)
}

/// Parses a document and returns its text. Returns `None` if the document is empty or has no text.
pub(crate) fn parse(body: &[u8], version: Version) -> Result<Option<String>, Refusal> {
    if body.is_empty() {
        return Ok(None);
    }
    let mut xml = xml::Reader::root(body, ROOT)?;
    let mut text = None;
    while let Some(element) = xml.child()? {
        match element {
            TEXT => text = Some(xml.text_without_markup()?),
            _ => xml.skip()?,
        }
    }
    xml.finish()?;
    let max_bytes = if version.at_least(2011, 8, 18) { MAX_TEXT } else { OLD_MAX_TEXT };
    match text {
        Some(text) if text.len() > max_bytes => {
            Err(Refusal::new(ErrorCode::RequestBodyTooLarge).detail("MaxLimit", max_bytes.to_string()))
        }
        text => Ok(text),
    }
}

/// The operation that a list of messages answers. It decides which elements of each message are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyTo {
    /// All elements except the dequeue count and the text.
    Put,
    /// All elements.
    Get,
    /// All elements except the pop receipt and the time of the next visibility.
    Peek,
}

/// Renders the list of the given messages of a queue.
pub(crate) fn list(
    status: StatusCode,
    queue: SpaceId,
    messages: &[(Slot, Message<'_>)],
    reply_to: ReplyTo,
) -> Response {
    let mut xml = xml::Writer::new();
    xml.open("QueueMessagesList");
    for (slot, message) in messages {
        xml.open(ROOT);
        xml.text("MessageId", message.id().to_guid(queue));
        xml.text("InsertionTime", date::rfc1123(message.inserted()));
        xml.text("ExpirationTime", date::rfc1123(message.expires()));
        if reply_to != ReplyTo::Peek {
            xml.text("PopReceipt", PopReceipt(*slot));
            xml.text("TimeNextVisible", date::rfc1123(slot.visible_at));
        }
        if reply_to != ReplyTo::Put {
            xml.text("DequeueCount", message.dequeue_count);
            xml.text(TEXT, &message.text);
        }
        xml.close();
    }
    Response { status, ..Response::xml(xml.finish()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Version = Version::NEWEST;

    fn text(document: &str) -> Result<Option<String>, ErrorCode> {
        parse(document.as_bytes(), NOW).map_err(|refusal| refusal.code())
    }

    #[test]
    fn text_is_unescaped_and_line_ends_are_normalized() {
        let message =
            |inner: &str| format!("<QueueMessage><MessageText>{inner}</MessageText></QueueMessage>");
        for (inner, expected) in [
            ("", ""),
            (" \t a ", " \t a "),
            ("&lt;b&gt;&amp;&quot;&apos;", "<b>&\"'"),
            ("a\r\nb\rc\nd&#xD;&#10;", "a\r\nb\rc\nd\r\n"),
            ("😀&#x1F600;\u{10FFFF}é\u{FFFD}", "😀😀\u{10FFFF}é\u{FFFD}"),
            ("<![CDATA[<x>]]>", "<x>"),
            ("a<b>c</b>d", "acd"),
        ] {
            assert_eq!(text(&message(inner)), Ok(Some(expected.to_owned())), "{inner:?}");
        }
    }

    #[test]
    fn documents_that_are_not_messages_are_refused() {
        assert_eq!(text(""), Ok(None));
        assert_eq!(text("<QueueMessage/>"), Ok(None));
        assert_eq!(
            text("<QueueMessage><X>1</X><MessageText>a</MessageText></QueueMessage>"),
            Ok(Some("a".to_owned()))
        );
        for document in [
            " ",
            "a",
            "<MessageText>a</MessageText>",
            "<QueueMessage><MessageText>a</QueueMessage>",
            "<QueueMessage><MessageText>\u{1}</MessageText></QueueMessage>",
            "<QueueMessage><MessageText>&#1;</MessageText></QueueMessage>",
            "<QueueMessage><MessageText>\u{FFFF}</MessageText></QueueMessage>",
            "<QueueMessage><MessageText>&unknown;</MessageText></QueueMessage>",
            "<QueueMessage/><QueueMessage/>",
        ] {
            assert_eq!(text(document), Err(ErrorCode::InvalidXmlDocument), "{document}");
        }
    }

    #[test]
    fn size_limit_applies_to_the_unescaped_text() {
        for (version, max_bytes) in [(NOW, MAX_TEXT), (Version::new(2009, 9, 19), OLD_MAX_TEXT)] {
            let document = |bytes: usize| {
                let text = "&amp;".repeat(bytes - 2) + "é";
                format!("<QueueMessage><MessageText>{text}</MessageText></QueueMessage>")
            };
            let fits = parse(document(max_bytes).as_bytes(), version).unwrap();
            assert_eq!(fits.map(|text| text.len()), Some(max_bytes));
            let refusal = parse(document(max_bytes + 1).as_bytes(), version).unwrap_err();
            assert_eq!(refusal.code(), ErrorCode::RequestBodyTooLarge);
            assert_eq!(refusal.details(), [("MaxLimit", max_bytes.to_string())]);
        }
    }
}
