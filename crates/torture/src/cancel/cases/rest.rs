//! Queues and tables.

use lazuli_protocol::ServiceKind;

use super::Case;

const PROPERTIES: &str = "PUT /?restype=service&comp=properties\n\n<StorageServiceProperties><HourMetrics><Version>1.0</Version><Enabled>false</Enabled><RetentionPolicy><Enabled>false</Enabled></RetentionPolicy></HourMetrics><Cors><CorsRule><AllowedOrigins>http://a.example</AllowedOrigins><AllowedMethods>GET</AllowedMethods><AllowedHeaders/><ExposedHeaders/><MaxAgeInSeconds>5</MaxAgeInSeconds></CorsRule></Cors></StorageServiceProperties>";
const ACL: &str = "PUT /qqq?comp=acl\n\n<SignedIdentifiers><SignedIdentifier><Id>one</Id><AccessPolicy><Start>2020-01-01T00:00:00Z</Start><Expiry>2099-01-01T00:00:00Z</Expiry><Permission>r</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>";
const TABLE_ACL: &str = "PUT /ttt?comp=acl\n\n<SignedIdentifiers><SignedIdentifier><Id>one</Id><AccessPolicy><Start>2020-01-01T00:00:00Z</Start><Expiry>2099-01-01T00:00:00Z</Expiry><Permission>r</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>";

const Q: &str = "PUT /qqq";
const M: &str = "POST /qqq/messages\n\n<QueueMessage><MessageText>one</MessageText></QueueMessage>";
const M2: &str = "POST /qqq/messages\n\n<QueueMessage><MessageText>two</MessageText></QueueMessage>";
const GET: &str = "GET /qqq/messages?numofmessages=1&visibilitytimeout=600";

const T: &str = "POST /Tables\ncontent-type: application/json\n\n{\"TableName\":\"ttt\"}";
const E: &str =
    "POST /ttt\ncontent-type: application/json\n\n{\"PartitionKey\":\"p\",\"RowKey\":\"r\",\"A\":\"1\"}";
const GROUP: &str = "POST /$batch\ncontent-type: multipart/mixed; boundary=batch_1\n\n--batch_1\r\nContent-Type: multipart/mixed; boundary=changeset_1\r\n\r\n--changeset_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 0\r\n\r\nPUT /ttt(PartitionKey='p',RowKey='a') HTTP/1.1\r\nContent-Type: application/json\r\n\r\n{\"A\":\"1\"}\r\n--changeset_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\nContent-ID: 1\r\n\r\nDELETE /ttt(PartitionKey='p',RowKey='r') HTTP/1.1\r\nIf-Match: *\r\n\r\n\r\n--changeset_1--\r\n\r\n--batch_1--\r\n";

const fn queue(name: &'static str, setup: &'static [&'static str], request: &'static str) -> Case {
    Case::new(ServiceKind::Queue, name, setup, request)
}

const fn table(name: &'static str, setup: &'static [&'static str], request: &'static str) -> Case {
    Case::new(ServiceKind::Table, name, setup, request)
}

macro_rules! entity {
    ($method:literal, $headers:literal) => {
        concat!(
            $method,
            " /ttt(PartitionKey='p',RowKey='r')\ncontent-type: application/json",
            $headers,
            "\n\n{\"B\":\"2\"}"
        )
    };
}

pub(super) const CASES: &[Case] = &[
    queue("properties of the queue service", &[], PROPERTIES),
    queue("create a queue", &[], Q),
    queue("delete a queue", &[Q, M], "DELETE /qqq"),
    queue("metadata of a queue", &[Q], "PUT /qqq?comp=metadata\nx-ms-meta-a: 2"),
    queue("access to a queue", &[Q], ACL),
    queue("put a message", &[Q, M], M2),
    queue("get a message", &[Q, M, M2], GET),
    queue("get messages", &[Q, M, M2], "GET /qqq/messages?numofmessages=32&visibilitytimeout=600").in_parts(),
    queue("clear messages", &[Q, M, M2], "DELETE /qqq/messages"),
    queue(
        "update a message",
        &[Q, M, GET],
        "PUT /qqq/messages/<<MessageId>>?popreceipt=<<PopReceipt>>&visibilitytimeout=0\n\n<QueueMessage><MessageText>new</MessageText></QueueMessage>",
    ),
    queue(
        "delete a message",
        &[Q, M, M2, GET],
        "DELETE /qqq/messages/<<MessageId>>?popreceipt=<<PopReceipt>>",
    ),
    table("properties of the table service", &[], PROPERTIES),
    table("create a table", &[], T),
    table("delete a table", &[T, E], "DELETE /Tables('ttt')"),
    table("access to a table", &[T], TABLE_ACL),
    table("insert an entity", &[T], E),
    table("update an entity", &[T, E], entity!("PUT", "\nif-match: *")),
    table("insert or replace an entity", &[T, E], entity!("PUT", "")),
    table("merge an entity", &[T, E], entity!("MERGE", "\nif-match: *")),
    table("insert or merge an entity", &[T], entity!("MERGE", "")),
    table("delete an entity", &[T, E], "DELETE /ttt(PartitionKey='p',RowKey='r')\nif-match: *"),
    table("entity group transaction", &[T, E], GROUP),
];
