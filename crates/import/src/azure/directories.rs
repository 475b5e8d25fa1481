//! The tree of a share. A directory gets its properties after everything in it, because changes inside a
//! directory change its times.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode};
use lazuli_client::client::Call;
use lazuli_protocol::ServiceKind;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Links, Refused, Shared, header_text};
use crate::calls::{encode, header};

const SERVICE: ServiceKind = ServiceKind::File;
/// Maximum number of security descriptors of a share that are remembered.
const MAX_PERMISSIONS: usize = 10_000;
/// Properties that files and directories have, by the headers that set them and return them.
const PROPERTIES: [&str; 4] =
    ["x-ms-file-attributes", "x-ms-file-creation-time", "x-ms-file-last-write-time", "x-ms-file-change-time"];
const PERMISSION_KEY: &str = "x-ms-file-permission-key";

/// A share that is being copied.
pub(super) struct ShareCopy {
    pub(super) name: String,
    /// Whether the share did not exist before this run.
    pub(super) is_new: bool,
    /// Keys of security descriptors on the destination, by those on the source.
    permissions: Mutex<HashMap<String, String>>,
}

/// A directory that is kept until everything in it is copied.
pub(super) struct DirectoryCopy {
    pub(super) share: Arc<ShareCopy>,
    /// The path from the root, with slashes; empty for the root.
    pub(super) path: String,
    parent: Option<Arc<DirectoryCopy>>,
}

impl ShareCopy {
    pub(super) fn new(name: &str, is_new: bool) -> Arc<Self> {
        Arc::new(Self { name: name.into(), is_new, permissions: Mutex::default() })
    }

    /// Returns the path below the account, encoded.
    pub(super) fn encoded_path(&self, path: &str) -> String {
        let names = path.split('/').filter(|name| !name.is_empty()).map(|name| format!("/{}", encode(name)));
        format!("/{}{}", self.name, names.collect::<String>())
    }

    /// Adds the headers of the times, the attributes and the security descriptor.
    pub(super) async fn add_properties(
        &self,
        links: &mut Links,
        call: &mut Call,
        properties: &HeaderMap,
    ) -> Result<(), Refused> {
        for name in PROPERTIES {
            let value = header_text(properties, name);
            if !value.is_empty() {
                header(call, name, &value)?;
            }
        }
        match header_text(properties, PERMISSION_KEY) {
            key if key.is_empty() => header(call, "x-ms-file-permission", "inherit"),
            key => header(call, PERMISSION_KEY, &self.copy_permission(links, key).await?),
        }
    }

    /// Copies a security descriptor. Returns its key on the destination.
    async fn copy_permission(&self, links: &mut Links, key: String) -> Result<String, Refused> {
        if let Some(known) = self.permissions.lock().get(&key) {
            return Ok(known.clone());
        }
        let (path, query) = (format!("/{}", self.name), "restype=share&comp=filepermission");
        let mut get = Call::new(Method::GET, path.clone(), query);
        header(&mut get, PERMISSION_KEY, &key)?;
        let reply = links.source.send(SERVICE, &get, &[StatusCode::OK]).await;
        let reply = reply.map_err(|failure| format!("security descriptor: {failure}"))?;
        let document: Value = serde_json::from_slice(&reply.body).map_err(|error| error.to_string())?;
        let text =
            document.get("permission").and_then(Value::as_str).ok_or("a security descriptor is missing")?;
        let body = json!({"permission": text}).to_string();
        let mut create = Call::new(Method::PUT, path, query).body(body.into());
        header(&mut create, "content-type", "application/json")?;
        let reply = links.target.send(SERVICE, &create, &[StatusCode::CREATED]).await;
        let reply = reply.map_err(|failure| format!("security descriptor: {failure}"))?;
        let created = header_text(&reply.headers, PERMISSION_KEY);
        let mut known = self.permissions.lock();
        if known.len() >= MAX_PERMISSIONS {
            known.clear();
        }
        known.insert(key, created.clone());
        Ok(created)
    }

    /// Returns the name of a property of the destination that differs from the source.
    pub(super) async fn difference(
        &self,
        links: &mut Links,
        wanted: &HeaderMap,
        found: &HeaderMap,
    ) -> Result<Option<&'static str>, Refused> {
        // The attributes and times of a file are the same text on both sides.
        let normalized = |headers: &HeaderMap, name: &str| match header_text(headers, name).as_str() {
            "" => "None".to_owned(),
            text => text.replace(' ', ""),
        };
        for name in PROPERTIES {
            if normalized(wanted, name) != normalized(found, name) {
                return Ok(Some(name));
            }
        }
        let key = header_text(wanted, PERMISSION_KEY);
        if !key.is_empty() && self.copy_permission(links, key).await? != header_text(found, PERMISSION_KEY) {
            return Ok(Some("x-ms-file-permission"));
        }
        Ok(None)
    }
}

