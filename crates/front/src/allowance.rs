//! What one request may take, by its operation: how many bytes, how long. Pure.

use std::time::Duration;

use lazuli_protocol::error::Refusal;
use lazuli_protocol::operation::{BodyClass, Operation};
use lazuli_protocol::query::Query;

const MIB: u64 = 1 << 20;
/// The largest body there is: a blob in a single Put Blob. Services know the smaller limits of the older versions.
const LARGEST_BODY: u64 = 5000 * MIB;

const USUAL_TIME: Duration = Duration::from_secs(30);
const BLOCK_LIST_TIME: Duration = Duration::from_secs(60);
const BATCH_TIME: Duration = Duration::from_secs(120);
const READ_TIME: Duration = Duration::from_secs(120);
const WRITE_SECONDS_PER_MIB: u64 = 600;

/// The largest page of a listing, and as many bytes of rows that are read for it at once.
const FULL_DOCUMENT: u32 = 32 << 20;
/// An entry of a listing: a name, its properties and metadata, escaped.
const LISTED_ENTRY: u32 = 32 << 10;
/// A message of a queue, as it is stored and escaped.
const LARGEST_MESSAGE: u32 = 128 << 10;
/// An entity, as it is stored and as JSON.
const LARGEST_ENTITY: u32 = 2 << 20;

/// The most bytes of a body that are passed on.
pub(crate) fn body_limit(operation: Operation) -> u64 {
    match operation.row().body {
        // Nobody will read it; it is thrown away like any other body that is left unread.
        BodyClass::Nothing => u64::MAX,
        class => class.limit().map_or(LARGEST_BODY, |limit| limit as u64),
    }
}

/// How long the operation may take until its reply begins: what `timeout` asks for, up to a ceiling. How long the
/// reply then streams is between the client and its connection.
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
        // The length is the source's, which nobody knows yet.
        PutBlobFromUrl | CopyBlob | CopyBlobFromUrl | IncrementalCopyBlob | PutBlockFromUrl
        | AppendBlockFromUrl | PutPageFromUrl | PutRangeFromUrl => write_time(None),
        _ => USUAL_TIME,
    }
}

/// Bytes of memory that the reply may take while it is made: the page and the rows that it is made of. None for a reply that
/// is small, or made as it is sent. A listing of fewer entries than usual takes less.
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
        GetBlockList | ListRanges => (None, FULL_DOCUMENT),
        _ => return 0,
    };
    // What is not a number is refused, or counts as the most there is.
    let entries = entries.and_then(|text| text.parse().ok()).unwrap_or(u32::MAX);
    entries.max(1).saturating_mul(size).min(FULL_DOCUMENT)
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
    fn a_document_reserves_what_it_may_take() {
        use Operation::{GetBlob, GetBlockList, GetMessages, ListBlobs, PutBlob, QueryEntities};
        for (operation, object, query, expected) in [
            (ListBlobs, "", "", FULL_DOCUMENT),
            (ListBlobs, "", "maxresults=5000", FULL_DOCUMENT),
            (ListBlobs, "", "maxresults=2", 2 * LISTED_ENTRY),
            (ListBlobs, "", "maxresults=x", FULL_DOCUMENT),
            (ListBlobs, "", "maxresults=0", LISTED_ENTRY),
            (QueryEntities, "()", "", FULL_DOCUMENT),
            (QueryEntities, "", "$top=3", 3 * LARGEST_ENTITY),
            (QueryEntities, "(PartitionKey='a',RowKey='b')", "", LARGEST_ENTITY),
            (GetMessages, "messages", "", LARGEST_MESSAGE),
            (GetBlockList, "b", "", FULL_DOCUMENT),
            (GetBlob, "b", "", 0),
            (PutBlob, "b", "", 0),
        ] {
            let query = Query::parse(query).unwrap();
            assert_eq!(document_bytes(operation, object, &query), expected, "{operation:?} {object}");
        }
    }

    #[test]
    fn a_timeout_counts_up_to_the_ceiling_of_its_operation() {
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
    fn a_body_is_bounded_by_its_operation() {
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
