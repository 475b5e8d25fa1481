//! Reading a request's body into memory, and the answers to its failures.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use lazuli_protocol::error::BodyFailure;
use lazuli_protocol::request::{BodyError, collect, full};
use lazuli_protocol::{ErrorCode, Refusal};

/// A body that arrives in pieces and has a given size hint.
struct Pieces {
    pieces: VecDeque<Result<Bytes, BodyError>>,
    announced: u64,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(self.pieces.pop_front().map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.announced);
        hint
    }
}

fn collected(
    pieces: Vec<Result<&'static str, BodyError>>,
    announced: u64,
    limit: usize,
) -> Result<Bytes, Refusal> {
    let pieces = pieces.into_iter().map(|piece| piece.map(Bytes::from)).collect();
    let mut body = pin!(Pieces { pieces, announced });
    let reading = pin!(collect(body.as_mut(), limit));
    match reading.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("nothing to wait for"),
    }
}

#[test]
fn a_body_is_collected_up_to_its_limit() {
    assert_eq!(collected(vec![], 0, 0), Ok(Bytes::new()));
    assert_eq!(collected(vec![Ok("ab"), Ok("cd")], 0, 4), Ok(Bytes::from("abcd")));
    let refused = |result: Result<Bytes, Refusal>| result.unwrap_err().code();
    assert_eq!(refused(collected(vec![Ok("ab"), Ok("cde")], 0, 4)), ErrorCode::RequestBodyTooLarge);
    // Refused before any byte is read.
    let disconnected = || Err(BodyError::from(BodyFailure::Disconnected));
    assert_eq!(refused(collected(vec![disconnected()], 5, 4)), ErrorCode::RequestBodyTooLarge);
}

#[test]
fn the_answer_to_a_failed_body_depends_on_the_cause() {
    for (error, status, code) in [
        (BodyError::from(BodyFailure::TooLarge), 413, ErrorCode::RequestBodyTooLarge),
        (BodyError::from(BodyFailure::TooSlow), 408, ErrorCode::OperationTimedOut),
        (BodyError::from(BodyFailure::Disconnected), 400, ErrorCode::InvalidInput),
        (BodyError::from(Refusal::new(ErrorCode::Md5Mismatch)), 400, ErrorCode::Md5Mismatch),
        (BodyError::from("something else"), 500, ErrorCode::InternalError),
    ] {
        let refusal = collected(vec![Ok("ab"), Err(error)], 0, 4).unwrap_err();
        assert_eq!((refusal.status().as_u16(), refusal.code()), (status, code));
    }
}

#[test]
fn a_body_in_memory_knows_its_size() {
    use http_body::Body as _;
    for (text, size) in [("abc", 3), ("", 0)] {
        let body = full(text);
        assert_eq!(body.size_hint().exact(), Some(size));
        assert_eq!(body.is_end_stream(), size == 0);
    }
}
