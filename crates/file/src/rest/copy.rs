//! Copy File, Abort Copy File.
//!
//! A copy of a file of this server shares its content, and is complete when the request is answered. A blob
//! of this server and a source elsewhere are fetched after the request, see [`crate::rest::pending`].

use http::StatusCode;
use lazuli_concurrency::{ByteRange, FileLease, FileUse, Timestamp};
use lazuli_copy::{CopyState, TargetSpace, too_large};
use lazuli_extents::Content;
use lazuli_protocol::lease::lease_id;
use lazuli_protocol::{ErrorCode, Headers, Metadata, Refusal, Request, Response};
use lazuli_service::reply::put_validators;

use crate::FileService;
use crate::rest::file::{admit_replace, check_create};
use crate::rest::pending::CopyTarget;
use crate::rest::smb_properties::{Purpose, SentProperties};
use crate::rest::source::{Source, SourcePlace};
use crate::tree::permissions::Permission;
use crate::tree::record::{ARCHIVE, File, NORMAL, Node, NodeId, SmbProperties};
use crate::tree::rules::{
    MAX_FILE_BYTES, admit_lease, check_writable, existing_file, extent_bytes, with_lease,
};

const MODE: &str = "x-ms-file-permission-copy-mode";

impl FileService {
    /// Handles Copy File.
    pub(crate) async fn copy_file(&self, request: Request) -> Result<Response, Refusal> {
        let wanted = CopyRequest::parse(&request)?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let lease_id = lease_id(&request.headers)?;
        let target = self.target(&request).await?;
        let source = self.source(&request, ByteRange::ALL).await?;
        if source.length > MAX_FILE_BYTES.unsigned_abs() {
            return Err(too_large(MAX_FILE_BYTES.unsigned_abs()));
        }
        let permission = self.permission_of_copy(target.share.space, &wanted, &source).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        let mut released = 0;
        let copied = self.write_child(&spot, FileUse::Create, |view, old| {
            let mut lease = FileLease::AVAILABLE;
            if let Some(old) = &old {
                lease = admit_replace(old, lease_id, &request.caller)?;
                if !wanted.ignores_read_only {
                    check_writable(old)?;
                }
            }
            check_create(&conditions, old.as_ref(), lease_id.is_some())?;
            released = old.as_ref().map_or(0, extent_bytes);
            let state = CopyState::finished(wanted.id, source.shown_url.clone(), source.length, view.now);
            let (state, content) = match &source.place {
                SourcePlace::Local { node, .. } => (state, shared(node)),
                SourcePlace::Remote(_) if source.length == 0 => (state, Content::empty()),
                SourcePlace::Remote(_) => (state.into_pending(), Content::hole(source.length)),
            };
            Ok(Node {
                epoch: 0,
                id: old.as_ref().map_or(NodeId(view.stamp.ticks()), |old| old.id),
                name: spot.name.text.clone(),
                modified: view.now,
                etag: view.stamp.into(),
                properties: wanted.properties(&source, permission.clone(), view.now),
                metadata: wanted.metadata.clone().unwrap_or_else(|| source.metadata.clone()),
                file: Some(File {
                    headers: source.headers.clone(),
                    lease,
                    incarnation: view.stamp.ticks(),
                    copy: Some(state),
                    content,
                }),
            })
        });
        let copied = match &source.place {
            SourcePlace::Remote(outside) if source.length > 0 => {
                let account = request.account.name.clone();
                let (target, space) = (CopyTarget::at(&spot), TargetSpace { space: spot.space, account });
                self.copies.begin(self, space, wanted.id, target, outside, Box::pin(copied)).await
            }
            _ => copied.await,
        };
        let node = copied?;
        self.extents.released(released);
        let mut response = Response::empty(StatusCode::ACCEPTED);
        put_validators(&mut response.headers, node.validators());
        if let Some(state) = node.file.and_then(|file| file.copy) {
            state.write_accepted(&mut response.headers);
        }
        Ok(response)
    }

