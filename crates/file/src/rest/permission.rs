//! Create Permission and Get Permission.
//!
//! Clients send and request permissions as SDDL, or as Base64 of the binary descriptor of Windows.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, StatusCode};
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response, Version};
use lazuli_security::Descriptor;
use lazuli_service::internal_error;
use lazuli_service::reply::put;
use serde::{Deserialize, Serialize};

use crate::FileService;

/// Maximum length of a permission in a header. Create Permission takes longer ones.
pub(crate) const MAX_IN_HEADER: usize = 8 << 10;

const KEY: &str = "x-ms-file-permission-key";
/// From this version on Get Permission always names its format.
const FORMATS: Version = Version::new(2024, 11, 4);
const FORMAT: &str = "x-ms-file-permission-format";

/// The format of a permission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    #[default]
    Sddl,
    Binary,
}

/// The response body of Get Permission.
#[derive(Serialize)]
struct Document {
    permission: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Format>,
}

/// The request body of Create Permission. Clients of 2020 and .NET capitalize names and formats.
#[derive(Deserialize)]
struct SentDocument {
    #[serde(alias = "Permission")]
    permission: String,
    #[serde(default, alias = "Format")]
    format: Option<String>,
}

impl Format {
    const NAMES: [(&'static str, Self); 2] = [("sddl", Self::Sddl), ("binary", Self::Binary)];

    /// Parses the header of a request.
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Option<Self>, Refusal> {
        headers.one_of(FORMAT, &Self::NAMES)
    }

    /// Returns the format of this name, in any case.
    fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, format)| format)
    }

    /// Converts a permission to SDDL.
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

    /// Converts SDDL to this format.
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
    /// Handles Create Permission.
    pub(crate) async fn create_permission(&self, mut request: Request) -> Result<Response, Refusal> {
        let body = request.read_document().await?;
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

    /// Handles Get Permission.
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
        let body = serde_json::to_vec(&Document { permission, format })
            .map_err(|error| internal_error(format_args!("a permission cannot be encoded: {error}")))?;
        Ok(Response::with_body(StatusCode::OK, "application/json", body))
    }
}

/// Refuses an invalid permission key.
pub(crate) fn check_key(text: &str) -> Result<(), Refusal> {
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    match text.split_once('*') {
        Some((high, low)) if is_number(high) && is_number(low) => Ok(()),
        _ => Err(Refusal::invalid_header(KEY, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::permissions::{INHERITED_PERMISSION, key};

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
}
