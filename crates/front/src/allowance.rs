//! Limits of one request by its operation: body size, time and memory. Pure.

use std::time::Duration;

use lazuli_protocol::error::Refusal;
use lazuli_protocol::operation::{BodyClass, Operation};
use lazuli_protocol::query::Query;

const MIB: u64 = 1 << 20;
/// The largest body of any operation: a single Put Blob. Services apply the smaller limits of older versions.
const LARGEST_BODY: u64 = 5000 * MIB;

const DEFAULT_TIME: Duration = Duration::from_secs(30);
const BLOCK_LIST_TIME: Duration = Duration::from_secs(60);
const BATCH_TIME: Duration = Duration::from_secs(120);
const READ_TIME: Duration = Duration::from_secs(120);
const WRITE_SECONDS_PER_MIB: u64 = 600;

/// Bytes of the largest page of a listing; as many bytes of rows are read for it at once.
const LARGEST_DOCUMENT: u32 = 32 << 20;
/// Bytes of a listing's entry: a name, its properties and metadata, escaped.
const LISTED_ENTRY: u32 = 32 << 10;
/// Bytes of a queue message as stored and escaped.
const LARGEST_MESSAGE: u32 = 128 << 10;
/// Bytes of an entity as stored and as JSON.
const LARGEST_ENTITY: u32 = 2 << 20;

/// Returns the maximum number of body bytes that are passed to the service.
pub(crate) fn body_limit(operation: Operation) -> u64 {
    match operation.row().body {
        // The service reads no body. What the client sends is discarded like any unread body.
        BodyClass::Nothing => u64::MAX,
        class => class.limit().map_or(LARGEST_BODY, |limit| limit as u64),
    }
}

/// Returns how long the operation may take until its reply begins: the request's `timeout`, up to a ceiling.
/// The connection's own limits apply to the reply's body.
pub(crate) fn time_limit(
    operation: Operation,
    content_length: Option<u64>,
    query: &Query,
) -> Result<Duration, Refusal> {
    let ceiling = ceiling(operation, content_length);
    Ok(match query.number("timeout", 0..=i64::MAX)? {
        None | Some(0) => ceiling,
        Some(seconds) => ceiling.min(Duration::from_secs(seconds.unsigned_abs())),
    })
}

fn ceiling(operation: Operation, content_length: Option<u64>) -> Duration {
    use Operation::{
        AppendBlock, AppendBlockFromUrl, BlobBatch, ContainerBatch, CopyBlob, CopyBlobFromUrl, CreateFile,
        GetBlob, GetFile, IncrementalCopyBlob, PutBlob, PutBlobFromUrl, PutBlock, PutBlockFromUrl,
        PutBlockList, PutPage, PutPageFromUrl, PutRange, PutRangeFromUrl, QueryBlobContents,
    };
    match operation {
        PutBlockList => BLOCK_LIST_TIME,
        BlobBatch | ContainerBatch => BATCH_TIME,
        GetBlob | GetFile | QueryBlobContents => READ_TIME,
        PutBlob | PutBlock | AppendBlock | PutPage | PutRange => write_time(content_length),
        CreateFile if content_length.is_some_and(|length| length > 0) => write_time(content_length),
        // The length of the source is not known yet.
        PutBlobFromUrl | CopyBlob | CopyBlobFromUrl | IncrementalCopyBlob | PutBlockFromUrl
        | AppendBlockFromUrl | PutPageFromUrl | PutRangeFromUrl => write_time(None),
        _ => DEFAULT_TIME,
    }
}

/// Returns how much memory the reply may take while it is built: the page and the rows behind it, in bytes.
/// Zero for replies that are small or streamed. A listing with a smaller page size takes less.
pub(crate) fn document_bytes(operation: Operation, object: &str, query: &Query) -> u32 {
    use Operation::{
        FindBlobsByTags, FindBlobsByTagsInContainer, GetBlockList, GetMessages, ListBlobs, ListContainers,
        ListDirectoriesAndFiles, ListHandles, ListQueues, ListRanges, ListShares, PeekMessages,
        QueryEntities, QueryTables,
    };
    let (entries, size) = match operation {
        ListBlobs
        | ListContainers
        | FindBlobsByTags
        | FindBlobsByTagsInContainer
        | ListQueues
        | ListShares
        | ListDirectoriesAndFiles
        | ListHandles => (query.get("maxresults"), LISTED_ENTRY),
        QueryEntities if !matches!(object, "" | "()") => (Some("1"), LARGEST_ENTITY),
        QueryEntities | QueryTables => (query.get("$top"), LARGEST_ENTITY),
        GetMessages | PeekMessages => (Some(query.get("numofmessages").unwrap_or("1")), LARGEST_MESSAGE),
        GetBlockList | ListRanges => (None, LARGEST_DOCUMENT),
        _ => return 0,
    };
    // An invalid number is refused later, or counts as the maximum.
    let entries = entries.and_then(|text| text.parse().ok()).unwrap_or(u32::MAX);
    entries.max(1).saturating_mul(size).min(LARGEST_DOCUMENT)
}

