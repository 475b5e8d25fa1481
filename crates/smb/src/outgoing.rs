//! Responses, and the frames that they are sent in.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::call::SeesResponse;
use crate::crypto::{SigningKey, TRANSFORM_HEADER};
use crate::frame;
use crate::session::Session;
use crate::wire::cursor::Writer;
use crate::wire::header::{HEADER, Header};
use crate::wire::status::Status;

/// A frame that is ready to be sent, and what is dropped when it was.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) pieces: Vec<Bytes>,
    #[expect(dead_code, reason = "it is given back when it is dropped")]
    pub(crate) held: Held,
}

/// What somebody waits for until a frame is sent, or nobody is there to read it.
#[derive(Debug)]
pub(crate) enum Held {
    Nothing,
    /// It makes room for other requests.
    Room(#[expect(dead_code, reason = "it is given back when it is dropped")] OwnedSemaphorePermit),
    /// The rest of a compound comes after it.
    Rest(#[expect(dead_code, reason = "that it is dropped says all")] oneshot::Sender<()>),
}

/// Frames that are sent with one system call.
const FRAMES_AT_ONCE: usize = 16;

/// One response.
pub(crate) struct Response {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) data: Vec<Bytes>,
    /// What it is signed with.
    pub(crate) signed_by: Option<Arc<SigningKey>>,
    pub(crate) seen_by: Option<SeesResponse>,
}

impl Response {
    /// Bytes that it takes in a frame, with what may fill the space behind it.
    pub(crate) fn length(&self) -> usize {
        HEADER + self.body.len() + 8 + self.data.iter().map(Bytes::len).sum::<usize>()
    }
}

/// The body of an error response.
pub(crate) fn error_body(data: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.u16(9).u8(0).u8(0).u32(data.len() as u32).put(data);
    if data.is_empty() {
        writer.u8(0);
    }
    writer.finish()
}

/// Puts responses into one frame, signed each, and encrypted with the keys of a session if there is one. Nothing if that
/// cannot be done.
pub(crate) fn pack(responses: Vec<Response>, sealed_by: Option<&Session>) -> Vec<Bytes> {
    let keys = sealed_by.and_then(|session| Some((session.id, &session.login()?.keys)));
    let front = if keys.is_some() { TRANSFORM_HEADER } else { 0 };
    let room: usize = responses.iter().map(|response| HEADER + response.body.len() + 8).sum();
    let bulk: usize = responses.iter().flat_map(|response| &response.data).map(Bytes::len).sum();
    // The data of the last response may follow as it is, unless it is encrypted, which happens in place.
    let mut apart = vec![];
    let mut frame = Vec::with_capacity(front + room + if keys.is_some() { bulk } else { 0 });
    frame.resize(front, 0);
    let count = responses.len();
    for (index, mut response) in responses.into_iter().enumerate() {
        let (start, is_last) = (frame.len(), index + 1 == count);
        let length = HEADER + response.body.len() + response.data.iter().map(Bytes::len).sum::<usize>();
        if !is_last {
            response.header.next = length.next_multiple_of(8) as u32;
        }
        let mut writer = Writer::default();
        response.header.write(&mut writer);
        frame.extend_from_slice(&writer.finish());
        frame.extend_from_slice(&response.body);
        if keys.is_none() && is_last {
            apart = std::mem::take(&mut response.data);
        }
        for piece in &response.data {
            frame.extend_from_slice(piece);
        }
        if !is_last {
            frame.resize(start + length.next_multiple_of(8), 0);
        }
        if let Some(key) = response.signed_by.filter(|_| keys.is_none()) {
            key.sign(&mut frame[start..], &apart);
        }
        if let Some(see) = response.seen_by {
            see(&frame[start..]);
        }
    }
    if let Some((session, keys)) = keys {
        let sealed = keys.outgoing.as_ref().map(|key| key.seal(session, &mut frame));
        if sealed != Some(Ok(())) {
            // Never as it is.
            return vec![];
        }
    }
    let length = frame.len() + apart.iter().map(Bytes::len).sum::<usize>();
    let mut pieces = Vec::with_capacity(2 + apart.len());
    pieces.push(Bytes::copy_from_slice(&frame::prefix(length)));
    pieces.push(frame.into());
    pieces.append(&mut apart);
    pieces
}

/// The body and the status of what was refused.
pub(crate) fn refusal(header: &Header, status: Status, data: &[u8]) -> Response {
    Response {
        header: header.answer(status),
        body: error_body(data),
        data: vec![],
        signed_by: None,
        seen_by: None,
    }
}

/// Sends frames until there are no more, or the client is gone.
pub(crate) async fn send_all(
    stream: &mut (impl AsyncWrite + Unpin),
    queue: &mut UnboundedReceiver<Frame>,
) -> io::Result<()> {
    let mut frames = Vec::new();
    while queue.recv_many(&mut frames, FRAMES_AT_ONCE).await > 0 {
        let mut slices: Vec<_> =
            frames.iter().flat_map(|frame| &frame.pieces).map(|piece| IoSlice::new(piece)).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            match stream.write_vectored(rest).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => IoSlice::advance_slices(&mut rest, written),
            }
        }
        frames.clear();
    }
    Ok(())
}
