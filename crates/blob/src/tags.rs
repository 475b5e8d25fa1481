//! Get Blob Tags and Set Blob Tags, and the two forms of tags in requests: a header and a document.

use http::{HeaderMap, StatusCode};
use lazuli_concurrency::Access;
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response, xml};
use lazuli_store::{Change, Decision, Mutation, Reads, View};
use percent_encoding::percent_decode_str;

use crate::BlobService;
use crate::access::target::State;
use crate::index::tag_index::TagClaim;
use crate::model::keys;
use crate::model::record::{self, Blob, Tags};
use crate::rules::precondition::{Preconditions, check_no_pending_copy, not_found};

const HEADER: &str = "x-ms-tags";
/// Maximum length of the header, in bytes.
const MAX_HEADER: usize = 2 << 10;
/// Maximum length of the document, in bytes.
const MAX_DOCUMENT: usize = 64 << 10;
/// Maximum number of tags of one blob.
const MAX_TAGS: usize = 10;
const MAX_KEY: usize = 128;
const MAX_VALUE: usize = 256;

impl BlobService {
    /// Handles Get Blob Tags.
    pub(crate) async fn get_blob_tags(&self, request: Request) -> Result<Response, Refusal> {
        let preconditions = Preconditions::of_tags_and_blob(&request)?;
        let target = self.target(&request).await?;
        let found = self.find(&target).await?;
        let now = found.as_ref().map_or(request.now, |found| found.now);
        preconditions.admit_lease(found.as_ref().map(|found| &found.blob), Access::Read, now)?;
        let found = found.ok_or_else(not_found)?;
        // A failed condition is always refused with 412, never with 304, because the tags may have changed.
        preconditions.check_conditions(&found.blob)?;
        let mut document = xml::Writer::new();
        found.blob.tags.write_xml(&mut document, |_| true);
        Ok(Response::xml(document.finish()))
    }

    /// Handles Set Blob Tags, which changes neither `ETag` nor `Last-Modified`.
    pub(crate) async fn set_blob_tags(&self, mut request: Request) -> Result<Response, Refusal> {
        let preconditions = Preconditions::of_tags_and_blob(&request)?;
        if let Some(snapshot) = request.query.get("snapshot").filter(|snapshot| !snapshot.is_empty()) {
            return Err(Refusal::invalid_query("snapshot", snapshot, "Snapshots cannot be written."));
        }
        let document = self.receive_document(&mut request, MAX_DOCUMENT).await?;
        let tags = Tags::parse_xml(&document.bytes)?;
        let target = self.target(&request).await?;
        let reads = match target.state {
            State::Version(stamp) => Reads::keys([keys::BASE, keys::version(stamp)]),
            _ => Reads::key(keys::BASE),
        };
        let mut claim = TagClaim::default();
        loop {
            let set = self.transact(&target.partition, reads.clone(), |view| {
                set_tags(view, target.state, &tags, &preconditions, &claim)
            });
            match set.await {
                Ok(SetTagsResult::Done { replaced }) => {
                    self.unindex(&target.partition, replaced).await;
                    return Ok(Response::empty(StatusCode::NO_CONTENT));
                }
                // This happens at most once: afterwards the claim has these tags.
                Ok(SetTagsResult::NotIndexed) => claim = self.index(&target.partition, tags.clone()).await?,
                Err(refusal) => {
                    self.unindex_refused(&target.partition, claim, &refusal).await;
                    return Err(refusal);
                }
            }
        }
    }
}

/// Result of one attempt to set the tags of a blob.
enum SetTagsResult {
    /// Nothing was changed. The new tags must be indexed first.
    NotIndexed,
    /// The blob has the new tags. Its former claim can be removed from the index.
    Done { replaced: TagClaim },
}

