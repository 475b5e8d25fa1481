//! Copy File, Abort Copy File.
//!
//! A source in this server is copied by sharing its content: no byte moves. A source elsewhere is fetched within the
//! request, up to a bound. So a copy is done when its request is, and there is never one to abort.

use http::{HeaderMap, StatusCode};
use lazuli_concurrency::{ByteRange, FileLease, FileUse, Timestamp};
use lazuli_copy::{Outside, too_large};
use lazuli_extents::{Content, Edit, Writer};
use lazuli_protocol::lease::lease_id;
use lazuli_protocol::request::RequestBody;
use lazuli_protocol::{ErrorCode, Headers, Metadata, Refusal, Request, Response, date};

use crate::FileService;
use crate::content::unreadable;
use crate::file::{admit_write, allocated, check_writable, existing_file};
use crate::record::{Copied, File, Node, NodeId, SmbProperties};
use crate::reply::{put, validators};
use crate::smb_properties::{ARCHIVE, NORMAL, Permission, Purpose, SentProperties};
use crate::source::{Place, Source};
use crate::tree::check_kind;

/// The longest source that is fetched from elsewhere.
const MAX_FETCHED: u64 = 256 << 20;
const MODE: &str = "x-ms-file-permission-copy-mode";

impl FileService {
    /// Copy File.
    pub(crate) async fn copy_file(&self, request: Request) -> Result<Response, Refusal> {
        let wanted = Wanted::parse(&request)?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let lease_id = lease_id(&request.headers)?;
        let target = self.target(&request).await?;
        let source = self.source(&request, ByteRange::ALL).await?;
        let permission = self.permission_of_copy(target.share.space, &wanted, &source).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        let writer = self.extents.pins().writer();
        let content = match &source.place {
            Place::Here { node, .. } => node.file.as_ref().map(|file| file.content.clone()),
            Place::There(outside) => Some(self.fetch(outside, &writer).await?),
        };
        let content = content.ok_or(ErrorCode::InternalError)?;
        let mut released = 0;
        let copied = self.change_child(&spot, FileUse::Create, |view, old| {
            let mut lease = FileLease::AVAILABLE;
            if let Some(old) = &old {
                check_kind(old, false)?;
                lease = admit_write(old, lease_id)?;
                if !wanted.ignores_read_only {
                    check_writable(old)?;
                }
            }
            conditions.evaluate_create(old.as_ref().map(Node::validators), lease_id.is_some())?;
            released = old.as_ref().map_or(0, allocated);
            Ok(Some(Node {
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
                    copy: Some(Copied {
                        id: wanted.id,
                        source: source.shown_url.clone(),
                        bytes: source.length,
                        at: view.now,
                    }),
                    content: content.clone(),
                }),
            }))
        });
        let node = copied.await?.ok_or(ErrorCode::InternalError)?;
        self.extents.released(released);
        let mut response = Response::empty(StatusCode::ACCEPTED);
        validators(&mut response.headers, node.validators());
        put(&mut response.headers, "x-ms-copy-id", uuid::Uuid::from_bytes(wanted.id).to_string());
        put(&mut response.headers, "x-ms-copy-status", "success");
        Ok(response)
    }

    /// Abort Copy File.
    pub(crate) async fn abort_copy_file(&self, request: Request) -> Result<Response, Refusal> {
        let text = request.query.required("copyid")?;
        uuid::Uuid::try_parse(text)
            .map_err(|_| Refusal::invalid_query("copyid", text, "The value is not the id of a copy."))?;
        if request.headers.one_of("x-ms-copy-action", &[("abort", ())])?.is_none() {
            return Err(Refusal::missing_header("x-ms-copy-action"));
        }
        let id = lease_id(&request.headers)?;
        let (node, _) = self.find(&request).await?;
        admit_write(&existing_file(Some(node))?, id)?;
        Err(ErrorCode::NoPendingCopyOperation.into())
    }

    /// The key of the permission that a copy has in its share.
    async fn permission_of_copy(
        &self,
        space: lazuli_store::SpaceId,
        wanted: &Wanted,
        source: &Source,
    ) -> Result<Option<String>, Refusal> {
        let sddl = match (&source.place, wanted.copies_permission) {
            (Place::Here { space: of_source, node, .. }, true) => match &node.properties.permission {
                Some(key) if *of_source == space => return Ok(Some(key.clone())),
                Some(key) => self.permission(*of_source, key).await?,
                None => None,
            },
            _ => return self.permission_key(space, wanted.sent.permission.as_ref()).await,
        };
        self.permission_key(space, sddl.map(Permission::Sddl).as_ref()).await
    }

    /// Fetches a source from elsewhere, durably.
    async fn fetch(&self, outside: &Outside, writer: &Writer) -> Result<Content, Refusal> {
        let length = outside.length();
        if length > MAX_FETCHED {
            return Err(too_large(MAX_FETCHED));
        }
        let mut edit = Edit::new(&self.extents, writer, &Content::hole(length));
        let mut body: RequestBody = outside.body(0..length);
        let mut at = 0;
        while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            let Ok(bytes) = frame.map_err(Refusal::from_body_error)?.into_data() else { continue };
            let end = at + bytes.len() as u64;
            edit.write(at, &Content::inline(bytes)).await.map_err(unreadable)?;
            at = end;
        }
        let content = edit.finish().await.map_err(unreadable)?;
        if content.as_inline().is_none() {
            self.extents.sync().await.map_err(unreadable)?;
        }
        Ok(content)
    }
}

/// What the target of a copy is to be, where it is not as the source is.
struct Wanted {
    id: [u8; 16],
    sent: SentProperties,
    metadata: Option<Metadata>,
    copies_permission: bool,
    ignores_read_only: bool,
    sets_archive: bool,
}

impl Wanted {
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

    /// The SMB properties of the copy.
    fn properties(&self, source: &Source, permission: Option<String>, now: Timestamp) -> SmbProperties {
        let of_source = match &source.place {
            Place::Here { node, .. } => Some(&node.properties),
            Place::There(_) => None,
        };
        let mut properties = self.sent.copy(of_source, permission, now);
        if self.sets_archive {
            properties.attributes = properties.attributes & !NORMAL | ARCHIVE;
        }
        properties
    }
}

/// What replies say of the copy that a file came from.
pub(crate) fn copy_properties(headers: &mut HeaderMap, copied: &Copied) {
    put(headers, "x-ms-copy-id", uuid::Uuid::from_bytes(copied.id).to_string());
    put(headers, "x-ms-copy-status", "success");
    put(headers, "x-ms-copy-source", &copied.source);
    put(headers, "x-ms-copy-progress", format!("{0}/{0}", copied.bytes));
    put(headers, "x-ms-copy-completion-time", date::rfc1123(copied.at));
}
