//! The source of a copy: the file that `x-ms-copy-source` names, in this server or elsewhere. How it is named, and who may
//! read it, is in `lazuli_copy`.

use std::ops::Range;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};
use lazuli_concurrency::{ByteRange, FileUse};
use lazuli_copy::{CopySources, Outside, SourceUrl, told};
use lazuli_extents::{Held, Reader};
use lazuli_protocol::request::collect;
use lazuli_protocol::{
    ErrorCode, Headers, Metadata, Operation, Refusal, Request, ServiceKind, names as shares,
};
use lazuli_store::SpaceId;

use crate::children::At;
use crate::content::unreadable;
use crate::pending::check_no_pending_copy;
use crate::record::{ContentHeaders, Node};
use crate::tree::{Target, patience};
use crate::{FileService, names, snapshot};

/// A source that was found and that the caller may read.
pub(crate) struct Source {
    /// Its URL, without credentials.
    pub(crate) shown_url: String,
    pub(crate) length: u64,
    pub(crate) headers: ContentHeaders,
    pub(crate) metadata: Metadata,
    pub(crate) place: Place,
}

/// Where the bytes of a source are.
pub(crate) enum Place {
    /// In this service. They stay as long as this does.
    Here { space: SpaceId, node: Box<Node>, _held: Held },
    /// In another service of this server, or on the web.
    There(Box<Outside>),
}

impl FileService {
    /// The source that a request names, of which it reads that range.
    pub(crate) async fn source(&self, request: &Request, touched: ByteRange) -> Result<Source, Refusal> {
        let url = SourceUrl::of(request)?;
        let sources = self.copies.sources()?;
        let service = sources.service(request, &url, ServiceKind::File);
        if service == Some(ServiceKind::File) {
            // Copy File within an account tells of its source as it is.
            let found = self.source_here(request, &url, sources, touched).await;
            let plainly = request.operation == Operation::CopyFile;
            return found.map_err(|refusal| told(refusal, request.version, plainly));
        }
        let (outside, headers) = sources.open(request, &url, service, HeaderMap::new()).await?;
        let metadata = Metadata::from_headers(&headers)
            .map_err(|_| outside.unusable("The metadata of the source is not valid."))?;
        Ok(Source {
            shown_url: url.shown(),
            length: outside.length(),
            headers: described(&headers),
            metadata,
            place: Place::There(Box::new(outside)),
        })
    }

    async fn source_here(
        &self,
        request: &Request,
        url: &SourceUrl,
        sources: &CopySources,
        touched: ByteRange,
    ) -> Result<Source, Refusal> {
        let address = sources.address(ServiceKind::File, url).await?;
        shares::check_share(&address.container)?;
        let keep_dots = request.headers.flag("x-ms-source-allow-trailing-dot")?.unwrap_or_default();
        let path = names::existing_path(&address.object, keep_dots)?;
        let account = sources.admit(request, url, &address, Operation::GetFile, self).await?;
        let mut share = self.share(&account, &address.container).await?;
        let space = share.space;
        if let Some(id) = snapshot::named(&url.query)? {
            share = self.snapshot_of(&account, &address.container, &share, id).await?;
        }
        let at = share.snapshot.map_or(At::Now, |snapshot| At::Epoch(snapshot.epoch));
        let target = Target { share, path, at, patience: patience(&request.query)? };
        let pin = self.extents.pins().pin();
        let (node, _) = self.file_at(&target, None, FileUse::Read, touched).await?;
        check_no_pending_copy(&node)?;
        let Some(file) = &node.file else { return Err(ErrorCode::ResourceTypeMismatch.into()) };
        let held = pin.hold([&file.content]);
        Ok(Source {
            shown_url: url.shown(),
            length: file.content.len(),
            headers: file.headers.clone(),
            metadata: node.metadata.clone(),
            place: Place::Here { space, node: Box::new(node), _held: held },
        })
    }

    /// The bytes of a part of a source, all of them at once.
    pub(crate) async fn source_bytes(&self, source: &Source, part: Range<u64>) -> Result<Bytes, Refusal> {
        let length = (part.end - part.start) as usize;
        let node = match &source.place {
            Place::There(outside) => return collect(outside.body(part).as_mut(), length).await,
            Place::Here { node, .. } => node,
        };
        let Some(file) = &node.file else { return Err(ErrorCode::InternalError.into()) };
        let mut reader = Reader::new(&self.extents, &file.content, part, None);
        let mut bytes = Vec::with_capacity(length);
        while let Some(more) = reader.next().await.map_err(unreadable)? {
            bytes.extend_from_slice(&more);
        }
        Ok(bytes.into())
    }
}

/// The content headers of a copy of something elsewhere.
fn described(headers: &HeaderMap) -> ContentHeaders {
    let text = |name: HeaderName| -> Option<String> {
        let value = std::str::from_utf8(headers.get(name)?.as_bytes()).ok()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    };
    ContentHeaders {
        content_type: text(CONTENT_TYPE),
        content_encoding: text(CONTENT_ENCODING),
        content_language: text(CONTENT_LANGUAGE),
        content_disposition: text(CONTENT_DISPOSITION),
        cache_control: text(CACHE_CONTROL),
        content_md5: headers.unchecked_md5("content-md5").ok().flatten(),
    }
}
