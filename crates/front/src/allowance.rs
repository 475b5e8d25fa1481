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
