//! Structured messages: bodies with a CRC-64/NVME of each segment and of the whole content. Either side can
//! verify what arrived, whatever its length.
//!
//! ```text
//! message    version u8 = 1, length of the message u64, flags u16 = 1, number of segments u16,
//!            segments, CRC of the content u64
//! segment    number u16, from 1, length of the content u64, content, CRC of the content u64
//! ```
//!
//! Numbers are little-endian. [`Structured::from_request`] decodes a request's body, so that its reader gets
//! the content only; if the message is corrupt, the body fails before its end. [`Structured::encode_reply`]
//! encodes a reply's body. Both process the stream without buffering it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes};
use crc_fast::CrcAlgorithm::Crc64Nvme;
use crc_fast::{Digest, checksum_combine};
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use http_body::{Frame, SizeHint};

use crate::error::{ErrorCode, Refusal};
use crate::header::Headers;
use crate::operation::Operation;
use crate::request::{Body, BodyError, Request, Response, full};

const BODY: HeaderName = HeaderName::from_static("x-ms-structured-body");
const BODY_LENGTH: HeaderName = HeaderName::from_static("x-ms-structured-content-length");

const VERSION: u8 = 1;
const FLAG_CRC64: u16 = 1;
const MESSAGE_HEADER: usize = 13;
const SEGMENT_HEADER: usize = 10;
const CRC: usize = 8;
const MAX_SEGMENTS: u64 = u16::MAX as u64;
/// Bytes of content in a segment that the encoder writes, unless that results in too many segments.
const SEGMENT: u64 = 4 << 20;

/// Maximum number of bytes by which a message is longer than its content.
pub const MAX_OVERHEAD: u64 = (MESSAGE_HEADER + CRC) as u64 + MAX_SEGMENTS * (SEGMENT_HEADER + CRC) as u64;

/// The use of structured messages by one request.
#[derive(Debug)]
pub struct Structured {
    /// The format as the client names it, which the reply repeats.
    format: HeaderValue,
    /// The body of the reply is to be encoded.
    encodes_reply: bool,
}

impl Structured {
    /// Detects whether a request uses structured messages. If its body is one, replaces it by the decoded
    /// content.
    pub fn from_request(request: &mut Request) -> Result<Option<Self>, Refusal> {
        use Operation::{AppendBlock, CreateFile, GetBlob, GetFile, PutBlob, PutBlock, PutPage, PutRange};
        let reads = match request.operation {
            GetBlob | GetFile => true,
            PutBlob | PutBlock | AppendBlock | PutPage | CreateFile | PutRange => false,
            _ => return Ok(None),
        };
        let Some(text) = request.headers.filled(BODY.as_str())? else { return Ok(None) };
        let plain: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        if !plain.eq_ignore_ascii_case("XSM/1.0;properties=crc64") {
            return Err(Refusal::invalid_header(BODY, text));
        }
        let format = HeaderValue::from_str(text).map_err(|_| Refusal::invalid_header(BODY, text))?;
        if !reads {
            let length = request.headers.required_number(BODY_LENGTH.as_str(), 0..=i64::MAX)?.unsigned_abs();
            let message = request.content_length.ok_or(ErrorCode::MissingContentLengthHeader)?;
            let body = std::mem::replace(&mut request.body, full(""));
            request.body = Box::pin(CodecBody::new(body, Decoder::new(message, length), length));
            request.content_length = Some(length);
        }
        Ok(Some(Self { format, encodes_reply: reads }))
    }

    /// Returns the reply in the format that the client expects.
    pub fn encode_reply(self, mut response: Response) -> Response {
        if self.encodes_reply {
            let length =
                response.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
            // A reply without a length has no content to encode.
            let Some(length) = length else { return response };
            let encoder = Encoder::new(length);
            let message = encoder.message_length();
            response.body = Body::stream(CodecBody::new(response.body, encoder, message));
            response.headers.insert(CONTENT_LENGTH, message.into());
            response.headers.insert(BODY_LENGTH, length.into());
        }
        response.headers.insert(BODY, self.format);
        response
    }
}

fn malformed(reason: &'static str) -> Refusal {
    Refusal::new(ErrorCode::InvalidInput).message(reason)
}

/// Encodes or decodes a stream.
trait Codec: Unpin {
    fn push(&mut self, bytes: Bytes, out: &mut VecDeque<Bytes>) -> Result<(), Refusal>;
    /// Ends the output. The caller calls it at the end of the input.
    fn finish(&mut self, out: &mut VecDeque<Bytes>) -> Result<(), Refusal>;
}

