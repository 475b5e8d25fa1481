//! Set Blob Properties and Set Blob Metadata.

use http::{HeaderMap, StatusCode};
use lazuli_protocol::{ErrorCode, Headers, Metadata, Refusal, Request, Response};
use lazuli_store::{Change, Decision, Mutation, Reads, View};

use crate::content::edit::{BlobChange, ContentEdit};
use crate::content::encryption::{Seal, check_keyless_update, check_update};
use crate::model::keys;
use crate::model::record::{self, Blob, ContentHeaders, Kind, LegalHold};
use crate::rules::history::History;
use crate::rules::new_blob::{ContentHeaderForms, content_headers, page_blob_length};
use crate::rules::precondition::{Preconditions, check_changeable, check_mutable, not_found};
use crate::rules::tier::check_length_in_tier;
use crate::{BlobService, reply};

const CONTENT_HEADERS: [&str; 6] = [
    "x-ms-blob-cache-control",
    "x-ms-blob-content-type",
    "x-ms-blob-content-md5",
    "x-ms-blob-content-encoding",
    "x-ms-blob-content-language",
    "x-ms-blob-content-disposition",
];
const LENGTH: &str = "x-ms-blob-content-length";
const SEQUENCE_ACTION: &str = "x-ms-sequence-number-action";
const SEQUENCE_NUMBER: &str = "x-ms-blob-sequence-number";

impl BlobService {
    /// Handles Set Blob Properties.
    pub(crate) async fn set_blob_properties(&self, request: Request) -> Result<Response, Refusal> {
        let new = NewProperties::parse(&request.headers)?;
        let preconditions = Preconditions::of_write(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let writer = self.extents.writer();
        let rule = |view: &View<'_>, blob| new.decide(blob, &preconditions, seal.as_ref(), view);
        let blob = self.edit(&target.partition, &writer, rule).await?;
        let mut response = Response::empty(StatusCode::OK);
        reply::validators(&mut response.headers, blob.validators(), request.version);
        if let Kind::Page { sequence_number } = blob.kind {
            reply::put(&mut response.headers, SEQUENCE_NUMBER, sequence_number.to_string());
        }
        Ok(response)
    }

    /// Handles Set Blob Metadata.
    pub(crate) async fn set_blob_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        let preconditions = Preconditions::of_write(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let history = self.history(&request.account).await?;
        // With versioning, another row also refers to the content.
        let writer = self.extents.writer();
        let changed = self.transact(&target.partition, Reads::key(keys::BASE), |view| {
            let old = record::blob(view.row(&keys::BASE))?;
            if let Some(old) = &old {
                self.hold_contents(&writer, old);
            }
            set_metadata(old, metadata.clone(), &preconditions, seal.as_ref(), history, view)
        });
        Ok(reply::write_reply(StatusCode::OK, &changed.await?, request.version))
    }
}

fn set_metadata(
    old: Option<Blob>,
    metadata: Metadata,
    preconditions: &Preconditions,
    seal: Option<&Seal>,
    history: History,
    view: &View<'_>,
) -> Result<Decision<Blob>, Refusal> {
    let admission = preconditions.admit_write(old.as_ref(), view.now)?;
    let old = old.ok_or_else(not_found)?;
    check_update(old.encryption.as_ref(), seal)?;
    check_mutable(&old, view.now)?;
    check_changeable(&old, view.now)?;
    let mut mutations = history.retain_version(&old)?;
    let mut new = Blob { metadata, lease: admission.lease, ..old };
    if !mutations.is_empty() {
        // A policy and a hold protect the version on which they were set.
        (new.immutability, new.legal_hold) = (None, LegalHold::Never);
    }
    new.touch(view.stamp, view.now);
    new.version = history.new_version(view.stamp);
    mutations.push(Mutation::Put(keys::BASE, new.encode()?));
    Ok(Decision::Write(Change::of(mutations).until(admission.valid_until), new))
}

/// The properties that a Set Blob Properties request sets.
#[derive(Debug, PartialEq, Eq)]
struct NewProperties {
    /// All six content headers. `None` leaves them unchanged.
    headers: Option<ContentHeaders>,
    length: Option<u64>,
    sequence_number: Option<SequenceNumber>,
}

/// A change of the sequence number of a page blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SequenceNumber {
    Max(u64),
    Update(u64),
    Increment,
}

