//! Files: create, properties, metadata, delete. Their content is in [`crate::content`].

use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_TYPE,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use lazuli_concurrency::{Access, ByteRange, ConditionRefusal, Conditions, FileLease, FileUse, LeaseId};
use lazuli_extents::Content;
use lazuli_protocol::lease::{Leased, lease_id};
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Headers, Metadata, Refusal, Request, Response, Version};

use crate::FileService;
use crate::children::At;
use crate::content::{ContentEdit, base64};
use crate::digest::Checked;
use crate::directory::written;
use crate::opens::FileKey;
use crate::pending::check_no_pending_copy;
use crate::record::{ContentHeaders, File, Node, NodeId};
use crate::reply::{put, validators};
use crate::smb_properties::{Purpose, READ_ONLY, SentProperties};
use crate::tree::{Target, check_kind, check_seen};

/// The longest file: 4 TiB.
pub(crate) const MAX_FILE_BYTES: i64 = 4 << 40;
const LENGTH: &str = "x-ms-content-length";
/// How often a file may be replaced by another one while it is being read.
const MAX_TRIES: usize = 64;

impl FileService {
    /// Create File. The first bytes of its content may come with it.
    pub(crate) async fn create_file(&self, mut request: Request) -> Result<Response, Refusal> {
        if !request.headers.required("x-ms-type")?.eq_ignore_ascii_case("file") {
            return Err(Refusal::invalid_header("x-ms-type", request.headers.required("x-ms-type")?));
        }
        let length = request.headers.required_number(LENGTH, 0..=MAX_FILE_BYTES)?.unsigned_abs();
        let sent = SentProperties::parse(&request.headers, request.version, Purpose::Create)?;
        let headers = ContentHeaders::parse(&request.headers)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let lease_id = lease_id(&request.headers)?;
        let has_data = request.content_length.is_none_or(|length| length > 0);
        let data = if has_data { Some(Checked::read(&mut request).await?) } else { None };
        let data = data.filter(|data| !data.bytes.is_empty());
        if data.as_ref().is_some_and(|data| data.bytes.len() as u64 > length) {
            return Err(ErrorCode::InvalidRange.into());
        }
        let target = self.target(&request).await?;
        let permission = self.permission_key(target.share.space, sent.permission.as_ref()).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        let writer = self.extents.pins().writer();
        let first = data.as_ref().map_or(ContentEdit::Keep, |data| ContentEdit::Write(0, data.bytes.clone()));
        let content = self.edited(&writer, &Content::hole(length), first).await?;
        let mut released = 0;
        let created = self.change_child(&spot, FileUse::Create, |view, old| {
            let mut lease = FileLease::AVAILABLE;
            if let Some(old) = &old {
                lease = admit_replace(old, lease_id, &request.caller)?;
                check_writable(old)?;
            }
            check_create(&conditions, old.as_ref(), lease_id.is_some())?;
            released = old.as_ref().map_or(0, allocated);
            Ok(Some(Node {
                epoch: 0,
                // A file that is replaced is the same file to whoever has it open.
                id: old.as_ref().map_or(NodeId(view.stamp.ticks()), |old| old.id),
                name: spot.name.text.clone(),
                modified: view.now,
                etag: view.stamp.into(),
                properties: sent.create(false, permission.clone(), view.now),
                metadata: metadata.clone(),
                file: Some(File {
                    headers: headers.clone(),
                    lease,
                    incarnation: view.stamp.ticks(),
                    copy: None,
                    content: content.clone(),
                }),
            }))
        });
        let node = created.await?.ok_or(ErrorCode::InternalError)?;
        self.extents.released(released);
        let mut response = written(StatusCode::CREATED, &node, spot.parent);
        if let Some(data) = data {
            data.sum.tell(&mut response.headers).await?;
        }
        Ok(response)
    }

    /// Get File Properties.
    pub(crate) async fn get_file_properties(&self, request: Request) -> Result<Response, Refusal> {
        let (node, parent) = self.file_to_read(&request, FileUse::Look, ByteRange::ALL).await?;
        let mut response = written(StatusCode::OK, &node, parent);
        properties(&mut response.headers, &node, request.version);
        if let Some(md5) = node.file.as_ref().and_then(|file| file.headers.content_md5.as_ref()) {
            put(&mut response.headers, "content-md5", base64(md5));
        }
        response.headers.insert(CONTENT_LENGTH, HeaderValue::from(node.length()));
        request.caller.override_headers(&mut response.headers);
        Ok(response)
    }