/// A body that is encoded or decoded as it is read.
struct CodecBody<B, P> {
    /// `None` once the body has ended or failed.
    body: Option<B>,
    codec: P,
    /// Output of the last input.
    out: VecDeque<Bytes>,
    /// Bytes of output still to come.
    left: u64,
}

impl<B, P> CodecBody<B, P> {
    fn new(body: B, codec: P, length: u64) -> Self {
        Self { body: Some(body), codec, out: VecDeque::new(), left: length }
    }
}

impl<B, P> http_body::Body for CodecBody<B, P>
where
    B: http_body::Body<Data = Bytes, Error = BodyError> + Unpin,
    P: Codec,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.out.pop_front() {
                this.left = this.left.saturating_sub(bytes.len() as u64);
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let Some(body) = &mut this.body else { return Poll::Ready(None) };
            let result = match ready!(Pin::new(body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => this.codec.push(bytes, &mut this.out),
                    Err(_) => Ok(()),
                },
                Some(Err(error)) => {
                    this.body = None;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    this.body = None;
                    this.codec.finish(&mut this.out)
                }
            };
            if let Err(refusal) = result {
                this.body = None;
                this.out.clear();
                return Poll::Ready(Some(Err(refusal.into())));
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Decodes a message into its content.
#[derive(Debug)]
struct Decoder {
    /// Announced lengths of the message and of its content.
    message_length: u64,
    content_length: u64,
    next: Field,
    /// The bytes of the next field that have arrived.
    field: Vec<u8>,
    segments: u16,
    /// The current segment's number, the length of its content, and the part of that still to come.
    number: u16,
    length: u64,
    left: u64,
    /// Length of the content of all segments so far, including the current one.
    content_so_far: u64,
    segment_crc: Digest,
    content_crc: u64,
}

/// The fields of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    MessageHeader,
    SegmentHeader,
    Content,
    SegmentCrc,
    ContentCrc,
    End,
}

impl Field {
    const fn length(self) -> usize {
        match self {
            Self::MessageHeader => MESSAGE_HEADER,
            Self::SegmentHeader => SEGMENT_HEADER,
            Self::SegmentCrc | Self::ContentCrc => CRC,
            Self::Content | Self::End => 0,
        }
    }
}

impl Decoder {
    fn new(message_length: u64, content_length: u64) -> Self {
        Self {
            message_length,
            content_length,
            next: Field::MessageHeader,
            field: Vec::with_capacity(MESSAGE_HEADER),
            segments: 0,
            number: 0,
            length: 0,
            left: 0,
            content_so_far: 0,
            segment_crc: Digest::new(Crc64Nvme),
            content_crc: 0,
        }
    }

    /// Reads a complete field. Returns the field that follows.
    fn read(&mut self) -> Result<Field, Refusal> {
        let mut field = &*self.field;
        Ok(match self.next {
            Field::MessageHeader => {
                if field.get_u8() != VERSION {
                    return Err(malformed("The version of the structured message is not known."));
                }
                if field.get_u64_le() != self.message_length {
                    return Err(malformed("The structured message is not as long as it says."));
                }
                if field.get_u16_le() != FLAG_CRC64 {
                    return Err(malformed(
                        "The flags of the structured message are not those of its header.",
                    ));
                }
                self.segments = field.get_u16_le();
                self.after_segment()
            }
            Field::SegmentHeader => {
                self.number += 1;
                if field.get_u16_le() != self.number {
                    return Err(malformed("A segment of the structured message is out of order."));
                }
                self.length = field.get_u64_le();
                self.left = self.length;
                self.content_so_far = self.content_so_far.saturating_add(self.length);
                if self.content_so_far > self.content_length {
                    return Err(malformed("The structured message has more content than announced."));
                }
                self.segment_crc = Digest::new(Crc64Nvme);
                Field::Content
            }
            Field::SegmentCrc => {
                let crc = self.segment_crc.finalize();
                if field.get_u64_le() != crc {
                    return Err(ErrorCode::Crc64Mismatch.into());
                }
                self.content_crc = match self.number {
                    1 => crc,
                    _ => checksum_combine(Crc64Nvme, self.content_crc, crc, self.length),
                };
                self.after_segment()
            }
            Field::ContentCrc => {
                if field.get_u64_le() != self.content_crc {
                    return Err(ErrorCode::Crc64Mismatch.into());
                }
                Field::End
            }
            Field::Content | Field::End => self.next,
        })
    }

    fn after_segment(&self) -> Field {
        if self.number < self.segments { Field::SegmentHeader } else { Field::ContentCrc }
    }
}

impl Codec for Decoder {
    fn push(&mut self, mut bytes: Bytes, out: &mut VecDeque<Bytes>) -> Result<(), Refusal> {
        while !bytes.is_empty() {
            match self.next {
                Field::Content => {
                    let length = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                    let content = bytes.split_to(length);
                    self.segment_crc.update(&content);
                    self.left -= length as u64;
                    out.push_back(content);
                }
                Field::End => return Err(malformed("The structured message is longer than it says.")),
                field => {
                    let part = bytes.split_to(bytes.len().min(field.length() - self.field.len()));
                    self.field.extend_from_slice(&part);
                    if self.field.len() == field.length() {
                        self.next = self.read()?;
                        self.field.clear();
                    }
                }
            }
            if self.next == Field::Content && self.left == 0 {
                self.next = Field::SegmentCrc;
            }
        }
        out.retain(|content| !content.is_empty());
        Ok(())
    }

    fn finish(&mut self, _: &mut VecDeque<Bytes>) -> Result<(), Refusal> {
        if self.next == Field::End && self.content_so_far == self.content_length {
            Ok(())
        } else {
            Err(malformed("The structured message ends before its content does."))
        }
    }
}

/// Encodes content as a message.
#[derive(Debug)]
struct Encoder {
    content_length: u64,
    segment_length: u64,
    /// Length of the content before the current segment; `None` before the first.
    segment_start: Option<u64>,
    /// The current segment's number, and the length of its content still to come.
    number: u16,
    left: u64,
    segment_crc: Digest,
    content_crc: Digest,
}

impl Encoder {
    fn new(content_length: u64) -> Self {
        Self {
            content_length,
            segment_length: SEGMENT.max(content_length.div_ceil(MAX_SEGMENTS)),
            segment_start: None,
            number: 0,
            left: 0,
            segment_crc: Digest::new(Crc64Nvme),
            content_crc: Digest::new(Crc64Nvme),
        }
    }

    /// Returns the number of segments. Empty content has one, too.
    fn segments(&self) -> u64 {
        self.content_length.div_ceil(self.segment_length).max(1)
    }

    fn message_length(&self) -> u64 {
        let around = (SEGMENT_HEADER + CRC) as u64 * self.segments() + (MESSAGE_HEADER + CRC) as u64;
        self.content_length + around
    }

    /// Ends the current segment, if there is one, and begins the next.
    fn begin_segment(&mut self) -> Bytes {
        let mut bytes = Vec::with_capacity(CRC + MESSAGE_HEADER + SEGMENT_HEADER);
        let segment_start = match self.segment_start {
            None => {
                bytes.put_u8(VERSION);
                bytes.put_u64_le(self.message_length());
                bytes.put_u16_le(FLAG_CRC64);
                bytes.put_u16_le(self.segments() as u16);
                0
            }
            Some(segment_start) => {
                bytes.put_u64_le(self.segment_crc.finalize());
                segment_start + self.segment_length
            }
        };
        self.segment_start = Some(segment_start);
        self.number += 1;
        self.left = self.segment_length.min(self.content_length.saturating_sub(segment_start));
        self.segment_crc = Digest::new(Crc64Nvme);
        bytes.put_u16_le(self.number);
        bytes.put_u64_le(self.left);
        bytes.into()
    }
}

impl Codec for Encoder {
    fn push(&mut self, mut bytes: Bytes, out: &mut VecDeque<Bytes>) -> Result<(), Refusal> {
        while !bytes.is_empty() {
            if self.left == 0 {
                if self.segment_start.is_some() && u64::from(self.number) == self.segments() {
                    return Err(malformed("The content is longer than announced."));
                }
                out.push_back(self.begin_segment());
            }
            let content = bytes.split_to(bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX)));
            self.left -= content.len() as u64;
            self.segment_crc.update(&content);
            self.content_crc.update(&content);
            out.push_back(content);
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut VecDeque<Bytes>) -> Result<(), Refusal> {
        if self.segment_start.is_none() {
            out.push_back(self.begin_segment());
        }
        let mut bytes = Vec::with_capacity(2 * CRC);
        bytes.put_u64_le(self.segment_crc.finalize());
        bytes.put_u64_le(self.content_crc.finalize());
        out.push_back(bytes.into());
        Ok(())
    }
}

