//! Permissions: security descriptors, stored once for each share as SDDL, under a digest of their text.

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_security::Descriptor;
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId};

use crate::FileService;
use crate::tree::keys;

/// The permission key of objects without a permission of their own.
pub(crate) const INHERITED_PERMISSION: &str = "0*0";
/// The permission of that key: full access for administrators and the system, changes for authenticated
/// users.
pub const INHERITED_SDDL: &str = "O:SYG:SYD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1301bf;;;AU)";
/// Maximum length of a permission: two lists of 64 KiB each are about three times as long as text.
const MAX_PERMISSION_BYTES: usize = 512 << 10;

/// A permission in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// As SDDL.
    Sddl(String),
    /// By the key that Create Permission has returned.
    Key(String),
}

impl FileService {
    /// Returns the key of a permission in a request, and stores the permission.
    pub(crate) async fn permission_key(
        &self,
        space: SpaceId,
        sent: Option<&Permission>,
    ) -> Result<Option<String>, Refusal> {
        match sent {
            None => Ok(None),
            Some(Permission::Sddl(sddl)) => self.keep_permission(space, sddl).await.map(Some),
            Some(Permission::Key(key)) => match self.permission(space, key).await? {
                Some(_) => Ok(Some(key.clone())),
                None => Err(ErrorCode::FileInvalidPermissionKey.into()),
            },
        }
    }

    pub(crate) async fn keep_permission(&self, space: SpaceId, sddl: &str) -> Result<String, Refusal> {
        check(sddl)?;
        let key = key(sddl);
        let row = bytes::Bytes::from(key.clone().into_bytes());
        let partition = keys::permissions(space);
        let kept = self.rows.transact(&partition, Reads::key(row.clone()), |view| {
            if view.row(&row).is_some() {
                return Ok(Decision::Answer(()));
            }
            let put = Mutation::Put(row.clone(), sddl.to_owned().into_bytes().into());
            Ok(Decision::Write(Change::of([put]), ()))
        });
        kept.await?;
        Ok(key)
    }

    /// Returns the permission of a key.
    pub(crate) async fn permission(&self, space: SpaceId, key: &str) -> Result<Option<String>, Refusal> {
        if key == INHERITED_PERMISSION {
            return Ok(Some(INHERITED_SDDL.to_owned()));
        }
        let row = bytes::Bytes::copy_from_slice(key.as_bytes());
        let set = self.rows.read(&keys::permissions(space), &Reads::key(row)).await?;
        let found = set.rows.into_iter().next().flatten();
        Ok(found.and_then(|row| String::from_utf8(row.value.to_vec()).ok()))
    }
}

/// Returns the key of a permission: a digest of its text.
pub(crate) fn key(sddl: &str) -> String {
    use md5::{Digest as _, Md5};
    let digest: [u8; 16] = Md5::digest(sddl).into();
    let (high, low) = (u64::from_be_bytes(first(&digest)), u64::from_be_bytes(last(&digest)));
    format!("{high}*{low}")
}

fn first(digest: &[u8; 16]) -> [u8; 8] {
    std::array::from_fn(|i| digest[i])
}

fn last(digest: &[u8; 16]) -> [u8; 8] {
    std::array::from_fn(|i| digest[i + 8])
}

/// Refuses a text that is not a security descriptor with owner, group and access list.
fn check(sddl: &str) -> Result<(), Refusal> {
    let is_text =
        sddl.len() <= MAX_PERMISSION_BYTES && sddl.bytes().all(|b| b.is_ascii_graphic() || b == b' ');
    let descriptor = if is_text { Descriptor::check_sddl(sddl).ok() } else { None };
    match descriptor {
        Some(Descriptor { owner: Some(_), group: Some(_), dacl: Some(_), .. }) => Ok(()),
        _ => Err(ErrorCode::FileInvalidPermission.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permission_has_an_owner_a_group_and_an_access_list() {
        assert!(check(INHERITED_SDDL).is_ok());
        assert!(check(r#"O:SYG:SYD:(XA;;FX;;;WD;(@User.Title=="PM"))"#).is_ok());
        let long = format!("O:SYG:SYD:P{}", " ".repeat(MAX_PERMISSION_BYTES));
        for sddl in
            ["", "O:SYG:SY", "nonsense", "O:SYG:SYD:\u{1}", "xO:SYG:SYD:", "O:G:D:", "O:SYG:SYD:(A)", &long]
        {
            assert_eq!(check(sddl).map_err(|r| r.code()), Err(ErrorCode::FileInvalidPermission), "{sddl:?}");
        }
        assert_ne!(key("O:SYG:SYD:(A;;FA;;;SY)"), key("O:SYG:SYD:(A;;FA;;;BA)"));
    }
}
