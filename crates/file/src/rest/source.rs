//! The source of a copy: the file in `x-ms-copy-source`, in this server or elsewhere. `lazuli_copy` parses it
//! and checks access.

use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;
use lazuli_concurrency::{ByteRange, FileUse};
use lazuli_content::content_refusal;
use lazuli_copy::{CopySources, SourceUrl, StreamedSource, source_refusal};
use lazuli_extents::{ContentHold, ContentReader};
use lazuli_protocol::request::collect;
use lazuli_protocol::{
    ErrorCode, Headers, Metadata, Operation, Refusal, Request, ServiceKind, names as shares,
};
use lazuli_service::internal_error;
use lazuli_store::SpaceId;

use crate::FileService;
use crate::rest::snapshot_id;
use crate::rest::target::{Target, patience};
use crate::tree::children::At;
use crate::tree::names;
use crate::tree::record::{ContentHeaders, Node};
use crate::tree::rules::check_no_pending_copy;

/// An existing source that the caller may read.
pub(crate) struct Source {
    /// The URL, without credentials.
    pub(crate) shown_url: String,
    pub(crate) length: u64,
    pub(crate) headers: ContentHeaders,
    pub(crate) metadata: Metadata,
    pub(crate) place: SourcePlace,
}

/// The location of a source's bytes.
pub(crate) enum SourcePlace {
    /// In this service. Its content is pinned.
    Local { space: SpaceId, node: Box<Node>, _held: ContentHold },
    /// In another service of this server, or on the web.
    Remote(Box<StreamedSource>),
}

impl FileService {
    /// Returns the source of a request that reads this range.
    pub(crate) async fn source(&self, request: &Request, touched: ByteRange) -> Result<Source, Refusal> {
        let url = SourceUrl::from_request(request)?;
        let sources = self.copies.sources()?;
        let service = sources.service(request, &url, ServiceKind::File);
        if service == Some(ServiceKind::File) {
            // Copy File within an account returns errors of the source unchanged.
            let found = self.source_here(request, &url, sources, touched).await;
            let plainly = request.operation == Operation::CopyFile;
            return found.map_err(|refusal| source_refusal(refusal, request.version, plainly));
        }
        let (outside, headers) = sources.open(request, &url, service, HeaderMap::new()).await?;
        let metadata = Metadata::from_headers(&headers)
            .map_err(|_| outside.unusable("The metadata of the source is not valid."))?;
        Ok(Source {
            shown_url: url.without_credentials(),
            length: outside.length(),
            headers: ContentHeaders::of_source(&headers),
            metadata,
            place: SourcePlace::Remote(Box::new(outside)),
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
        if let Some(id) = snapshot_id::named(&url.query)? {
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
            shown_url: url.without_credentials(),
            length: file.content.len(),
            headers: file.headers.clone(),
            metadata: node.metadata.clone(),
            place: SourcePlace::Local { space, node: Box::new(node), _held: held },
        })
    }

    /// Reads a part of a source into memory.
    pub(crate) async fn source_bytes(&self, source: &Source, part: Range<u64>) -> Result<Bytes, Refusal> {
        let length = (part.end - part.start) as usize;
        let node = match &source.place {
            SourcePlace::Remote(outside) => return collect(outside.body(part).as_mut(), length).await,
            SourcePlace::Local { node, .. } => node,
        };
        let Some(file) = &node.file else {
            return Err(internal_error(format_args!("node {}: the source of a copy is no file", node.id.0)));
        };
        let mut reader = ContentReader::new(&self.extents, &file.content, part, None);
        let mut bytes = Vec::with_capacity(length);
        while let Some(more) = reader.next().await.map_err(content_refusal)? {
            bytes.extend_from_slice(&more);
        }
        Ok(bytes.into())
    }
}