impl NewProperties {
    /// Reads the properties that a request sets. If it sets one content header it sets all six, and a request
    /// that sets nothing clears them.
    fn parse(headers: &HeaderMap) -> Result<Self, Refusal> {
        let length = headers.filled(LENGTH)?.map(|_| page_blob_length(headers)).transpose()?;
        let sequence_number = SequenceNumber::parse(headers)?;
        let sets_headers = CONTENT_HEADERS.iter().any(|name| headers.contains_key(*name))
            || (length.is_none() && sequence_number.is_none());
        let content_headers =
            sets_headers.then(|| content_headers(headers, ContentHeaderForms::Own)).transpose()?;
        Ok(Self { headers: content_headers, length, sequence_number })
    }

    fn decide(
        &self,
        blob: Option<Blob>,
        preconditions: &Preconditions,
        seal: Option<&Seal>,
        view: &View<'_>,
    ) -> Result<BlobChange, Refusal> {
        let of_pages = self.length.is_some() || self.sequence_number.is_some();
        let fits = |kind: Kind| !of_pages || matches!(kind, Kind::Page { .. });
        let admission = preconditions.admit_write_to(blob.as_ref(), fits, view.now)?;
        let mut blob = blob.ok_or_else(not_found)?;
        check_keyless_update(blob.encryption.as_ref(), seal)?;
        check_mutable(&blob, view.now)?;
        check_changeable(&blob, view.now)?;
        if let Some(length) = self.length {
            check_length_in_tier(blob.tier.tier, length)?;
        }
        self.apply(&mut blob)?;
        blob.touch(view.stamp, view.now);
        blob.lease = admission.lease;
        blob.copy = None;
        let content = self.length.map_or(ContentEdit::Keep, ContentEdit::Resize);
        Ok(BlobChange { blob, content, valid_until: admission.valid_until })
    }

    fn apply(&self, blob: &mut Blob) -> Result<(), Refusal> {
        if let Some(headers) = &self.headers {
            blob.headers = headers.clone();
        }
        if let (Some(change), Kind::Page { sequence_number }) = (self.sequence_number, &mut blob.kind) {
            *sequence_number = change.apply(*sequence_number)?;
        }
        Ok(())
    }
}

impl SequenceNumber {
    fn parse(headers: &HeaderMap) -> Result<Option<Self>, Refusal> {
        #[derive(Clone, Copy)]
        enum Action {
            Max,
            Update,
            Increment,
        }
        let actions = [("max", Action::Max), ("update", Action::Update), ("increment", Action::Increment)];
        let action = headers.one_of(SEQUENCE_ACTION, &actions)?;
        let number = headers.number(SEQUENCE_NUMBER, 0..=i64::MAX)?.map(i64::unsigned_abs);
        Ok(Some(match (action, number) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(Refusal::missing_header(SEQUENCE_ACTION)),
            (Some(Action::Increment), None) => Self::Increment,
            (Some(Action::Increment), Some(number)) => {
                return Err(Refusal::invalid_header(SEQUENCE_NUMBER, number.to_string()));
            }
            (Some(_), None) => return Err(Refusal::missing_header(SEQUENCE_NUMBER)),
            (Some(Action::Max), Some(number)) => Self::Max(number),
            (Some(Action::Update), Some(number)) => Self::Update(number),
        }))
    }

    fn apply(self, current: u64) -> Result<u64, Refusal> {
        match self {
            Self::Max(number) => Ok(current.max(number)),
            Self::Update(number) => Ok(number),
            Self::Increment if current < i64::MAX.unsigned_abs() => Ok(current + 1),
            Self::Increment => Err(ErrorCode::SequenceNumberIncrementTooLarge.into()),
        }
    }
}