impl DirectoryCopy {
    pub(super) fn root(share: Arc<ShareCopy>) -> Arc<Self> {
        Arc::new(Self { share, path: String::new(), parent: None })
    }

    pub(super) fn child(self: &Arc<Self>, name: &str) -> Arc<Self> {
        Arc::new(Self { share: self.share.clone(), path: self.path_of(name), parent: Some(self.clone()) })
    }

    /// Returns the path of an object in this directory.
    pub(super) fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}/{name}", self.path) }
    }

    pub(super) fn encoded_path(&self) -> String {
        self.share.encoded_path(&self.path)
    }

    /// Returns the headers of the properties on the source.
    async fn source_properties(&self, links: &mut Links) -> Result<HeaderMap, Refused> {
        let call = Call::new(Method::GET, self.encoded_path(), "restype=directory");
        let reply = links.source.send(SERVICE, &call, &[StatusCode::OK]).await;
        Ok(reply.map_err(|failure| failure.to_string())?.headers)
    }

    /// Creates the directory with its metadata, or sets the metadata if it exists.
    pub(super) async fn create(&self, links: &mut Links) -> Result<(), Refused> {
        let path = self.encoded_path();
        let properties = self.source_properties(links).await?;
        let values = super::metadata_of(&properties);
        if !self.path.is_empty() {
            let mut create = Call::new(Method::PUT, path.clone(), "restype=directory");
            for (name, value) in [
                ("x-ms-file-permission", "inherit"),
                ("x-ms-file-attributes", "None"),
                ("x-ms-file-creation-time", "now"),
                ("x-ms-file-last-write-time", "now"),
            ] {
                header(&mut create, name, value)?;
            }
            crate::calls::metadata(&mut create, Some(&values))?;
            let expected = [StatusCode::CREATED, StatusCode::CONFLICT];
            let reply = links.target.send(SERVICE, &create, &expected).await;
            let reply = reply.map_err(|failure| failure.to_string())?;
            if reply.status == StatusCode::CREATED {
                return Ok(());
            }
            if !super::exists_already(&reply) {
                return Err(header_text(&reply.headers, "x-ms-error-code"));
            }
        }
        let mut set = Call::new(Method::PUT, path, "restype=directory&comp=metadata");
        crate::calls::metadata(&mut set, Some(&values))?;
        let sent = links.target.send(SERVICE, &set, &[StatusCode::OK]).await;
        sent.map(drop).map_err(|failure| failure.to_string())
    }

    /// Sets the times, the attributes and the security descriptor, and compares them.
    async fn set_properties(&self, links: &mut Links) -> Result<(), Refused> {
        let wanted = self.source_properties(links).await?;
        let mut set = Call::new(Method::PUT, self.encoded_path(), "restype=directory&comp=properties");
        self.share.add_properties(links, &mut set, &wanted).await?;
        let sent = links.target.send(SERVICE, &set, &[StatusCode::OK]).await;
        sent.map_err(|failure| failure.to_string())?;
        let call = Call::new(Method::GET, self.encoded_path(), "restype=directory");
        let found = links.target.send(SERVICE, &call, &[StatusCode::OK]).await;
        let found = found.map_err(|failure| failure.to_string())?.headers;
        match self.share.difference(links, &wanted, &found).await? {
            None => Ok(()),
            Some(name) => Err(format!(
                "{name} is {:?} instead of {:?}",
                header_text(&found, name),
                header_text(&wanted, name)
            )),
        }
    }
}

/// Releases a directory. Completes it, and then its parents, if everything in it is copied.
pub(super) async fn release(import: &Shared, links: &mut Links, directory: Arc<DirectoryCopy>) {
    let mut directory = Some(directory);
    while let Some(complete) = directory.take().and_then(Arc::into_inner) {
        match complete.set_properties(links).await {
            Ok(()) => import.imported("directories", 0),
            Err(reason) => {
                let object = format!("properties of directory {}/{}", complete.share.name, complete.path);
                import.left_out(object, reason);
            }
        }
        directory = complete.parent;
    }
}
