//! The binary form of descriptors: a header with the offsets of owner, group and both lists.

use super::{Ace, Acl, Descriptor, MAX_ENTRIES, MalformedDescriptor, ObjectTypes, Sid, ace_type, control};
use crate::cursor::{ByteReader, ByteWriter, Truncated};

/// Revisions of access lists. Lists with object types have their own.
const REVISION: u8 = 2;
const OBJECT_REVISION: u8 = 4;
const HAS_OBJECT_TYPE: u32 = 1;
const HAS_INHERITED_OBJECT_TYPE: u32 = 2;

impl From<Truncated> for MalformedDescriptor {
    fn from(_: Truncated) -> Self {
        Self
    }
}

/// Control bits of a list: present, protected, requested, inherited.
const DACL: [u16; 4] =
    [control::DACL_PRESENT, control::DACL_PROTECTED, control::DACL_REQUEST, control::DACL_INHERITED];
const SACL: [u16; 4] =
    [control::SACL_PRESENT, control::SACL_PROTECTED, control::SACL_REQUEST, control::SACL_INHERITED];

impl Descriptor {
    /// Parses the self-relative form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MalformedDescriptor> {
        let mut reader = ByteReader::new(bytes);
        let revision = reader.u8()?;
        reader.skip(1)?;
        let control = reader.u16()?;
        if revision != 1 || control & control::SELF_RELATIVE == 0 {
            return Err(MalformedDescriptor);
        }
        let (owner, group, sacl, dacl) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        let sid = |offset: u32| at(bytes, offset).map(|mut reader| Sid::read(&mut reader)).transpose();
        let list = |offset: u32, bits: [u16; 4]| -> Result<Option<Acl>, MalformedDescriptor> {
            let [is_present, is_protected, is_requested, is_inherited] = bits.map(|bit| control & bit != 0);
            if !is_present {
                return Ok(None);
            }
            let entries = at(bytes, offset).map(|mut reader| read_list(&mut reader)).transpose()?;
            Ok(Some(Acl { is_protected, is_requested, is_inherited, entries }))
        };
        Ok(Self { owner: sid(owner)?, group: sid(group)?, dacl: list(dacl, DACL)?, sacl: list(sacl, SACL)? })
    }

    /// Returns the self-relative form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut control = control::SELF_RELATIVE;
        for (acl, bits) in [(&self.dacl, DACL), (&self.sacl, SACL)] {
            let Some(acl) = acl else { continue };
            let has = [true, acl.is_protected, acl.is_requested, acl.is_inherited];
            control |= bits.into_iter().zip(has).filter(|(_, has)| *has).fold(0, |sum, (bit, _)| sum | bit);
        }
        let mut writer = ByteWriter::new();
        writer.u8(1).u8(0).u16(control).zeros(16);
        for (offset, acl) in [(12, &self.sacl), (16, &self.dacl)] {
            if let Some(entries) = acl.as_ref().and_then(|acl| acl.entries.as_ref()) {
                writer.patch_u32(offset, writer.len() as u32);
                write_list(&mut writer, entries);
            }
        }
        for (offset, sid) in [(4, &self.owner), (8, &self.group)] {
            if let Some(sid) = sid {
                writer.patch_u32(offset, writer.len() as u32);
                sid.write(&mut writer);
            }
        }
        writer.finish()
    }
}

/// Returns a reader at an offset, or `None` for the offset 0.
fn at(bytes: &[u8], offset: u32) -> Option<ByteReader<'_>> {
    (offset != 0).then(|| ByteReader::from(bytes, offset as usize))
}

fn read_list(reader: &mut ByteReader<'_>) -> Result<Vec<Ace>, MalformedDescriptor> {
    let revision = reader.u8()?;
    reader.skip(1)?;
    let (size, count) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
    reader.skip(2)?;
    if !(REVISION..=OBJECT_REVISION).contains(&revision) || count > MAX_ENTRIES {
        return Err(MalformedDescriptor);
    }
    let mut entries = ByteReader::new(reader.take(size.checked_sub(8).ok_or(MalformedDescriptor)?)?);
    (0..count).map(|_| read_entry(&mut entries)).collect()
}

