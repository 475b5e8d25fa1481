//! The encoding of row values that refer to content.
//!
//! A value begins with its format, like every [record](lazuli_service::record). The fields and each content
//! follow, each after its length. Reading a row does not copy content. All formats so far have this layout.

use std::marker::PhantomData;
use std::ops::Range;

use bytes::{BufMut, Bytes};
use lazuli_extents::Content;
use lazuli_protocol::Refusal;
use lazuli_service::record::{
    Damage, FORMAT, NEWEST, Versioned, append_fields, decode_fields, decode_format,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Encodes a record and content as the value of a row.
pub fn encode_with(head: &impl Serialize, contents: &[&Content]) -> Result<Bytes, Refusal> {
    encode_parts(FORMAT, head, contents)
}

/// Encodes a record whose fields have changed and content as the value of a row.
pub fn encode_versioned_with<R: Versioned>(head: &R, contents: &[&Content]) -> Result<Bytes, Refusal> {
    encode_parts(R::FORMAT, head, contents)
}

fn encode_parts(format: u8, head: &impl Serialize, contents: &[&Content]) -> Result<Bytes, Refusal> {
    let mut value = Vec::with_capacity(512);
    value.put_u8(format);
    put_part(&mut value, |value| append_fields(value, head))?;
    for content in contents {
        put_part(&mut value, |value| {
            content.encode(value);
            Ok(())
        })?;
    }
    Ok(value.into())
}

/// Writes the length of a part, then the part.
fn put_part(
    value: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let at = value.len();
    value.put_u32_le(0);
    write(value)?;
    let length = (value.len() - at - 4) as u32;
    value[at..at + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// Decodes a record and `N` contents from the value of a row.
pub fn decode_with<T: DeserializeOwned, const N: usize>(value: &Bytes) -> Result<(T, [Content; N]), Damage> {
    decode_parts(value, |format, head| match format {
        FORMAT => decode_fields(PhantomData, head),
        format => Err(Damage::Format(format)),
    })
}

/// Decodes a record whose fields have changed, from its format or the previous one, and `N` contents.
pub fn decode_versioned_with<R: Versioned, const N: usize>(
    value: &Bytes,
) -> Result<(R, [Content; N]), Damage> {
    decode_parts(value, decode_format)
}

fn decode_parts<T, const N: usize>(
    value: &Bytes,
    decode_head: impl FnOnce(u8, &[u8]) -> Result<T, Damage>,
) -> Result<(T, [Content; N]), Damage> {
    let format = *value.first().ok_or(Damage::Undecodable)?;
    let mut at = 1;
    // An unknown format may differ from here on.
    let head = take_part(value, &mut at).map(|head| &value[head]);
    let head = decode_head(format, head.unwrap_or_default())?;
    if at == 1 {
        return Err(Damage::Undecodable);
    }
    let mut contents = [const { None }; N];
    for content in &mut contents {
        let part = value.slice(take_part(value, &mut at)?);
        *content = Some(Content::decode(part).ok_or(Damage::Undecodable)?);
    }
    if at == value.len() {
        Ok((head, contents.map(Option::unwrap_or_default)))
    } else {
        Err(Damage::Undecodable)
    }
}

/// Removes content from a row value made by [`encode_with`], for an export. Returns the value with empty
/// parts instead, and the removed contents, each with its number among the parts after the head. Fails if one
/// of `wanted` is missing.
pub fn take_contents(value: &Bytes, wanted: &[Content]) -> Result<(Bytes, Vec<(u8, Content)>), Damage> {
    if wanted.is_empty() {
        return Ok((value.clone(), vec![]));
    }
    let mut taken = vec![];
    let value = replace_contents(value, |part, content| {
        wanted.contains(&content).then(|| {
            taken.push((part, content));
            Content::empty()
        })
    })?;
    if taken.len() == wanted.len() { Ok((value, taken)) } else { Err(Damage::Undecodable) }
}

/// Puts back content that [`take_contents`] removed, or copies of it.
pub fn put_contents(value: &Bytes, contents: &[(u8, Content)]) -> Result<Bytes, Damage> {
    let mut found = 0;
    let value = replace_contents(value, |part, _| {
        let (_, content) = contents.iter().find(|(number, _)| *number == part)?;
        found += 1;
        Some(content.clone())
    })?;
    if found == contents.len() { Ok(value) } else { Err(Damage::Undecodable) }
}

/// Replaces the contents of a value for which the caller supplies others.
fn replace_contents(
    value: &Bytes,
    mut other: impl FnMut(u8, Content) -> Option<Content>,
) -> Result<Bytes, Damage> {
    if !value.first().is_some_and(|format| (FORMAT..=NEWEST).contains(format)) {
        return Err(Damage::Undecodable);
    }
    let mut at = 1;
    take_part(value, &mut at)?;
    let mut replaced = value[..at].to_vec();
    for number in 0..=u8::MAX {
        if at == value.len() {
            return Ok(replaced.into());
        }
        let part = value.slice(take_part(value, &mut at)?);
        let content = Content::decode(part.clone()).ok_or(Damage::Undecodable)?;
        let written = put_part(&mut replaced, |replaced| {
            match other(number, content) {
                Some(content) => content.encode(replaced),
                None => replaced.put_slice(&part),
            }
            Ok(())
        });
        written.map_err(|_| Damage::Undecodable)?;
    }
    Err(Damage::Undecodable)
}

/// Returns the range of the part at `at`, without its length, and advances `at` past it.
fn take_part(value: &[u8], at: &mut usize) -> Result<Range<usize>, Damage> {
    let (length, rest) = value[*at..].split_first_chunk::<4>().ok_or(Damage::Undecodable)?;
    let length = u32::from_le_bytes(*length) as usize;
    if rest.len() < length {
        return Err(Damage::Undecodable);
    }
    let start = *at + 4;
    *at = start + length;
    Ok(start..*at)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    type Fields = (u64, Vec<(String, String)>);

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Limited {
        fields: Fields,
        limit: Option<u64>,
    }

    impl From<Fields> for Limited {
        fn from(fields: Fields) -> Self {
            Self { fields, limit: None }
        }
    }

    impl Versioned for Limited {
        const FORMAT: u8 = 2;
        type Previous = Fields;
    }

    #[test]
    fn record_with_content_is_read_in_its_and_the_previous_format() -> Result<(), Refusal> {
        let content = Content::inline(Bytes::from_static(b"bytes"));
        let fields: Fields = (7, vec![("color".into(), "blue".into())]);
        let old = encode_with(&fields, &[&content])?;
        let (head, [read]) = decode_versioned_with::<Limited, 1>(&old)?;
        assert_eq!((&head.fields, head.limit, &read), (&fields, None, &content));
        let new = encode_versioned_with(&head, &[&content])?;
        assert_eq!(decode_versioned_with::<Limited, 1>(&new), Ok((head, [content.clone()])));
        assert_eq!(decode_with::<Fields, 1>(&new), Err(Damage::Format(2)));
        for value in [&old, &new] {
            let (empty, taken) = take_contents(value, std::slice::from_ref(&content))?;
            assert_eq!((taken.len(), put_contents(&empty, &taken)), (1, Ok(value.clone())));
        }
        let newer = [&[NEWEST + 1], &new[1..]].concat();
        assert_eq!(take_contents(&newer.into(), &[content]), Err(Damage::Undecodable));
        Ok(())
    }
}
