//! Permissions: security descriptors, stored once for each share in SDDL under a key made of their text.
//!
//! Clients send and ask for them as text, or in Base64 the bytes that Windows keeps.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, StatusCode};
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response, Version};
use lazuli_security::Descriptor;
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId};
use serde::{Deserialize, Serialize};

use crate::reply::put;
use crate::smb_properties::Permission;
use crate::{FileService, INHERITED_PERMISSION, INHERITED_SDDL, keys};

/// The longest permission in a header. Create Permission takes longer ones.
pub(crate) const MAX_IN_HEADER: usize = 8 << 10;
/// The longest permission: two lists of 64 KiB each take about three times as much as text.
const MAX_PERMISSION_BYTES: usize = 512 << 10;
const KEY: &str = "x-ms-file-permission-key";
/// Since when Get Permission always says which format it answers in.
const FORMATS: Version = Version::new(2024, 11, 4);
const FORMAT: &str = "x-ms-file-permission-format";

/// How a permission is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    #[default]
    Sddl,
    Binary,
}

/// The body of the reply to Get Permission.
#[derive(Serialize)]
struct Document {
    permission: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Format>,
}

/// The body of Create Permission. Clients of 2020 and .NET begin names and formats with a capital.
#[derive(Deserialize)]
struct SentDocument {
    #[serde(alias = "Permission")]
    permission: String,
    #[serde(default, alias = "Format")]
    format: Option<String>,
}

impl Format {
    const NAMES: [(&'static str, Self); 2] = [("sddl", Self::Sddl), ("binary", Self::Binary)];

    /// What the headers of a request say.
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Option<Self>, Refusal> {
        headers.one_of(FORMAT, &Self::NAMES)
    }

    /// The format of that name, in any case.
    fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, format)| format)
    }

    /// The SDDL of a permission that is written so.
    pub(crate) fn read(self, permission: &str) -> Result<String, Refusal> {
        let invalid = || Refusal::new(ErrorCode::FileInvalidPermission);
        match self {
            Self::Sddl => Ok(permission.to_owned()),
            Self::Binary => {
                let bytes = BASE64.decode(permission).map_err(|_| invalid())?;
                let descriptor = Descriptor::from_bytes(&bytes).map_err(|_| invalid())?;
                Ok(descriptor.to_sddl())
            }
        }
    }

    /// How SDDL is written so.
    fn write(self, sddl: String) -> Result<String, Refusal> {
        match self {
            Self::Sddl => Ok(sddl),
            Self::Binary => {
                let descriptor =
                    Descriptor::from_sddl(&sddl).map_err(|_| ErrorCode::FileInvalidPermission)?;
                Ok(BASE64.encode(descriptor.to_bytes()))
            }
        }
    }
}

impl FileService {
    /// Create Permission.
    pub(crate) async fn create_permission(&self, mut request: Request) -> Result<Response, Refusal> {
        let limit = request.operation.row().body.limit().unwrap_or_default();
        let body = request.read_body(limit).await?;
        let document: SentDocument = serde_json::from_slice(&body).map_err(|_| ErrorCode::InvalidInput)?;
        let format = match &document.format {
            None => Format::default(),
            Some(name) => Format::named(name).ok_or(ErrorCode::InvalidInput)?,
        };
        let share = self.share(&request.account, &request.container).await?;
        let sddl = format.read(&document.permission)?;
        let key = self.keep_permission(share.space, &sddl).await?;
        let mut response = Response::empty(StatusCode::CREATED);
        put(&mut response.headers, KEY, key);
        Ok(response)
    }

    /// Get Permission.
    pub(crate) async fn get_permission(&self, request: Request) -> Result<Response, Refusal> {
        let key = request.headers.required(KEY)?;
        check_key(key)?;
        let mut format = Format::parse(&request.headers)?;
        if request.version >= FORMATS {
            format.get_or_insert_default();
        }
        let share = self.share(&request.account, &request.container).await?;
        let permission = self.permission(share.space, key).await?;
        let sddl = permission.ok_or(ErrorCode::FileInvalidPermissionKey)?;
        let permission = format.unwrap_or_default().write(sddl)?;
        let body =
            serde_json::to_vec(&Document { permission, format }).map_err(|_| ErrorCode::InternalError)?;
        Ok(Response::with_body(StatusCode::OK, "application/json", body))
    }