/// Decides to set the tags of a state. Only the current state is indexed; `indexed` is its claim.
fn set_tags(
    view: &View<'_>,
    state: State,
    tags: &Tags,
    preconditions: &Preconditions,
    indexed: &TagClaim,
) -> Result<Decision<SetTagsResult>, Refusal> {
    let base = record::blob(view.row(&keys::BASE))?;
    let (key, blob) = match state {
        State::Version(stamp) if base.as_ref().is_none_or(|base| base.version != Some(stamp)) => {
            let key = keys::version(stamp);
            let blob = record::blob(view.row(&key))?;
            (key, blob)
        }
        _ => (keys::BASE, base),
    };
    let admission = preconditions.admit_write(blob.as_ref(), view.now)?;
    let old = blob.ok_or_else(not_found)?;
    check_no_pending_copy(&old)?;
    let is_current = key == keys::BASE;
    if is_current && indexed.tags != *tags {
        return Ok(Decision::Answer(SetTagsResult::NotIndexed));
    }
    let replaced = if is_current { TagClaim::of(&old) } else { TagClaim::default() };
    let tags_claim = if is_current { indexed.claim } else { None };
    let new = Blob { tags: tags.clone(), tags_claim, lease: admission.lease, ..old };
    let change = Change::of([Mutation::Put(key, new.encode()?)]);
    let change = change.until(admission.valid_until).until(indexed.valid_until());
    Ok(Decision::Write(change, SetTagsResult::Done { replaced }))
}

impl Tags {
    /// Returns whether the blob has no tags.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of a tag.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Parses `x-ms-tags`, which has the form of a query string.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Self, Refusal> {
        let Some(text) = headers.filled(HEADER)? else { return Ok(Self::default()) };
        if text.len() > MAX_HEADER {
            return Err(ErrorCode::TagsTooLarge.into());
        }
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            percent_decode_str(&spaced).decode_utf8().map(|text| text.into_owned())
        };
        let mut tags = vec![];
        for pair in text.split('&') {
            let (key, value) = pair.split_once('=').ok_or(ErrorCode::InvalidTags)?;
            let (Ok(key), Ok(value)) = (decode(key), decode(value)) else {
                return Err(ErrorCode::InvalidTags.into());
            };
            tags.push((key, value));
        }
        Self::checked(tags)
    }

    /// Parses the body of Set Blob Tags.
    pub(crate) fn parse_xml(document: &[u8]) -> Result<Self, Refusal> {
        let mut tags = vec![];
        let mut xml = xml::Reader::root(document, "Tags")?;
        while let Some(element) = xml.child()? {
            if element != "TagSet" {
                return Err(xml.unsupported());
            }
            while let Some(element) = xml.child()? {
                if element != "Tag" {
                    return Err(xml.unsupported());
                }
                tags.push(parse_tag(&mut xml)?);
                if tags.len() > MAX_TAGS {
                    return Err(ErrorCode::TagsTooLarge.into());
                }
            }
        }
        xml.finish()?;
        Self::checked(tags)
    }

    fn checked(mut tags: Vec<(String, String)>) -> Result<Self, Refusal> {
        if tags.len() > MAX_TAGS {
            return Err(ErrorCode::TagsTooLarge.into());
        }
        for (key, value) in &tags {
            if key.is_empty() {
                return Err(ErrorCode::EmptyTagName.into());
            }
            if key.len() > MAX_KEY || value.len() > MAX_VALUE {
                return Err(ErrorCode::TagsTooLarge.into());
            }
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || " +-./:=_".contains(c);
            if !key.chars().chain(value.chars()).all(is_allowed) {
                return Err(ErrorCode::InvalidTags.into());
            }
        }
        tags.sort_unstable();
        match tags.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            true => Err(ErrorCode::DuplicateTagNames.into()),
            false => Ok(Self(tags)),
        }
    }

    /// Writes the `Tags` element with the tags that `shows` selects.
    pub(crate) fn write_xml(&self, xml: &mut xml::Writer, shows: impl Fn(&str) -> bool) {
        xml.open("Tags").open("TagSet");
        for (key, value) in self.0.iter().filter(|(key, _)| shows(key)) {
            xml.open("Tag").text("Key", key).text("Value", value).close();
        }
        xml.close().close();
    }
}

