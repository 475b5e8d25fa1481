//! Signed responses to requests that bind a session to another connection.
//!
//! The nonce of AES-GMAC is the message id and the direction. Two different messages under one key and one
//! nonce reveal the key. Message ids are unique only within one connection, but the session's own key signs
//! the responses to a bind before the session is on the new connection. So an observer could record a signed
//! bind, replay it on its own connection, and get a second response under the same nonce.
//!
//! Therefore each binding request of a session gets one signed response. If the same bytes arrive again, the
//! response is identical or has no signature. Honest clients do send the same bytes again, because their
//! first messages on each connection are alike. So a repeated request gets the same challenge as the first
//! one. A repeated response to a challenge is refused: the client chooses it at random, so only a replay
//! repeats it.
//!
//! Different requests with one message id can still get different responses. Only the client can sign them,
//! and it has then used one nonce twice itself. So the server signs two different messages under one nonce
//! only if the client has done so.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use lazuli_concurrency::Timestamp;
use parking_lot::Mutex;

use crate::crypto::Signature;
use crate::wire::header::MessageHeader;

/// Maximum number of binding requests of a session. At the limit the session can no longer be bound. If old
/// requests were forgotten instead, their replays would be signed.
const MAX_REQUESTS: usize = 1024;

/// The binding requests that a session has received.
#[derive(Debug, Default)]
pub(crate) struct BindResponses(Mutex<HashMap<BindRequest, BindResponse>>);

/// A binding request. Its signature is verified and identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BindRequest {
    message_id: u64,
    signature: Signature,
}

impl BindRequest {
    /// Returns the request with this header.
    pub(crate) const fn of(header: &MessageHeader) -> Self {
        Self { message_id: header.message_id, signature: header.signature }
    }
}

#[derive(Debug, Default)]
struct BindResponse {
    /// The seed of its challenge, once the request was recorded.
    seed: Option<ChallengeSeed>,
    /// The signature of the first signed response.
    signature: Option<Signature>,
}

/// The inputs of a challenge besides the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChallengeSeed {
    /// Random bytes.
    pub(crate) nonce: [u8; 8],
    pub(crate) now: Timestamp,
}

/// The result of recording a binding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedBind {
    /// The seed of the first request with these bytes.
    pub(crate) seed: ChallengeSeed,
    /// Whether the same bytes were received before.
    pub(crate) is_repeated: bool,
}

impl BindResponses {
    /// Records a request before it is processed. Returns `None` if the session has received too many.
    pub(crate) fn record(&self, request: BindRequest, seed: ChallengeSeed) -> Option<RecordedBind> {
        let mut responses = self.0.lock();
        let response = Self::response(&mut responses, request)?;
        let is_repeated = response.seed.is_some();
        Some(RecordedBind { seed: *response.seed.get_or_insert(seed), is_repeated })
    }

    /// Returns whether a response to the request may carry this signature: it is the first one, or equal to
    /// the first one.
    pub(crate) fn permits_signature(&self, request: BindRequest, signature: Signature) -> bool {
        let mut responses = self.0.lock();
        let Some(response) = Self::response(&mut responses, request) else { return false };
        *response.signature.get_or_insert(signature) == signature
    }

    /// Returns whether the client has signed different requests with this message id.
    pub(crate) fn has_reused(&self, message_id: u64) -> bool {
        self.0.lock().keys().filter(|request| request.message_id == message_id).count() > 1
    }

    fn response(
        responses: &mut HashMap<BindRequest, BindResponse>,
        request: BindRequest,
    ) -> Option<&mut BindResponse> {
        let has_room = responses.len() < MAX_REQUESTS;
        match responses.entry(request) {
            Entry::Occupied(response) => Some(response.into_mut()),
            Entry::Vacant(entry) => has_room.then(|| entry.insert(BindResponse::default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(message_id: u64, signature: u128) -> BindRequest {
        BindRequest { message_id, signature: signature.to_le_bytes() }
    }

    fn seed(number: u8) -> ChallengeSeed {
        ChallengeSeed { nonce: [number; 8], now: Timestamp::default() }
    }

    #[test]
    fn a_repeated_request_gets_the_seed_of_the_first_one() {
        let responses = BindResponses::default();
        for (signature, given, expected, is_repeated) in
            [(1, 5, 5, false), (2, 6, 6, false), (1, 7, 5, true), (2, 8, 6, true)]
        {
            let recorded = responses.record(request(1, signature), seed(given));
            assert_eq!(recorded, Some(RecordedBind { seed: seed(expected), is_repeated }));
        }
    }

    #[test]
    fn only_the_first_signature_is_permitted() {
        let responses = BindResponses::default();
        let [recorded, refused] = [request(1, 1), request(1, 2)];
        responses.record(recorded, seed(0)).expect("recorded");
        for request in [recorded, refused] {
            assert!(responses.permits_signature(request, [8; 16]));
            assert!(!responses.permits_signature(request, [9; 16]));
            assert!(responses.permits_signature(request, [8; 16]));
        }
        let recorded = responses.record(refused, seed(1));
        assert_eq!(
            recorded,
            Some(RecordedBind { seed: seed(1), is_repeated: false }),
            "the first request was refused before it was recorded"
        );
    }

    #[test]
    fn at_the_limit_no_request_is_forgotten_and_no_new_one_is_signed() {
        let responses = BindResponses::default();
        let request = |number| request(1, number as u128);
        for number in 0..MAX_REQUESTS {
            assert!(responses.permits_signature(request(number), [1; 16]));
        }
        let another = request(MAX_REQUESTS);
        assert!(
            responses.record(another, seed(0)).is_none() && !responses.permits_signature(another, [1; 16])
        );
        for number in 0..MAX_REQUESTS {
            assert!(responses.permits_signature(request(number), [1; 16]));
            assert!(!responses.permits_signature(request(number), [2; 16]));
        }
    }

    #[test]
    fn a_message_id_counts_as_reused_if_the_client_signs_different_requests_with_it() {
        let responses = BindResponses::default();
        for (message_id, signature, is_reused) in
            [(1, 1, false), (2, 2, false), (1, 1, false), (1, 3, true), (2, 2, false)]
        {
            responses.record(request(message_id, signature), seed(0)).expect("recorded");
            assert_eq!(responses.has_reused(message_id), is_reused, "{message_id} {signature}");
        }
        assert!(!responses.has_reused(3));
    }
}
