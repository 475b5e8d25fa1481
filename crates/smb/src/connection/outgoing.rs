//! Packs responses into frames and sends the frames.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::bind_responses::BindRequest;
use crate::crypto::{SigningKey, TRANSFORM_HEADER_SIZE};
use crate::frame;
use crate::session::Session;
use crate::wire::cursor::ByteWriter;
use crate::wire::header::{HEADER_SIZE, MessageHeader, SIGNATURE};
use crate::wire::status::Status;

/// Called with the bytes of a response when it is packed.
pub(crate) type OnPacked = Box<dyn FnOnce(&[u8]) + Send>;

/// A frame that is ready to be sent. `guard` is dropped after it was sent.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) pieces: Vec<Bytes>,
    #[expect(dead_code, reason = "released on drop")]
    pub(crate) guard: FrameGuard,
}

/// A resource that is released when a frame was sent, or will not be sent because the connection has ended.
#[derive(Debug)]
pub(crate) enum FrameGuard {
    None,
    /// Memory reserved for the requests that the frame answers.
    Memory(#[expect(dead_code, reason = "released on drop")] OwnedSemaphorePermit),
    /// Wakes the compound whose next responses follow in another frame.
    Flushed(#[expect(dead_code, reason = "dropping it wakes the receiver")] oneshot::Sender<()>),
}

/// Maximum number of frames sent with one system call.
const FRAMES_AT_ONCE: usize = 16;

/// Signs a response.
pub(crate) struct Signer {
    pub(crate) key: Arc<SigningKey>,
    /// The session and the request that binds it, if the request may get only one signed response.
    pub(crate) once: Option<(Arc<Session>, BindRequest)>,
}

impl Signer {
    /// Signs a message. Leaves the signature zero if a different response to the same request was signed
    /// before.
    fn sign(&self, message: &mut [u8], data: &[Bytes]) {
        self.key.sign(message, data);
        let (Some((session, request)), Some(header)) = (&self.once, message.first_chunk_mut::<HEADER_SIZE>())
        else {
            return;
        };
        let mut signature = [0; 16];
        signature.copy_from_slice(&header[SIGNATURE]);
        if !session.bind_responses.permits_signature(*request, signature) {
            header[SIGNATURE].fill(0);
        }
    }
}

/// One response.
pub(crate) struct OutgoingResponse {
    pub(crate) header: MessageHeader,
    pub(crate) body: Vec<u8>,
    pub(crate) data: Vec<Bytes>,
    /// `None` for an unsigned response.
    pub(crate) signed_by: Option<Signer>,
    pub(crate) on_packed: Option<OnPacked>,
}

impl OutgoingResponse {
    /// Returns the response's maximum length in a frame, including padding.
    pub(crate) fn length(&self) -> usize {
        HEADER_SIZE + self.body.len() + 8 + self.data.iter().map(Bytes::len).sum::<usize>()
    }
}

/// Returns the body of an error response.
pub(crate) fn error_body(data: &[u8]) -> Vec<u8> {
    let mut writer = ByteWriter::new();
    writer.u16(9).u8(0).u8(0).u32(data.len() as u32).put(data);
    if data.is_empty() {
        writer.u8(0);
    }
    writer.finish()
}

/// Packs responses into one frame. Signs each, or encrypts the frame with the keys of `encrypted_by`. Returns
/// no pieces if encryption fails.
pub(crate) fn pack(responses: Vec<OutgoingResponse>, encrypted_by: Option<&Session>) -> Vec<Bytes> {
    let keys = encrypted_by.and_then(|session| Some((session.id, &session.login()?.keys)));
    let front = if keys.is_some() { TRANSFORM_HEADER_SIZE } else { 0 };
    let head_length: usize = responses.iter().map(|response| HEADER_SIZE + response.body.len() + 8).sum();
    let data_length: usize = responses.iter().flat_map(|response| &response.data).map(Bytes::len).sum();
    // The data of the last response is sent without copying it into the frame, unless the frame is encrypted,
    // which happens in place.
    let mut tail = vec![];
    let mut frame = Vec::with_capacity(front + head_length + if keys.is_some() { data_length } else { 0 });
    frame.resize(front, 0);
    let count = responses.len();
    for (index, mut response) in responses.into_iter().enumerate() {
        let (start, is_last) = (frame.len(), index + 1 == count);
        let length = HEADER_SIZE + response.body.len() + response.data.iter().map(Bytes::len).sum::<usize>();
        if !is_last {
            response.header.next = length.next_multiple_of(8) as u32;
        }
        let mut writer = ByteWriter::default();
        response.header.write(&mut writer);
        frame.extend_from_slice(&writer.finish());
        frame.extend_from_slice(&response.body);
        if keys.is_none() && is_last {
            tail = std::mem::take(&mut response.data);
        }
        for piece in &response.data {
            frame.extend_from_slice(piece);
        }
        if !is_last {
            frame.resize(start + length.next_multiple_of(8), 0);
        }
        if let Some(signer) = response.signed_by.filter(|_| keys.is_none()) {
            signer.sign(&mut frame[start..], &tail);
        }
        if let Some(on_packed) = response.on_packed {
            on_packed(&frame[start..]);
        }
    }
    if let Some((session, keys)) = keys {
        let encrypted = keys.outgoing.as_ref().map(|key| key.encrypt(session, &mut frame));
        if encrypted != Some(Ok(())) {
            // Never send the frame unencrypted.
            return vec![];
        }
    }
    let length = frame.len() + tail.iter().map(Bytes::len).sum::<usize>();
    let mut pieces = Vec::with_capacity(2 + tail.len());
    pieces.push(Bytes::copy_from_slice(&frame::prefix(length)));
    pieces.push(frame.into());
    pieces.append(&mut tail);
    pieces
}

/// Returns an error response.
pub(crate) fn refusal(header: &MessageHeader, status: Status, data: &[u8]) -> OutgoingResponse {
    OutgoingResponse {
        header: header.response(status),
        body: error_body(data),
        data: vec![],
        signed_by: None,
        on_packed: None,
    }
}

/// Sends frames until the queue is closed or the client has disconnected.
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
