//! Bodies that are written into files, checked against the digests sent with them.

use bytes::Bytes;
use crc_fast::CrcAlgorithm::Crc64Nvme;
use http::HeaderMap;
use lazuli_protocol::digest::SentDigests;
use lazuli_protocol::{Refusal, Request};
use lazuli_service::internal_error;
use lazuli_service::reply::put;
use md5::{Digest as _, Md5};
use tokio::task::JoinHandle;

use crate::tree::rules::MAX_RANGE_WRITE;

/// Longer bodies are digested in a thread of their own.
const MIN_BACKGROUND_DIGEST: usize = 64 << 10;

/// A body that matches its digests.
pub(crate) struct CheckedBody {
    pub(crate) bytes: Bytes,
    pub(crate) sum: BodyDigest,
}

/// The digest for the response: the one that was sent, otherwise the MD5.
pub(crate) enum BodyDigest {
    Md5(BodyMd5),
    Crc64(u64),
}

impl CheckedBody {
    /// Reads the body of a request.
    pub(crate) async fn read(request: &mut Request) -> Result<Self, Refusal> {
        let sent = SentDigests::parse(&request.headers)?;
        let bytes = request.read_body(MAX_RANGE_WRITE as usize).await?;
        if sent.crc64.is_some() {
            let crc64 = crc_fast::checksum(Crc64Nvme, &bytes);
            sent.check_crc64(crc64)?;
            return Ok(Self { bytes, sum: BodyDigest::Crc64(crc64) });
        }
        let mut md5 = BodyMd5::of(&bytes);
        if sent.md5.is_some() {
            sent.check_md5(Some(md5.get().await?))?;
        }
        Ok(Self { bytes, sum: BodyDigest::Md5(md5) })
    }
}

impl BodyDigest {
    /// Writes it into the headers of a response.
    pub(crate) async fn write_header(self, headers: &mut HeaderMap) -> Result<(), Refusal> {
        match self {
            Self::Md5(mut md5) => put(headers, "content-md5", base64(&md5.get().await?)),
            Self::Crc64(crc64) => put(headers, "x-ms-content-crc64", base64(&crc64.to_le_bytes())),
        }
        Ok(())
    }
}

/// The MD5 of a body. That of a long body is computed while the body is stored.
pub(crate) enum BodyMd5 {
    Known([u8; 16]),
    Pending(JoinHandle<[u8; 16]>),
}

impl BodyMd5 {
    fn of(body: &Bytes) -> Self {
        if body.len() <= MIN_BACKGROUND_DIGEST {
            return Self::Known(Md5::digest(body).into());
        }
        let body = body.clone();
        Self::Pending(tokio::task::spawn_blocking(move || Md5::digest(&body).into()))
    }

    async fn get(&mut self) -> Result<[u8; 16], Refusal> {
        let md5 = match self {
            Self::Known(md5) => *md5,
            Self::Pending(task) => task
                .await
                .map_err(|error| internal_error(format_args!("a digest of a body failed: {error}")))?,
        };
        *self = Self::Known(md5);
        Ok(md5)
    }
}

/// Encodes bytes in base64.
pub(crate) fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
