//! Writes the entries of List Blobs. Their elements depend on the version of the request.

use lazuli_protocol::{ErrorCode, Refusal, date, xml};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{BlobListing, ListedState};
use crate::model::record::{Blob, BlobCopy, Encryption, Kind};
use crate::reply;

/// The characters that are escaped in the path of a URL.
const PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\')
    .add(b'^')
    .add(b'`');

impl BlobListing<'_> {
    /// Opens the document.
    pub(super) fn open(&mut self) {
        let (endpoint, container) = (&self.request.endpoint, self.request.container.as_str());
        let root = "EnumerationResults";
        if self.request.version.at_least(2013, 8, 15) {
            let endpoint = format!("{endpoint}/");
            self.xml.open_with(root, &[("ServiceEndpoint", &endpoint), ("ContainerName", container)]);
        } else {
            self.xml.open_with(root, &[("ContainerName", &format!("{endpoint}/{container}"))]);
        }
        self.page.write_echo(&mut self.xml);
        self.xml.open("Blobs");
    }

    /// Writes an entry that stands for all blobs under a prefix.
    pub(super) fn write_prefix(&mut self, prefix: &str) {
        self.xml.open("BlobPrefix");
        self.write_name(prefix);
        self.xml.close();
    }

    /// Writes an entry for one state of a blob.
    pub(super) fn write_blob(&mut self, name: &str, blob: &Blob, shown: ListedState) -> Result<(), Refusal> {
        let version = self.request.version;
        if matches!(blob.kind, Kind::Append { .. }) && !version.at_least(2015, 2, 21) {
            return Err(ErrorCode::FeatureVersionMismatch.into());
        }
        self.xml.open("Blob");
        self.write_name(name);
        if !version.at_least(2013, 8, 15) {
            self.write_url(name, shown);
        }
        self.write_identity(blob, shown);
        self.xml.open("Properties");
        self.write_properties(blob, shown);
        self.xml.close();
        if self.include.metadata && blob.committed {
            match blob.encryption {
                Some(Encryption::Customer { .. }) if !blob.metadata.is_empty() => {
                    self.xml.text_with("Metadata", &[("Encrypted", "true")], "");
                }
                _ => blob.metadata.write_xml(&mut self.xml),
            }
        }
        if self.include.tags && !blob.tags.0.is_empty() {
            blob.tags.write_xml(&mut self.xml, |_| true);
        }
        if version.at_least(2019, 12, 12) {
            self.xml.empty("OrMetadata");
        }
        self.xml.close();
        Ok(())
    }

    fn write_name(&mut self, name: &str) {
        if self.request.version.at_least(2021, 2, 12) {
            self.xml.name("Name", name);
        } else {
            self.xml.string("Name", name);
        }
    }

    fn write_url(&mut self, name: &str, shown: ListedState) {
        let (endpoint, container) = (&self.request.endpoint, &self.request.container);
        let name = utf8_percent_encode(name, PATH);
        match shown {
            ListedState::Snapshot(stamp) => {
                let snapshot = reply::stamp_text(stamp);
                self.xml.text("Url", format_args!("{endpoint}/{container}/{name}?snapshot={snapshot}"));
            }
            _ => {
                self.xml.text("Url", format_args!("{endpoint}/{container}/{name}"));
            }
        }
    }

    /// Writes the elements that identify the state.
    fn write_identity(&mut self, blob: &Blob, shown: ListedState) {
        let (xml, include) = (&mut self.xml, self.include);
        if let ListedState::Snapshot(stamp) = shown {
            xml.text("Snapshot", reply::stamp_text(stamp));
        }
        let shows_version = shown != ListedState::VersionsOnly || include.versions;
        if let Some(stamp) =
            blob.version.filter(|_| shows_version && self.request.version.at_least(2019, 12, 12))
        {
            xml.text("VersionId", reply::stamp_text(stamp));
            if shown == ListedState::Current && blob.deleted.is_none() {
                xml.text("IsCurrentVersion", true);
            }
        }
        if blob.deleted.is_some() {
            xml.text("Deleted", true);
        }
        if shown == ListedState::VersionsOnly {
            xml.text("HasVersionsOnly", true);
        }
    }

    fn write_properties(&mut self, blob: &Blob, shown: ListedState) {
        if blob.committed {
            self.write_content_properties(blob);
        } else {
            self.xml.text("Content-Length", 0);
        }
        let (version, now) = (self.request.version, self.now);
        let xml = &mut self.xml;
        if let Kind::Page { sequence_number } = blob.kind {
            xml.text("x-ms-blob-sequence-number", sequence_number);
        }
        xml.string("BlobType", blob.kind.name());
        if version.at_least(2017, 4, 17) {
            self.write_tier(blob);
        }
        let xml = &mut self.xml;
        if blob.deleted.is_none() && matches!(shown, ListedState::Current | ListedState::VersionsOnly) {
            xml.text("LeaseStatus", blob.lease.status(now));
            if version.at_least(2012, 2, 12) {
                xml.text("LeaseState", blob.lease.state(now));
                xml.optional("LeaseDuration", blob.lease.duration(now));
            }
        }
        if let Some(copy) = blob.copy.as_ref().filter(|_| self.include.copy) {
            self.write_copy(copy);
        }
        let xml = &mut self.xml;
        if version.at_least(2015, 12, 11) {
            xml.string("ServerEncrypted", "true");
        }
        match &blob.encryption {
            Some(Encryption::Customer { key_sha256 }) if version.at_least(2019, 2, 2) => {
                xml.text("CustomerProvidedKeySha256", reply::sha256_text(key_sha256));
            }
            Some(Encryption::Scope { name }) if version.at_least(2019, 2, 2) => {
                xml.text("EncryptionScope", name);
            }
            _ => {}
        }
        if version.at_least(2016, 5, 31) && blob.copy.as_ref().is_some_and(|copy| copy.incremental) {
            xml.text("IncrementalCopy", true);
        }
        if let Some(deleted) = blob.deleted {
            deleted.write_xml(xml, now);
        }
        self.write_late_properties(blob);
    }

    /// Writes the properties that only committed blobs have.
    fn write_content_properties(&mut self, blob: &Blob) {
        let version = self.request.version;
        let (xml, headers) = (&mut self.xml, &blob.headers);
        if version.at_least(2017, 11, 9) {
            xml.string("Creation-Time", &date::rfc1123(blob.created));
        }
        xml.string("Last-Modified", &date::rfc1123(blob.modified));
        xml.string("Etag", &blob.etag.unquoted());
        xml.text("Content-Length", blob.content.len());
        write_header(xml, "Content-Type", headers.content_type.as_deref());
        write_header(xml, "Content-Encoding", headers.content_encoding.as_deref());
        write_header(xml, "Content-Language", headers.content_language.as_deref());
        if version.at_least(2019, 2, 2) {
            xml.empty("Content-CRC64");
        }
        write_header(xml, "Content-MD5", headers.content_md5.as_ref().map(reply::md5_text).as_deref());
        write_header(xml, "Cache-Control", headers.cache_control.as_deref());
        if version.at_least(2013, 8, 15) {
            write_header(xml, "Content-Disposition", headers.content_disposition.as_deref());
        }
    }

    fn write_tier(&mut self, blob: &Blob) {
        let xml = &mut self.xml;
        let tiering = blob.tier.at(self.now);
        let default = &self.request.account.settings.default_tier;
        match (tiering.tier, blob.kind) {
            (Some(tier), _) => {
                xml.text("AccessTier", tier.name());
                xml.optional("SmartAccessTier", tier.chosen(default));
            }
            (None, Kind::Block) => {
                xml.string("AccessTier", default).string("AccessTierInferred", "true");
            }
            (None, _) => {}
        }
        xml.optional("AccessTierChangeTime", tiering.changed.map(date::rfc1123));
        if let Some(rehydration) = tiering.rehydration {
            xml.text("ArchiveStatus", rehydration.status());
            xml.text("RehydratePriority", if rehydration.high_priority { "High" } else { "Standard" });
        }
    }

    fn write_copy(&mut self, copy: &BlobCopy) {
        let xml = &mut self.xml;
        xml.text("CopyId", uuid::Uuid::from_bytes(copy.state.id));
        xml.text("CopyStatus", copy.state.status.name());
        xml.text("CopySource", &copy.state.source);
        xml.text("CopyProgress", copy.state.progress());
        xml.optional("CopyCompletionTime", copy.state.completed.map(date::rfc1123));
        xml.optional("CopyStatusDescription", copy.state.description.as_deref());
        xml.optional("CopyDestinationSnapshot", copy.destination_snapshot.map(reply::stamp_text));
    }

    /// Writes the properties that later versions of the protocol added.
    fn write_late_properties(&mut self, blob: &Blob) {
        let version = self.request.version;
        let (xml, include) = (&mut self.xml, self.include);
        if version.at_least(2019, 12, 12) {
            let tags = blob.tags.0.len();
            xml.optional("TagCount", (tags > 0).then_some(tags));
            if let Kind::Append { sealed: true, .. } = blob.kind {
                xml.text("Sealed", true);
            }
        }
        if version.at_least(2020, 2, 10) {
            xml.optional("Expiry-Time", blob.expires.map(date::rfc1123));
        }
        if let Some(policy) = blob.immutability.filter(|_| include.immutability_policy) {
            xml.text("ImmutabilityPolicyUntilDate", date::rfc1123(policy.until));
            xml.text("ImmutabilityPolicyMode", policy.mode());
        }
        if include.legal_hold {
            xml.text("LegalHold", blob.legal_hold.is_held());
        }
    }
}

/// Writes an element, empty if there is no value.
#[inline]
fn write_header(xml: &mut xml::Writer, name: &str, value: Option<&str>) {
    match value {
        Some(value) => xml.string(name, value),
        None => xml.empty(name),
    };
}