fn parse_tag(xml: &mut xml::Reader<'_>) -> Result<(String, String), Refusal> {
    let (mut key, mut value) = (None, None);
    while let Some(element) = xml.child()? {
        match element {
            "Key" => key = Some(xml.text()?),
            "Value" => value = Some(xml.text()?),
            _ => return Err(xml.unsupported()),
        }
    }
    let key = key.ok_or_else(|| xml::missing("Key"))?;
    Ok((key, value.ok_or_else(|| xml::missing("Value"))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn of_header(text: &str) -> Result<Vec<(String, String)>, ErrorCode> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_str(text).unwrap());
        Tags::from_headers(&headers).map(|tags| tags.0).map_err(|refusal| refusal.code())
    }

    #[test]
    fn header_has_the_form_of_a_query_string() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(of_header(""), Ok(vec![]));
        let tags = of_header("b%2F=x+y%2Bz&a=&C=%3D%3A");
        assert_eq!(tags, Ok(vec![pair("C", "=:"), pair("a", ""), pair("b/", "x y+z")]));
        let many = |n: usize| (0..n).map(|i| format!("k{i}=v")).collect::<Vec<_>>().join("&");
        assert_eq!(of_header(&many(10)).map(|tags| tags.len()), Ok(10));
        for (text, code) in [
            (many(11), ErrorCode::TagsTooLarge),
            (format!("{}=v", "k".repeat(129)), ErrorCode::TagsTooLarge),
            (format!("k={}", "v".repeat(257)), ErrorCode::TagsTooLarge),
            (format!("k={}", "%41".repeat(700)), ErrorCode::TagsTooLarge),
            ("=v".into(), ErrorCode::EmptyTagName),
            ("a=1&a=2".into(), ErrorCode::DuplicateTagNames),
            ("a".into(), ErrorCode::InvalidTags),
            ("a=1&".into(), ErrorCode::InvalidTags),
            ("a=%FF".into(), ErrorCode::InvalidTags),
            ("a=%27".into(), ErrorCode::InvalidTags),
            ("a!=1".into(), ErrorCode::InvalidTags),
        ] {
            assert_eq!(of_header(&text), Err(code), "{text}");
        }
        let longest = format!("{}={}", "k".repeat(128), "v".repeat(256));
        assert!(of_header(&longest).is_ok());
    }

    #[test]
    fn tags_document_round_trips() {
        let tags = Tags(vec![("a".into(), "x = y".into()), ("b:".into(), String::new())]);
        let mut document = xml::Writer::new();
        tags.write_xml(&mut document, |_| true);
        assert_eq!(Tags::parse_xml(document.finish().as_bytes()), Ok(tags));
        assert_eq!(Tags::parse_xml(b"<Tags><TagSet/></Tags>"), Ok(Tags::default()));
        for (document, code) in [
            ("<Tags><TagSet><Tag><Key>a</Key></Tag></TagSet></Tags>", ErrorCode::MissingRequiredXmlNode),
            ("<Tags><TagSet><Tag><Value>a</Value></Tag></TagSet></Tags>", ErrorCode::MissingRequiredXmlNode),
            ("<Tags><Tag/></Tags>", ErrorCode::UnsupportedXmlNode),
            ("<Tags><TagSet><T/></TagSet></Tags>", ErrorCode::UnsupportedXmlNode),
            ("<TagSet/>", ErrorCode::InvalidXmlDocument),
            ("<Tags>", ErrorCode::InvalidXmlDocument),
            ("<Tags><TagSet><Tag><Key/><Value>a</Value></Tag></TagSet></Tags>", ErrorCode::EmptyTagName),
        ] {
            let refusal = Tags::parse_xml(document.as_bytes()).unwrap_err();
            assert_eq!(refusal.code(), code, "{document}");
        }
    }
}
