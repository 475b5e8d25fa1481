//! Put Range from URL: copies a range of another file into this file.

use crc_fast::CrcAlgorithm::Crc64Nvme;
use lazuli_copy::unverified;
use lazuli_protocol::{ByteRange, ErrorCode, Headers, Refusal, Request, Response};
use lazuli_service::reply::put;

use crate::FileService;
use crate::rest::content::range_written;
use crate::rest::digest::base64;
use crate::rest::target;
use crate::tree::content::ContentEdit;
use crate::tree::rules::MAX_RANGE_WRITE;

const SOURCE_RANGE: &str = "x-ms-source-range";

impl FileService {
    /// Handles Put Range from URL.
    pub(crate) async fn put_range_from_url(&self, request: Request) -> Result<Response, Refusal> {
        let range = ByteRange::of_write(&request.headers)?;
        let length = range.end - range.start;
        if request.headers.one_of("x-ms-write", &[("update", ())])?.is_none() {
            return Err(Refusal::missing_header("x-ms-write"));
        }
        if let Some(body @ 1..) = request.content_length {
            return Err(Refusal::invalid_header("content-length", body.to_string()));
        }
        if length > MAX_RANGE_WRITE {
            let refusal = Refusal::new(ErrorCode::RequestBodyTooLarge);
            return Err(refusal.detail("MaxLimit", MAX_RANGE_WRITE.to_string()));
        }
        let wanted = request.headers.value(SOURCE_RANGE, ByteRange::parse)?;
        let wanted = wanted.ok_or_else(|| Refusal::missing_header(SOURCE_RANGE))?;
        let source = self.source(&request, target::touched(Some(wanted))).await?;
        let part = wanted.within(source.length).map_err(|refusal| {
            unverified(refusal.status(), Some(refusal.code().name()), refusal.text(), request.version)
        })?;
        if part.end - part.start != length {
            return Err(Refusal::invalid_header(SOURCE_RANGE, request.headers.required(SOURCE_RANGE)?));
        }
        let bytes = self.source_bytes(&source, part).await?;
        let crc64 = crc_fast::checksum(Crc64Nvme, &bytes);
        check_crc64(&request, crc64)?;
        let edit = ContentEdit::Write(range.start, bytes);
        let node = self.write_range(&request, range, edit).await?;
        let mut response = range_written(&node);
        put(&mut response.headers, "x-ms-content-crc64", base64(&crc64.to_le_bytes()));
        Ok(response)
    }
}

/// Checks what the client says about the checksum of the source.
fn check_crc64(request: &Request, crc64: u64) -> Result<(), Refusal> {
    let sent = |name: &str| Ok::<_, Refusal>(request.headers.crc64(name)?.map(u64::from_le_bytes));
    if sent("x-ms-source-content-crc64")?.is_some_and(|sent| sent != crc64) {
        return Err(ErrorCode::Crc64Mismatch.into());
    }
    let is_other = sent("x-ms-source-if-match-crc64")?.is_some_and(|sent| sent != crc64);
    let is_same = sent("x-ms-source-if-none-match-crc64")?.is_some_and(|sent| sent == crc64);
    if is_other || is_same { Err(ErrorCode::SourceConditionNotMet.into()) } else { Ok(()) }
}