fn write_time(length: Option<u64>) -> Duration {
    let mib = length.unwrap_or(LARGEST_BODY).min(LARGEST_BODY).div_ceil(MIB).max(1);
    Duration::from_secs(mib * WRITE_SECONDS_PER_MIB)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazuli_protocol::error::ErrorCode;

    fn seconds(operation: Operation, length: Option<u64>, query: &str) -> Result<u64, ErrorCode> {
        let query = Query::parse(query).unwrap();
        time_limit(operation, length, &query).map(|time| time.as_secs()).map_err(|refusal| refusal.code())
    }

    #[test]
    fn documents_reserve_memory_by_operation_and_page_size() {
        use Operation::{GetBlob, GetBlockList, GetMessages, ListBlobs, PutBlob, QueryEntities};
        for (operation, object, query, expected) in [
            (ListBlobs, "", "", LARGEST_DOCUMENT),
            (ListBlobs, "", "maxresults=5000", LARGEST_DOCUMENT),
            (ListBlobs, "", "maxresults=2", 2 * LISTED_ENTRY),
            (ListBlobs, "", "maxresults=x", LARGEST_DOCUMENT),
            (ListBlobs, "", "maxresults=0", LISTED_ENTRY),
            (QueryEntities, "()", "", LARGEST_DOCUMENT),
            (QueryEntities, "", "$top=3", 3 * LARGEST_ENTITY),
            (QueryEntities, "(PartitionKey='a',RowKey='b')", "", LARGEST_ENTITY),
            (GetMessages, "messages", "", LARGEST_MESSAGE),
            (GetBlockList, "b", "", LARGEST_DOCUMENT),
            (GetBlob, "b", "", 0),
            (PutBlob, "b", "", 0),
        ] {
            let query = Query::parse(query).unwrap();
            assert_eq!(document_bytes(operation, object, &query), expected, "{operation:?} {object}");
        }
    }

    #[test]
    fn a_timeout_is_capped_at_the_ceiling_of_its_operation() {
        use Operation::{BlobBatch, GetBlob, IncrementalCopyBlob, ListBlobs, PutBlob, PutBlockList};
        for (operation, length, query, expected) in [
            (ListBlobs, None, "", Ok(30)),
            (ListBlobs, None, "timeout=5", Ok(5)),
            (ListBlobs, None, "timeout=90", Ok(30)),
            (ListBlobs, None, "timeout=0", Ok(30)),
            (ListBlobs, None, "timeout=-1", Err(ErrorCode::OutOfRangeQueryParameterValue)),
            (ListBlobs, None, "timeout=soon", Err(ErrorCode::InvalidQueryParameterValue)),
            (ListBlobs, None, "timeout=", Ok(30)),
            (PutBlockList, None, "timeout=90", Ok(60)),
            (BlobBatch, None, "timeout=600", Ok(120)),
            (GetBlob, None, "", Ok(120)),
            (PutBlob, Some(0), "", Ok(600)),
            (PutBlob, Some(MIB), "", Ok(600)),
            (PutBlob, Some(MIB + 1), "", Ok(1200)),
            (PutBlob, Some(u64::MAX), "timeout=7", Ok(7)),
            (PutBlob, None, "", Ok(5000 * 600)),
            (IncrementalCopyBlob, Some(0), "", Ok(5000 * 600)),
        ] {
            assert_eq!(seconds(operation, length, query), expected, "{operation:?} {length:?} {query}");
        }
    }

    #[test]
    fn body_limits_depend_on_the_operation() {
        for (operation, expected) in [
            (Operation::PutBlob, 5000 * MIB),
            (Operation::PutPage, 4 * MIB),
            (Operation::PutMessage, 512 << 10),
            (Operation::GetBlob, u64::MAX),
        ] {
            assert_eq!(body_limit(operation), expected, "{operation:?}");
        }
    }
}