    /// Handles Abort Copy File.
    pub(crate) async fn abort_copy_file(&self, request: Request) -> Result<Response, Refusal> {
        let text = request.query.required("copyid")?;
        let id = uuid::Uuid::try_parse(text)
            .map_err(|_| Refusal::invalid_query("copyid", text, "The value is not the id of a copy."))?;
        if request.headers.one_of("x-ms-copy-action", &[("abort", ())])?.is_none() {
            return Err(Refusal::missing_header("x-ms-copy-action"));
        }
        let lease_id = lease_id(&request.headers)?;
        let target = self.target(&request).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        let aborted = self.write_child(&spot, FileUse::PutRange, |view, old| {
            let mut node = existing_file(old)?;
            let lease = admit_lease(&node, lease_id)?;
            let file = node.file.as_mut().ok_or(ErrorCode::ResourceTypeMismatch)?;
            let state = file.copy.as_mut().ok_or(ErrorCode::NoPendingCopyOperation)?;
            state.abort(*id.as_bytes(), view.now)?;
            file.content = Content::empty();
            node.touch(view.stamp, view.now);
            Ok(with_lease(node, lease))
        });
        aborted.await?;
        Ok(Response::empty(StatusCode::NO_CONTENT))
    }

    /// Returns the permission key of a copy in its share.
    async fn permission_of_copy(
        &self,
        space: lazuli_store::SpaceId,
        wanted: &CopyRequest,
        source: &Source,
    ) -> Result<Option<String>, Refusal> {
        let sddl = match (&source.place, wanted.copies_permission) {
            (SourcePlace::Local { space: of_source, node, .. }, true) => match &node.properties.permission {
                Some(key) if *of_source == space => return Ok(Some(key.clone())),
                Some(key) => self.permission(*of_source, key).await?,
                None => None,
            },
            _ => return self.permission_key(space, wanted.sent.permission.as_ref()).await,
        };
        self.permission_key(space, sddl.map(Permission::Sddl).as_ref()).await
    }
}

/// Properties of the target that differ from the source.
struct CopyRequest {
    id: [u8; 16],
    sent: SentProperties,
    metadata: Option<Metadata>,
    copies_permission: bool,
    ignores_read_only: bool,
    sets_archive: bool,
}

impl CopyRequest {
    fn parse(request: &Request) -> Result<Self, Refusal> {
        let headers = &request.headers;
        let sent = SentProperties::parse(headers, request.version, Purpose::Copy)?;
        let mode = headers.one_of(MODE, &[("source", true), ("override", false)])?;
        if mode == Some(false) && sent.permission.is_none() {
            return Err(Refusal::missing_header("x-ms-file-permission"));
        }
        let metadata = Metadata::from_headers(headers)?;
        Ok(Self {
            id: uuid::Uuid::new_v4().into_bytes(),
            copies_permission: mode == Some(true),
            sent,
            metadata: Some(metadata).filter(|metadata| !metadata.is_empty()),
            ignores_read_only: headers.flag("x-ms-file-copy-ignore-readonly")?.unwrap_or_default(),
            sets_archive: headers.flag("x-ms-file-copy-set-archive")?.unwrap_or_default(),
        })
    }

    /// Returns the SMB properties of the copy.
    fn properties(&self, source: &Source, permission: Option<String>, now: Timestamp) -> SmbProperties {
        let of_source = match &source.place {
            SourcePlace::Local { node, .. } => Some(&node.properties),
            SourcePlace::Remote(_) => None,
        };
        let mut properties = self.sent.copy(of_source, permission, now);
        if self.sets_archive {
            properties.attributes = properties.attributes & !NORMAL | ARCHIVE;
        }
        properties
    }
}

/// Returns the content that a copy shares with its source.
fn shared(source: &Node) -> Content {
    source.file.as_ref().map_or_else(Content::empty, |file| file.content.clone())
}