fn read_entry(reader: &mut ByteReader<'_>) -> Result<Ace, MalformedDescriptor> {
    let (number, flags, size) = (reader.u8()?, reader.u8()?, usize::from(reader.u16()?));
    let mut rest = ByteReader::new(reader.take(size.checked_sub(4).ok_or(MalformedDescriptor)?)?);
    if !ace_type::NAMES.iter().any(|(known, _)| *known == number) {
        return Err(MalformedDescriptor);
    }
    let mask = rest.u32()?;
    let object = if ace_type::OBJECT_TYPES.contains(&number) {
        let has = rest.u32()?;
        let mut guid = |bit: u32| if has & bit == 0 { Ok(None) } else { rest.u128().map(Some) };
        Some(ObjectTypes {
            object_type: guid(HAS_OBJECT_TYPE)?,
            inherited_object_type: guid(HAS_INHERITED_OBJECT_TYPE)?,
        })
    } else {
        None
    };
    Ok(Ace { ace_type: number, flags, mask, object, sid: Sid::read(&mut rest)? })
}

fn write_list(writer: &mut ByteWriter, entries: &[Ace]) {
    let has_objects = entries.iter().any(|ace| ace.object.is_some());
    let total = list_size(entries);
    writer.u8(if has_objects { OBJECT_REVISION } else { REVISION }).u8(0);
    writer.u16(total as u16).u16(entries.len() as u16).u16(0);
    for ace in entries {
        writer.u8(ace.ace_type).u8(ace.flags).u16(ace_size(ace) as u16).u32(ace.mask);
        if let Some(ObjectTypes { object_type, inherited_object_type }) = ace.object {
            let bit = |guid: Option<u128>, bit: u32| if guid.is_some() { bit } else { 0 };
            writer.u32(
                bit(object_type, HAS_OBJECT_TYPE) | bit(inherited_object_type, HAS_INHERITED_OBJECT_TYPE),
            );
            for guid in [object_type, inherited_object_type].into_iter().flatten() {
                writer.u128(guid);
            }
        }
        ace.sid.write(writer);
    }
}

/// Returns the length of a list in bytes.
pub(super) fn list_size(entries: &[Ace]) -> usize {
    8 + entries.iter().map(ace_size).sum::<usize>()
}

fn ace_size(ace: &Ace) -> usize {
    let object = ace.object.map_or(0, |object| {
        4 + 16 * [object.object_type, object.inherited_object_type].into_iter().flatten().count()
    });
    8 + object + ace.sid.size()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that Windows writes for `O:BAG:SYD:(A;;FA;;;WD)`.
    const KNOWN: [u8; 76] = [
        1, 0, 4, 128, 48, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, //
        2, 0, 28, 0, 1, 0, 0, 0, 0, 0, 20, 0, 255, 1, 31, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, //
        1, 2, 0, 0, 0, 0, 0, 5, 32, 0, 0, 0, 32, 2, 0, 0, //
        1, 1, 0, 0, 0, 0, 0, 5, 18, 0, 0, 0,
    ];

    #[test]
    fn known_bytes_are_parsed_and_written() {
        let descriptor = Descriptor::from_bytes(&KNOWN).unwrap();
        assert_eq!(descriptor.to_sddl(), "O:BAG:SYD:(A;;FA;;;WD)");
        assert_eq!(descriptor.to_bytes(), KNOWN);
    }

    #[test]
    fn truncated_bytes_and_wrong_offsets_are_refused() {
        for length in 0..KNOWN.len() {
            assert_eq!(Descriptor::from_bytes(&KNOWN[..length]), Err(MalformedDescriptor), "{length}");
        }
        for (at, value) in [(0, 2), (3, 0), (4, 250), (16, 250), (20, 7), (22, 4), (24, 9), (28, 9), (30, 3)]
        {
            let mut bytes = KNOWN;
            bytes[at] = value;
            assert_eq!(Descriptor::from_bytes(&bytes), Err(MalformedDescriptor), "{at}");
        }
    }
}