    /// Get File Metadata.
    pub(crate) async fn get_file_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let (node, _) = self.file_to_read(&request, FileUse::Look, ByteRange::ALL).await?;
        let mut response = Response::empty(StatusCode::OK);
        validators(&mut response.headers, node.validators());
        node.metadata.write_headers(&mut response.headers);
        Ok(response)
    }

    /// Set File Metadata.
    pub(crate) async fn set_file_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let id = lease_id(&request.headers)?;
        let target = self.target(&request).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        let changed = self.change_child(&spot, FileUse::Write, |view, old| {
            let mut node = existing_file(old)?;
            let lease = admit_write(&node, id)?;
            conditions.evaluate_write(node.validators())?;
            check_writable(&node)?;
            node.metadata = metadata.clone();
            node.touch(view.stamp, view.now);
            Ok(Some(with_lease(node, lease)))
        });
        let node = changed.await?.ok_or(ErrorCode::InternalError)?;
        let mut response = Response::empty(StatusCode::OK);
        validators(&mut response.headers, node.validators());
        put(&mut response.headers, "x-ms-request-server-encrypted", "true");
        Ok(response)
    }

    /// Delete File.
    pub(crate) async fn delete_file(&self, request: Request) -> Result<Response, Refusal> {
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let id = lease_id(&request.headers)?;
        let target = self.target(&request).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        let mut released = 0;
        let deleted = self.change_child(&spot, FileUse::Delete, |_, old| {
            let node = existing_file(old)?;
            admit_write(&node, id)?;
            conditions.evaluate_write(node.validators())?;
            check_writable(&node)?;
            released = allocated(&node);
            Ok(None)
        });
        deleted.await?;
        self.extents.released(released);
        Ok(Response::empty(StatusCode::ACCEPTED))
    }

    /// The file that a read addresses, once the lease id that was sent is found right and SMB clients have written back
    /// what they cache.
    pub(crate) async fn file_to_read(
        &self,
        request: &Request,
        usage: FileUse,
        range: ByteRange,
    ) -> Result<(Node, NodeId), Refusal> {
        let id = lease_id(&request.headers)?;
        let target = self.target(request).await?;
        self.file_at(&target, id, usage, range).await
    }

    /// The file at a target, in the same way.
    pub(crate) async fn file_at(
        &self,
        target: &Target,
        id: Option<LeaseId>,
        usage: FileUse,
        range: ByteRange,
    ) -> Result<(Node, NodeId), Refusal> {
        let mut admission = self.opens.admission(target.patience);
        // Of which file a row that is read from now on has everything that was written before the request came.
        let mut admitted = None;
        for _ in 0..MAX_TRIES {
            let nobody_writes = self.opens.is_empty();
            let (node, parent) = self.find_target(target).await?;
            let check = if usage == FileUse::Look { check_seen } else { check_kind };
            check(&node, false)?;
            if let Some(file) = &node.file {
                let leased = file.lease.admits(Access::Read, id);
                leased.map_err(|refusal| Refusal::lease(refusal, Leased::File))?;
            }
            if target.at != At::Now || admitted == Some(node.id) {
                return Ok((node, parent));
            }
            let file = FileKey::now(target.share.space, node.id);
            match admission.admit_range(file, usage, range) {
                Ok(()) if nobody_writes => return Ok((node, parent)),
                // What was written may have come into the row after it was read, on behalf of somebody else.
                Ok(()) => admitted = Some(node.id),
                // Read again then: there may be more to see.
                Err(refusal) if !self.again(&mut admission).await => return Err(refusal),
                Err(_) => {}
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }
}

/// The file that is there.
pub(crate) fn existing_file(node: Option<Node>) -> Result<Node, Refusal> {
    let node = node.ok_or(ErrorCode::ResourceNotFound)?;
    check_kind(&node, false)?;
    Ok(node)
}

/// Judges the lease of a file that is to be changed, and whether a copy to it is under way. The lease to store.
pub(crate) fn admit_write(node: &Node, id: Option<LeaseId>) -> Result<FileLease, Refusal> {
    let lease = admit_lease(node, id)?;
    check_no_pending_copy(node)?;
    Ok(lease)
}

/// Judges whether what is there may be replaced by a file. The lease to store.
pub(crate) fn admit_replace(old: &Node, id: Option<LeaseId>, caller: &Caller) -> Result<FileLease, Refusal> {
    check_kind(old, false)?;
    let lease = admit_write(old, id)?;
    if caller.may_replace() { Ok(lease) } else { Err(ErrorCode::AuthorizationPermissionMismatch.into()) }
}

/// Judges the conditions on a file that is to be made or replaced.
pub(crate) fn check_create(
    conditions: &Conditions,
    old: Option<&Node>,
    by_holder: bool,
) -> Result<(), Refusal> {
    let judged = conditions.evaluate_create(old.map(Node::validators), by_holder);
    judged.map_err(|refusal| match refusal {
        ConditionRefusal::AlreadyExists => ErrorCode::ResourceAlreadyExists.into(),
        refusal => refusal.into(),
    })
}

/// Judges the lease of a file that is to be changed. The lease to store.
pub(crate) fn admit_lease(node: &Node, id: Option<LeaseId>) -> Result<FileLease, Refusal> {
    let lease = node.file.as_ref().map_or(FileLease::AVAILABLE, |file| file.lease);
    lease.admits(Access::Write, id).map_err(|refusal| Refusal::lease(refusal, Leased::File))
}

/// The same file with that lease.
pub(crate) fn with_lease(mut node: Node, lease: FileLease) -> Node {
    if let Some(file) = &mut node.file {
        file.lease = lease;
    }
    node
}

/// Refuses to change what is read-only.
pub(crate) fn check_writable(node: &Node) -> Result<(), Refusal> {
    match node.properties.attributes & READ_ONLY {
        0 => Ok(()),
        _ => Err(ErrorCode::ReadOnlyAttribute.into()),
    }
}

/// Bytes of content that it refers to.
pub(crate) fn allocated(node: &Node) -> u64 {
    node.file.as_ref().map_or(0, |file| file.content.allocated())
}

impl ContentHeaders {
    /// What the headers of a request say.
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Self, Refusal> {
        let text = |name: &str| Ok::<_, Refusal>(headers.filled(name)?.map(str::to_owned));
        Ok(Self {
            content_type: text("x-ms-content-type")?,
            content_encoding: text("x-ms-content-encoding")?,
            content_language: text("x-ms-content-language")?,
            content_disposition: text("x-ms-content-disposition")?,
            cache_control: text("x-ms-cache-control")?,
            content_md5: headers.unchecked_md5("x-ms-content-md5")?,
        })
    }
}

/// What Get File and Get File Properties say beside the tag, the date and the SMB properties.
pub(crate) fn properties(headers: &mut HeaderMap, node: &Node, version: Version) {
    let Some(file) = &node.file else { return };
    node.metadata.write_headers(headers);
    let content = &file.headers;
    let content_type = content.content_type.as_deref().unwrap_or("application/octet-stream");
    if !content_type.is_empty() {
        put(headers, CONTENT_TYPE.as_str(), content_type);
    }
    for (name, value) in [
        (CONTENT_ENCODING, &content.content_encoding),
        (CONTENT_LANGUAGE, &content.content_language),
        (CONTENT_DISPOSITION, &content.content_disposition),
        (CACHE_CONTROL, &content.cache_control),
    ] {
        if let Some(value) = value.as_deref().and_then(|value| HeaderValue::from_str(value).ok()) {
            headers.insert(name, value);
        }
    }
    if let Some(copy) = &file.copy {
        copy.write_headers(headers);
    }
    put(headers, "x-ms-type", "File");
    put(headers, "x-ms-server-encrypted", "true");
    // Clients of the time before files had leases fail on what they take for a property of a blob.
    if !version.at_least(2019, 2, 2) {
        return;
    }
    put(headers, "x-ms-lease-status", file.lease.status().to_string());
    put(headers, "x-ms-lease-state", file.lease.state().to_string());
    if let Some(duration) = file.lease.duration() {
        put(headers, "x-ms-lease-duration", duration.to_string());
    }
}