/// Encodes content in memory.
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub fn message(content: &[u8], segment_length: u64) -> Vec<u8> {
    let mut encoder = Encoder { segment_length, ..Encoder::new(content.len() as u64) };
    let mut out = VecDeque::new();
    let done =
        encoder.push(Bytes::copy_from_slice(content), &mut out).and_then(|()| encoder.finish(&mut out));
    debug_assert!(done.is_ok());
    out.iter().flat_map(|bytes| bytes.iter().copied()).collect()
}

/// Decodes a message that arrives in pieces of `piece` bytes.
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub fn content(message: &[u8], length: u64, piece: usize) -> Result<Vec<u8>, Refusal> {
    let mut decoder = Decoder::new(message.len() as u64, length);
    let mut out = VecDeque::new();
    for piece in message.chunks(piece.max(1)) {
        decoder.push(Bytes::copy_from_slice(piece), &mut out)?;
    }
    decoder.finish(&mut out)?;
    Ok(out.iter().flat_map(|bytes| bytes.iter().copied()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(message: &[u8], length: u64) -> Result<Vec<u8>, ErrorCode> {
        content(message, length, 7).map_err(|refusal| refusal.code())
    }

    #[test]
    fn a_message_has_the_specified_layout() {
        let empty = message(b"", 4);
        assert_eq!(empty[..13], [1, 39, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0]);
        assert_eq!(empty[13..23], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(empty[23..], [0; 16]);
        // The check value of CRC-64/NVME, as its specification gives it.
        let digits = message(b"123456789", 9);
        let check = 0xAE8B_1486_0A79_9888_u64.to_le_bytes();
        assert_eq!(
            (&digits[23..32], &digits[32..40], &digits[40..]),
            (&b"123456789"[..], &check[..], &check[..])
        );
    }

    #[test]
    fn encoded_content_is_decoded_however_it_is_split() {
        for length in [0, 1, 4, 5, 1000] {
            let data: Vec<u8> = (0..length).map(|i| (i * 31 % 251) as u8).collect();
            for segment in [1, 3, 4, 999, 5000] {
                let message = message(&data, segment);
                let encoder = Encoder { segment_length: segment, ..Encoder::new(length as u64) };
                assert_eq!(message.len() as u64, encoder.message_length());
                for piece in [1, 2, 13, 64, 10_000] {
                    assert_eq!(
                        content(&message, length as u64, piece).unwrap(),
                        data,
                        "{length} {segment} {piece}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_flipped_byte_is_detected() {
        let data = b"some content of some length";
        let message = message(data, 10);
        for at in 0..message.len() {
            let mut bad = message.clone();
            bad[at] ^= 0x10;
            let in_content = at >= 23;
            let got = code(&bad, data.len() as u64);
            assert!(got.is_err(), "{at}");
            if in_content && (23..33).contains(&at) {
                assert_eq!(got, Err(ErrorCode::Crc64Mismatch), "{at}");
            }
        }
        let mut bad = message.clone();
        *bad.last_mut().unwrap() ^= 1;
        assert_eq!(code(&bad, data.len() as u64), Err(ErrorCode::Crc64Mismatch));
    }

    #[test]
    fn truncated_messages_and_wrong_lengths_are_refused() {
        let data = b"some content of some length";
        let whole = message(data, 10);
        for length in 0..whole.len() {
            assert_eq!(code(&whole[..length], data.len() as u64), Err(ErrorCode::InvalidInput), "{length}");
        }
        let longer = [&whole[..], b"x"].concat();
        assert_eq!(code(&longer, data.len() as u64), Err(ErrorCode::InvalidInput));
        for content_so_far in [0, data.len() as u64 - 1, data.len() as u64 + 1] {
            assert_eq!(code(&whole, content_so_far), Err(ErrorCode::InvalidInput), "{content_so_far}");
        }
    }

    #[test]
    fn arbitrary_bytes_never_make_the_decoder_panic() {
        let good = message(b"some content", 5);
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..5000 {
            let mut bytes = vec![12, 3];
            bytes.extend_from_slice(&good[9..]);
            for _ in 0..state % 4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 25) as u8;
                bytes.truncate(bytes.len() - (state >> 60) as usize % 2);
            }
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            crate::fuzz::structured(&bytes);
        }
    }

    #[test]
    fn very_long_content_stays_within_the_maximum_number_of_segments() {
        for length in [0, SEGMENT, SEGMENT + 1, MAX_SEGMENTS * SEGMENT, MAX_SEGMENTS * SEGMENT + 1, 200 << 40]
        {
            let encoder = Encoder::new(length);
            assert!(encoder.segments() <= MAX_SEGMENTS);
            assert!(encoder.message_length() - length <= MAX_OVERHEAD);
        }
    }
}
