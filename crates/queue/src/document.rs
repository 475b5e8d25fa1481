//! The documents of messages: what a client sends, and what it is given.

use http::StatusCode;
use lazuli_protocol::{ErrorCode, Refusal, Request, Response, Version, date, xml};
use lazuli_store::SpaceId;

use crate::XML;
use crate::record::Message;
use crate::slot::{PopReceipt, Slot};

/// The text of a message, in bytes of UTF-8.
const MAX_TEXT: usize = 64 << 10;
/// The same before 2011-08-18.
const OLD_MAX_TEXT: usize = 8 << 10;

const ROOT: &str = "QueueMessage";
const TEXT: &str = "MessageText";

/// The text of the message that a request brings; `None` if it has no body.
pub(crate) async fn read_text(request: &mut Request) -> Result<Option<String>, Refusal> {
    let limit = request.operation.row().body.limit().unwrap_or_default();
    let body = request.read_body(limit).await?;
    parse(&body, request.version)
}

/// The refusal of a Put Message that brings no text.
pub(crate) fn no_text() -> Refusal {
    xml::missing(TEXT)
}

/// The text in a document; `None` if there is no document, or no text in it.
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
    let most = if version.at_least(2011, 8, 18) { MAX_TEXT } else { OLD_MAX_TEXT };
    match text {
        Some(text) if text.len() > most => {
            Err(Refusal::new(ErrorCode::RequestBodyTooLarge).detail("MaxLimit", most.to_string()))
        }
        text => Ok(text),
    }
}

/// Which of a message's elements are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// To the one who put it: not its text.
    Put,
    /// To the one who got it: everything.
    Got,
    /// To those who look: not what it is held by.
    Peeked,
}

/// The list of these messages of a queue.
pub(crate) fn list(
    status: StatusCode,
    queue: SpaceId,
    messages: &[(Slot, Message<'_>)],
    shown: Shown,
) -> Response {
    let mut xml = xml::Writer::new();
    xml.open("QueueMessagesList");
    for (slot, message) in messages {
        xml.open(ROOT);
        xml.text("MessageId", message.id().to_guid(queue));
        xml.text("InsertionTime", date::rfc1123(message.inserted()));
        xml.text("ExpirationTime", date::rfc1123(message.expires()));
        if shown != Shown::Peeked {
            xml.text("PopReceipt", PopReceipt(*slot));
            xml.text("TimeNextVisible", date::rfc1123(slot.visible_at));
        }
        if shown != Shown::Put {
            xml.text("DequeueCount", message.dequeue_count);
            xml.text(TEXT, &message.text);
        }
        xml.close();
    }
    Response::with_body(status, XML, xml.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Version = Version::NEWEST;

    fn text(document: &str) -> Result<Option<String>, ErrorCode> {
        parse(document.as_bytes(), NOW).map_err(|refusal| refusal.code())
    }

    #[test]
    fn the_text_is_what_the_client_meant() {
        let message =
            |inner: &str| format!("<QueueMessage><MessageText>{inner}</MessageText></QueueMessage>");
        for (inner, meant) in [
            ("", ""),
            (" \t a ", " \t a "),
            ("&lt;b&gt;&amp;&quot;&apos;", "<b>&\"'"),
            ("a\r\nb\rc\nd&#xD;&#10;", "a\r\nb\rc\nd\r\n"),
            ("😀&#x1F600;\u{10FFFF}é\u{FFFD}", "😀😀\u{10FFFF}é\u{FFFD}"),
            ("<![CDATA[<x>]]>", "<x>"),
            ("a<b>c</b>d", "acd"),
        ] {
            assert_eq!(text(&message(inner)), Ok(Some(meant.to_owned())), "{inner:?}");
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
    fn the_limit_is_on_the_text_and_not_on_its_escapes() {
        for (version, most) in [(NOW, MAX_TEXT), (Version::new(2009, 9, 19), OLD_MAX_TEXT)] {
            let document = |bytes: usize| {
                let text = "&amp;".repeat(bytes - 2) + "é";
                format!("<QueueMessage><MessageText>{text}</MessageText></QueueMessage>")
            };
            let fits = parse(document(most).as_bytes(), version).unwrap();
            assert_eq!(fits.map(|text| text.len()), Some(most));
            let refusal = parse(document(most + 1).as_bytes(), version).unwrap_err();
            assert_eq!(refusal.code(), ErrorCode::RequestBodyTooLarge);
            assert_eq!(refusal.details(), [("MaxLimit", most.to_string())]);
        }
    }
}
