//! The share as a volume. Its size is the share's quota.

use super::InfoData;
use crate::call::Call;
use crate::session::open::Open;
use crate::wire::cursor::{ByteWriter, utf16};
use crate::wire::status::Status;

const SECTOR: u32 = 512;
const SECTORS_PER_UNIT: u32 = 8;
const UNIT: u64 = (SECTOR * SECTORS_PER_UNIT) as u64;
/// Maximum length of a file name in characters.
const MAX_NAME: u32 = 255;
/// Announced name of the file system. Clients know the features of NTFS.
const NAME: &str = "NTFS";
/// Case is preserved, names are Unicode, access lists are persistent, and files may be sparse.
const ATTRIBUTES: u32 = 0x2 | 0x4 | 0x8 | 0x40;
const DISK: u32 = 7;
const IS_MOUNTED: u32 = 0x20;

/// Returns the data of a class of volume information.
pub(super) async fn query(call: &Call, open: &Open, class: u8) -> Result<InfoData, Status> {
    let tree = call.tree()?.tree.as_ref().ok_or(Status::INVALID_DEVICE_REQUEST)?;
    let mut writer = ByteWriter::new();
    Ok(match class {
        1 => {
            let label = utf16(&tree.name);
            writer.u64(0).u32(serial(open)? as u32).u32(label.len() as u32).u16(0).put(&label);
            InfoData::truncatable(24, writer.finish())
        }
        3 | 7 => {
            let (quota, used) = call.server.files.space_of(tree).await?;
            let free = quota.saturating_sub(used) / UNIT;
            writer.u64(quota / UNIT).u64(free);
            if class == 7 {
                writer.u64(free);
            }
            writer.u32(SECTORS_PER_UNIT).u32(SECTOR);
            InfoData::fixed(writer.finish())
        }
        4 => {
            writer.u32(DISK).u32(IS_MOUNTED);
            InfoData::fixed(writer.finish())
        }
        5 => {
            let name = utf16(NAME);
            writer.u32(ATTRIBUTES).u32(MAX_NAME).u32(name.len() as u32).put(&name);
            InfoData::truncatable(16, writer.finish())
        }
        6 => {
            // There are no quotas of users: no limits, and no filters.
            writer.zeros(24).u64(u64::MAX).u64(u64::MAX).u32(0).u32(0);
            InfoData::fixed(writer.finish())
        }
        8 => {
            writer.u64(0).u64(serial(open)?).zeros(48);
            InfoData::fixed(writer.finish())
        }
        11 => {
            // Sector sizes; aligned, without seek penalty or TRIM information.
            writer.u32(SECTOR).u32(UNIT as u32).u32(UNIT as u32).u32(UNIT as u32).u32(3).u32(0).u32(0);
            InfoData::fixed(writer.finish())
        }
        _ => return Err(Status::INVALID_INFO_CLASS),
    })
}

/// Returns a serial number that differs between shares: a hash of the space id.
pub(super) fn serial(open: &Open) -> Result<u64, Status> {
    let mixed = open.file()?.file.space.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Ok(mixed ^ mixed >> 32)
}
