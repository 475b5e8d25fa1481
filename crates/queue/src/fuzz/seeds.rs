//! Valid inputs for the entry points of [`super`], from which the fuzzer starts.

use lazuli_concurrency::{Stamp, Timestamp};

use super::QUEUE;
use crate::slot::{MessageId, PopReceipt, Slot};

/// Seeds of [`super::message`].
pub fn message() -> Vec<Vec<u8>> {
    [
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><QueueMessage><MessageText>aGVsbG8=</MessageText></QueueMessage>",
        "\u{feff}<?xml version='1.0'?>\r\n<QueueMessage>\n <Other a=\"b\"><x/></Other><MessageText> a\r\nb&#xD;&amp;&lt;&quot;&#65;\
         </MessageText>\n</QueueMessage>",
        "<QueueMessage><MessageText><![CDATA[<x> ]]>\u{e9}\u{1f600}</MessageText></QueueMessage>",
        "<QueueMessage><MessageText/></QueueMessage>",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Seeds of [`super::receipt`].
pub fn receipt() -> Vec<Vec<u8>> {
    let (visible_at, stamp) = (Timestamp::from_unix_seconds(1_700_000_000), Stamp::from_ticks(1 << 60));
    let id = MessageId(stamp).to_guid(QUEUE);
    let receipts =
        [Slot::FIRST, Slot { visible_at, stamp, index: 3 }].map(|slot| PopReceipt(slot).to_string());
    let ids = [
        id.to_string(),
        id.simple().to_string(),
        id.braced().to_string().to_uppercase(),
        id.urn().to_string(),
    ];
    receipts.into_iter().chain(ids).map(String::into_bytes).collect()
}
