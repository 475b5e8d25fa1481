//! Files: create, properties, metadata, delete. Their content is in [`crate::rest::content`].

use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use lazuli_concurrency::{ByteRange, ConditionRefusal, Conditions, FileLease, FileUse, LeaseId};
use lazuli_extents::Content;
use lazuli_protocol::conflict::Conflict;
use lazuli_protocol::lease::lease_id;
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Headers, Metadata, Refusal, Request, Response, Version};
use lazuli_service::reply::{put, put_validators};

use crate::FileService;
use crate::rest::digest::{CheckedBody, base64};
use crate::rest::smb_properties::{Purpose, SentProperties, written};
use crate::tree::content::ContentEdit;
use crate::tree::record::{ContentHeaders, File, Node, NodeId};
use crate::tree::rules::{
    MAX_FILE_BYTES, admit_write, check_kind, check_writable, existing_file, extent_bytes, with_lease,
};

const LENGTH: &str = "x-ms-content-length";

impl FileService {
    /// Handles Create File, perhaps with the first bytes of its content.
    pub(crate) async fn create_file(&self, mut request: Request) -> Result<Response, Refusal> {
        if !request.headers.required("x-ms-type")?.eq_ignore_ascii_case("file") {
            return Err(Refusal::invalid_header("x-ms-type", request.headers.required("x-ms-type")?));
        }
        let length = request.headers.required_number(LENGTH, 0..=MAX_FILE_BYTES)?.unsigned_abs();
        let sent = SentProperties::parse(&request.headers, request.version, Purpose::Create)?;
        let headers = content_headers(&request.headers)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let lease_id = lease_id(&request.headers)?;
        let has_data = request.content_length.is_none_or(|length| length > 0);
        let data = if has_data { Some(CheckedBody::read(&mut request).await?) } else { None };
        let data = data.filter(|data| !data.bytes.is_empty());
        if data.as_ref().is_some_and(|data| data.bytes.len() as u64 > length) {
            return Err(ErrorCode::InvalidRange.into());
        }
        let target = self.target(&request).await?;
        let permission = self.permission_key(target.share.space, sent.permission.as_ref()).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        let writer = self.extents.pins().writer();
        let first = data.as_ref().map_or(ContentEdit::Keep, |data| ContentEdit::Write(0, data.bytes.clone()));
        let content = self.build_durable_content(&writer, &Content::hole(length), first).await?;
        let mut released = 0;
        let created = self.write_child(&spot, FileUse::Create, |view, old| {
            let mut lease = FileLease::AVAILABLE;
            if let Some(old) = &old {
                lease = admit_replace(old, lease_id, &request.caller)?;
                check_writable(old)?;
            }
            check_create(&conditions, old.as_ref(), lease_id.is_some())?;
            released = old.as_ref().map_or(0, extent_bytes);
            Ok(Node {
                epoch: 0,
                // A replaced file keeps its id for those opens that exist.
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
            })
        });
        let node = created.await?;
        self.extents.released(released);
        let mut response = written(StatusCode::CREATED, &node, spot.parent);
        if let Some(data) = data {
            data.sum.write_header(&mut response.headers).await?;
        }
        Ok(response)
    }

    /// Handles Get File Properties.
    pub(crate) async fn get_file_properties(&self, request: Request) -> Result<Response, Refusal> {
        let (node, parent) = self.file_to_read(&request, FileUse::ReadAttributes, ByteRange::ALL).await?;
        let mut response = written(StatusCode::OK, &node, parent);
        properties(&mut response.headers, &node, request.version);
        if let Some(md5) = node.file.as_ref().and_then(|file| file.headers.content_md5.as_ref()) {
            put(&mut response.headers, "content-md5", base64(md5));
        }
        response.headers.insert(CONTENT_LENGTH, HeaderValue::from(node.length()));
        request.caller.override_headers(&mut response.headers);
        Ok(response)
    }