    /// The key of a permission that a request sets, which is kept for it.
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

    async fn keep_permission(&self, space: SpaceId, sddl: &str) -> Result<String, Refusal> {
        check(sddl)?;
        let key = key(sddl);
        let row = bytes::Bytes::from(key.clone().into_bytes());
        let partition = keys::permissions(space);
        let kept = self.transact(&partition, Reads::key(row.clone()), |view| {
            if view.row(&row).is_some() {
                return Ok(Decision::Answer(()));
            }
            let put = Mutation::Put(row.clone(), sddl.to_owned().into_bytes().into());
            Ok(Decision::Write(Change::of([put]), ()))
        });
        kept.await?;
        Ok(key)
    }

    /// The permission of that key.
    pub(crate) async fn permission(&self, space: SpaceId, key: &str) -> Result<Option<String>, Refusal> {
        if key == INHERITED_PERMISSION {
            return Ok(Some(INHERITED_SDDL.to_owned()));
        }
        let row = bytes::Bytes::copy_from_slice(key.as_bytes());
        let set = self.read(&keys::permissions(space), &Reads::key(row)).await?;
        let found = set.rows.into_iter().next().flatten();
        Ok(found.and_then(|row| String::from_utf8(row.value.to_vec()).ok()))
    }
}

/// A key that two different permissions do not share: a digest of the text.
fn key(sddl: &str) -> String {
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

/// Refuses what is no key.
pub(crate) fn check_key(text: &str) -> Result<(), Refusal> {
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    match text.split_once('*') {
        Some((high, low)) if is_number(high) && is_number(low) => Ok(()),
        _ => Err(Refusal::invalid_header(KEY, text)),
    }
}

/// Refuses what is no security descriptor with owner, group and access list.
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
    fn a_permission_is_the_same_as_text_and_as_bytes() {
        // As Windows writes it.
        let bytes = "AQAUhGwAAACIAAAAAAAAABQAAAACAFgAAwAAAAAAFAD/AR8AAQEAAAAAAAUSAAAAAAAYAP8BHwABAgAAAAAABSAAAAAgAgAAAAAk\
                     AKkAEgABBQAAAAAABRUAAABZUbgXZnJdJWRjOwuMmS4AAQUAAAAAAAUVAAAAoGXPfnhLm1/nfIdwr/1IAQEFAAAAAAAFFQAAAKBl\
                     z354S5tf53yHcAECAAA=";
        let sddl = "O:S-1-5-21-2127521184-1604012920-1887927527-21560751G:S-1-5-21-2127521184-1604012920-1887927527-513\
                    D:AI(A;;FA;;;SY)(A;;FA;;;BA)(A;;0x1200a9;;;S-1-5-21-397955417-626881126-188441444-3053964)\
                    S:NO_ACCESS_CONTROL";
        assert_eq!(Format::Binary.read(bytes), Ok(sddl.to_owned()));
        assert_eq!(Format::Binary.write(sddl.to_owned()), Ok(bytes.to_owned()));
        assert_eq!(Format::Sddl.read(sddl), Ok(sddl.to_owned()));
        for nonsense in ["", "!", "AQAU", sddl] {
            assert_eq!(Format::Binary.read(nonsense).unwrap_err().code(), ErrorCode::FileInvalidPermission);
        }
    }

    #[test]
    fn a_key_is_two_numbers() {
        assert!(check_key(INHERITED_PERMISSION).is_ok() && check_key(&key("")).is_ok());
        for text in ["invalidPermission", "", "*", "1*", "1*x", "1*2*3", "18446744073709551616*0"] {
            let code = check_key(text).map_err(|refusal| refusal.code());
            assert_eq!(code, Err(ErrorCode::InvalidHeaderValue), "{text}");
        }
    }

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
