//! Bodies that are written into files, checked against the digests that came with them.

use bytes::Bytes;
use crc_fast::CrcAlgorithm::Crc64Nvme;
use http::HeaderMap;
use lazuli_protocol::digest::SentDigests;
use lazuli_protocol::{ErrorCode, Refusal, Request};
use md5::{Digest as _, Md5};
use tokio::task::JoinHandle;

use crate::content::{MAX_RANGE_WRITE, base64};
use crate::reply::put;

/// Bodies of more bytes are digested in a thread of their own.
const DIGEST_ASIDE: usize = 64 << 10;

/// A body that is what its digests say.
pub(crate) struct Checked {
    pub(crate) bytes: Bytes,
    pub(crate) sum: Sum,
}

/// What a reply tells of a body: the digest that came with it, else its MD5.
pub(crate) enum Sum {
    Md5(Md5Sum),
    Crc64(u64),
}

impl Checked {
    /// Reads the body of a request.
    pub(crate) async fn read(request: &mut Request) -> Result<Self, Refusal> {
        let sent = SentDigests::parse(&request.headers)?;
        let bytes = request.read_body(MAX_RANGE_WRITE as usize).await?;
        if sent.crc64.is_some() {
            let crc64 = crc_fast::checksum(Crc64Nvme, &bytes);
            sent.check_crc64(crc64)?;
            return Ok(Self { bytes, sum: Sum::Crc64(crc64) });
        }
        let mut md5 = Md5Sum::of(&bytes);
        if sent.md5.is_some() {
            sent.check_md5(Some(md5.get().await?))?;
        }
        Ok(Self { bytes, sum: Sum::Md5(md5) })
    }
}

impl Sum {
    /// Tells it in the headers of a reply.
    pub(crate) async fn tell(self, headers: &mut HeaderMap) -> Result<(), Refusal> {
        match self {
            Self::Md5(mut md5) => put(headers, "content-md5", base64(&md5.get().await?)),
            Self::Crc64(crc64) => put(headers, "x-ms-content-crc64", base64(&crc64.to_le_bytes())),
        }
        Ok(())
    }
}

/// The MD5 of a body: of a long one while it is being stored.
pub(crate) enum Md5Sum {
    Known([u8; 16]),
    Aside(JoinHandle<[u8; 16]>),
}

impl Md5Sum {
    fn of(body: &Bytes) -> Self {
        if body.len() <= DIGEST_ASIDE {
            return Self::Known(Md5::digest(body).into());
        }
        let body = body.clone();
        Self::Aside(tokio::task::spawn_blocking(move || Md5::digest(&body).into()))
    }

    async fn get(&mut self) -> Result<[u8; 16], Refusal> {
        let md5 = match self {
            Self::Known(md5) => *md5,
            Self::Aside(task) => task.await.map_err(|_| Refusal::new(ErrorCode::InternalError))?,
        };
        *self = Self::Known(md5);
        Ok(md5)
    }
}