    /// Handles Get File Metadata.
    pub(crate) async fn get_file_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let (node, _) = self.file_to_read(&request, FileUse::ReadAttributes, ByteRange::ALL).await?;
        let mut response = Response::empty(StatusCode::OK);
        put_validators(&mut response.headers, node.validators());
        node.metadata.write_headers(&mut response.headers);
        Ok(response)
    }

    /// Handles Set File Metadata.
    pub(crate) async fn set_file_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let id = lease_id(&request.headers)?;
        let target = self.target(&request).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        let changed = self.write_child(&spot, FileUse::Write, |view, old| {
            let mut node = existing_file(old)?;
            let lease = admit_write(&node, id)?;
            check_write(&conditions, &node)?;
            check_writable(&node)?;
            node.metadata = metadata.clone();
            node.touch(view.stamp, view.now);
            Ok(with_lease(node, lease))
        });
        let node = changed.await?;
        let mut response = Response::empty(StatusCode::OK);
        put_validators(&mut response.headers, node.validators());
        put(&mut response.headers, "x-ms-request-server-encrypted", "true");
        Ok(response)
    }

    /// Handles Delete File.
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
            check_write(&conditions, &node)?;
            check_writable(&node)?;
            released = extent_bytes(&node);
            Ok(None)
        });
        deleted.await?;
        self.extents.released(released);
        Ok(Response::empty(StatusCode::ACCEPTED))
    }
}

/// Checks that a file may be replaced. Returns the lease to store.
pub(crate) fn admit_replace(old: &Node, id: Option<LeaseId>, caller: &Caller) -> Result<FileLease, Refusal> {
    check_kind(old, false)?;
    let lease = admit_write(old, id)?;
    if caller.may_replace() { Ok(lease) } else { Err(ErrorCode::AuthorizationPermissionMismatch.into()) }
}

/// Evaluates the conditions on a file to create or replace.
pub(crate) fn check_create(
    conditions: &Conditions,
    old: Option<&Node>,
    by_holder: bool,
) -> Result<(), Refusal> {
    let judged = conditions.evaluate_create(old.map(Node::validators), by_holder);
    judged.map_err(|refusal| match refusal {
        ConditionRefusal::AlreadyExists => {
            let conflict = Conflict::of_conditions(conditions, old.map(Node::validators));
            Refusal::new(ErrorCode::ResourceAlreadyExists).with_conflict(conflict)
        }
        refusal => Refusal::unmet(refusal, conditions, old.map(Node::validators)),
    })
}

/// Evaluates the conditions on a file to change.
fn check_write(conditions: &Conditions, node: &Node) -> Result<(), Refusal> {
    let checked = conditions.evaluate_write(node.validators());
    checked.map_err(|refusal| Refusal::unmet(refusal, conditions, Some(node.validators())))
}

/// Parses the content headers in a request.
pub(crate) fn content_headers(headers: &HeaderMap) -> Result<ContentHeaders, Refusal> {
    let text = |name: &str| Ok::<_, Refusal>(headers.filled(name)?.map(str::to_owned));
    Ok(ContentHeaders {
        content_type: text("x-ms-content-type")?,
        content_encoding: text("x-ms-content-encoding")?,
        content_language: text("x-ms-content-language")?,
        content_disposition: text("x-ms-content-disposition")?,
        cache_control: text("x-ms-cache-control")?,
        content_md5: headers.unchecked_md5("x-ms-content-md5")?,
    })
}

/// Writes the headers of Get File and Get File Properties other than ETag, date and SMB properties.
pub(crate) fn properties(headers: &mut HeaderMap, node: &Node, version: Version) {
    let Some(file) = &node.file else { return };
    node.metadata.write_headers(headers);
    if file.headers.content_type.is_none() {
        put(headers, CONTENT_TYPE.as_str(), "application/octet-stream");
    }
    file.headers.write(headers);
    if let Some(copy) = &file.copy {
        copy.write_headers(headers);
    }
    put(headers, "x-ms-type", "File");
    put(headers, "x-ms-server-encrypted", "true");
    // Older clients take these headers for properties of a blob and fail.
    if !version.at_least(2019, 2, 2) {
        return;
    }
    put(headers, "x-ms-lease-status", file.lease.status().to_string());
    put(headers, "x-ms-lease-state", file.lease.state().to_string());
    if let Some(duration) = file.lease.duration() {
        put(headers, "x-ms-lease-duration", duration.to_string());
    }
}
