//! Digests of a request's body that the client sends.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderMap;

use crate::error::{ErrorCode, Refusal};
use crate::header::Headers;

/// The digests that the client sent: at most one of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentDigests {
    /// `Content-MD5`.
    pub md5: Option<[u8; 16]>,
    /// `x-ms-content-crc64`.
    pub crc64: Option<u64>,
}

impl SentDigests {
    /// Reads the digests of a request's body.
    pub fn parse(headers: &HeaderMap) -> Result<Self, Refusal> {
        Self::parse_named(headers, "content-md5", "x-ms-content-crc64")
    }

    /// Reads the digests of a copy's source.
    pub fn parse_of_source(headers: &HeaderMap) -> Result<Self, Refusal> {
        Self::parse_named(headers, "x-ms-source-content-md5", "x-ms-source-content-crc64")
    }

    fn parse_named(headers: &HeaderMap, md5: &str, crc64: &str) -> Result<Self, Refusal> {
        let md5 = headers.md5(md5)?;
        let crc64 = headers.crc64(crc64)?.map(u64::from_le_bytes);
        if md5.is_some() && crc64.is_some() {
            return Err(ErrorCode::BothCrc64AndMd5HeaderPresent.into());
        }
        Ok(Self { md5, crc64 })
    }

    /// Refuses a body whose digests differ from the sent ones.
    pub fn check(&self, md5: Option<[u8; 16]>, crc64: u64) -> Result<(), Refusal> {
        self.check_md5(md5)?;
        self.check_crc64(crc64)
    }

    /// Refuses a body whose MD5 differs from the sent one.
    pub fn check_md5(&self, md5: Option<[u8; 16]>) -> Result<(), Refusal> {
        match self.md5 {
            Some(sent) if md5 != Some(sent) => Err(Refusal::new(ErrorCode::Md5Mismatch)
                .detail("UserSpecifiedMd5", BASE64.encode(sent))
                .detail("ServerCalculatedMd5", md5.map(|md5| BASE64.encode(md5)).unwrap_or_default())),
            _ => Ok(()),
        }
    }

    /// Refuses a body whose CRC-64 differs from the sent one.
    pub fn check_crc64(&self, crc64: u64) -> Result<(), Refusal> {
        match self.crc64 {
            Some(sent) if sent != crc64 => Err(Refusal::new(ErrorCode::Crc64Mismatch)
                .detail("UserSpecifiedCrc", BASE64.encode(sent.to_le_bytes()))
                .detail("ServerCalculatedCrc", BASE64.encode(crc64.to_le_bytes()))),
            _ => Ok(()),
        }
    }
}
