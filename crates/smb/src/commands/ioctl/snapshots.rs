//! Previous versions: the share's snapshots, as names with which paths may begin.

use lazuli_concurrency::Timestamp;
use lazuli_protocol::date;

use crate::call::Call;
use crate::wire::cursor::{ByteWriter, utf16};
use crate::wire::status::Status;

/// Bytes before the names.
const FIXED: usize = 12;

/// Returns the number of snapshots, and their names if all of them fit.
pub(super) async fn enumerate(call: &Call, max_output: usize) -> Result<Vec<u8>, Status> {
    if max_output < FIXED + 4 {
        return Err(Status::INVALID_PARAMETER);
    }
    let tree = call.tree()?.tree.as_ref().ok_or(Status::INVALID_DEVICE_REQUEST)?;
    let times = call.server.files.snapshots_of(tree).await?;
    Ok(list(&times, max_output))
}

fn list(times: &[Timestamp], max_output: usize) -> Vec<u8> {
    let mut names = ByteWriter::new();
    for time in times {
        names.put(&utf16(&gmt_token(*time))).u16(0);
    }
    names.u16(0);
    let names = names.finish();
    let fits = !times.is_empty() && FIXED + names.len() <= max_output;
    let mut writer = ByteWriter::new();
    writer.u32(times.len() as u32).u32(if fits { times.len() as u32 } else { 0 });
    writer.u32(names.len() as u32);
    if fits {
        writer.put(&names);
    } else {
        writer.u32(0);
    }
    writer.finish()
}

/// Returns the name of the snapshot of a time.
fn gmt_token(time: Timestamp) -> String {
    let text = date::iso8601(time.whole_second());
    let digits = text.get(..19).unwrap_or_default();
    format!("@GMT-{}", digits.replace('-', ".").replace('T', "-").replace(':', "."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_by_its_second() {
        let time = Timestamp::from_unix_nanos(1_618_934_092_974_079_100).unwrap();
        assert_eq!(gmt_token(time), "@GMT-2021.04.20-15.54.52");
    }

    #[test]
    fn snapshot_names_are_returned_only_if_all_fit() {
        let times = [Timestamp::from_unix_seconds(1), Timestamp::from_unix_seconds(0)];
        let whole = list(&times, 1000);
        assert_eq!((whole.len(), whole[0], whole[4], whole[8]), (12 + 102, 2, 2, 102));
        let size = list(&times, 16);
        assert_eq!((size.len(), size[0], size[4], size[8]), (16, 2, 0, 102));
        assert_eq!(list(&[], 1000), [0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    }
}
