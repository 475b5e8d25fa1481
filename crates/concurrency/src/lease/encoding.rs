//! The stored form of a lease, which is part of the record of its object.
//!
//! The encoding is a version byte and a kind byte, followed by the fields. Numbers are big-endian.
//!
//! | kind | fields |
//! |---|---|
//! | 0 available | – |
//! | 1 leased | id (16), seconds (1; 0 = infinite), since (8) |
//! | 2 breaking | id (16), ends (8) |
//! | 3 broken | id (16) |
//!
//! Each lease has exactly one encoding, and no other bytes decode.

use super::{Lease, LeaseDuration, LeaseId, Stored};
use crate::Timestamp;

const VERSION: u8 = 1;

/// Why bytes could not be decoded as a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseDecodeError {
    /// A version of the format that this program does not know.
    #[error("lease format version {0} is not known")]
    UnknownVersion(u8),
    /// The bytes are damaged.
    #[error("not an encoded lease")]
    Malformed,
}

impl From<Lease> for Vec<u8> {
    fn from(lease: Lease) -> Self {
        lease.encode()
    }
}

impl TryFrom<Vec<u8>> for Lease {
    type Error = LeaseDecodeError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, LeaseDecodeError> {
        Self::decode(&bytes)
    }
}

impl Lease {
    /// Encodes the lease for storage, in at most 27 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        match self.0 {
            Stored::Available => bytes.push(0),
            Stored::Leased { id, duration, since } => {
                bytes.push(1);
                bytes.extend(id.to_bytes());
                bytes.push(duration.0.unwrap_or(0));
                bytes.extend(since.ticks().to_be_bytes());
            }
            Stored::Breaking { id, ends } => {
                bytes.push(2);
                bytes.extend(id.to_bytes());
                bytes.extend(ends.ticks().to_be_bytes());
            }
            Stored::Broken { id } => {
                bytes.push(3);
                bytes.extend(id.to_bytes());
            }
        }
        bytes
    }

    /// Decodes a lease from all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, LeaseDecodeError> {
        let mut fields = Fields(bytes);
        let [version] = fields.take()?;
        if version != VERSION {
            return Err(LeaseDecodeError::UnknownVersion(version));
        }
        let stored = match fields.take()? {
            [0] => Stored::Available,
            [1] => {
                Stored::Leased { id: fields.id()?, duration: fields.duration()?, since: fields.timestamp()? }
            }
            [2] => Stored::Breaking { id: fields.id()?, ends: fields.timestamp()? },
            [3] => Stored::Broken { id: fields.id()? },
            _ => return Err(LeaseDecodeError::Malformed),
        };
        if fields.0.is_empty() { Ok(Self(stored)) } else { Err(LeaseDecodeError::Malformed) }
    }
}

/// The bytes that have not been decoded yet.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], LeaseDecodeError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(LeaseDecodeError::Malformed)?;
        self.0 = rest;
        Ok(*field)
    }

    fn id(&mut self) -> Result<LeaseId, LeaseDecodeError> {
        self.take().map(LeaseId::from_bytes)
    }

    fn duration(&mut self) -> Result<LeaseDuration, LeaseDecodeError> {
        match self.take()? {
            [0] => Ok(LeaseDuration::INFINITE),
            [seconds] => LeaseDuration::from_seconds(i64::from(seconds)).ok_or(LeaseDecodeError::Malformed),
        }
    }

    fn timestamp(&mut self) -> Result<Timestamp, LeaseDecodeError> {
        self.take().map(u64::from_be_bytes).map(Timestamp::from_ticks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: LeaseId = LeaseId::from_bytes([0xA; 16]);

    fn any_lease() -> impl Strategy<Value = Lease> {
        let id = any::<[u8; 16]>().prop_map(LeaseId::from_bytes);
        let time = any::<u64>().prop_map(Timestamp::from_ticks);
        let duration =
            prop_oneof![Just(-1), 15..=60_i64].prop_map(|s| LeaseDuration::from_seconds(s).unwrap());
        prop_oneof![
            Just(Stored::Available),
            (id.clone(), duration, time.clone()).prop_map(|(id, duration, since)| Stored::Leased {
                id,
                duration,
                since
            }),
            (id.clone(), time).prop_map(|(id, ends)| Stored::Breaking { id, ends }),
            id.prop_map(|id| Stored::Broken { id }),
        ]
        .prop_map(Lease)
    }

    proptest! {
        #[test]
        fn lease_decodes_as_encoded(lease in any_lease()) {
            let bytes = lease.encode();
            prop_assert!(bytes.len() <= 27);
            prop_assert_eq!(Lease::decode(&bytes), Ok(lease));
        }

        #[test]
        fn damaged_lease_never_decodes_as_the_original(
            lease in any_lease(), at in any::<prop::sample::Index>(), flip in 1..=255_u8,
        ) {
            let mut bytes = lease.encode();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(other) = Lease::decode(&bytes) {
                prop_assert_ne!(other, lease);
                prop_assert_eq!(other.encode(), bytes);
            }
        }

        #[test]
        fn decoding_random_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(lease) = Lease::decode(&bytes) {
                prop_assert_eq!(lease.encode(), bytes);
            }
        }
    }

    #[test]
    fn encoding_matches_the_documented_format() {
        let id = [0xA; 16];
        let at = Timestamp::from_ticks(0x0102_0304_0506_0708);
        let time = [1, 2, 3, 4, 5, 6, 7, 8];
        let leased = |seconds| Stored::Leased {
            id: ID,
            duration: LeaseDuration::from_seconds(seconds).unwrap(),
            since: at,
        };
        let rows = [
            (Stored::Available, vec![1, 0]),
            (leased(15), [&[1, 1][..], &id, &[15], &time].concat()),
            (leased(-1), [&[1, 1][..], &id, &[0], &time].concat()),
            (Stored::Breaking { id: ID, ends: at }, [&[1, 2][..], &id, &time].concat()),
            (Stored::Broken { id: ID }, [&[1, 3][..], &id].concat()),
        ];
        for (stored, bytes) in rows {
            assert_eq!(Lease(stored).encode(), bytes);
            assert_eq!(Lease::decode(&bytes), Ok(Lease(stored)));
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Lease::decode(&longer), Err(LeaseDecodeError::Malformed));
            for cut in 0..bytes.len() {
                assert_eq!(
                    Lease::decode(&bytes[..cut]),
                    Err(LeaseDecodeError::Malformed),
                    "{cut} of {bytes:?}"
                );
            }
        }
    }

    #[test]
    fn malformed_leases_are_refused() {
        let leased = |seconds| [&[1, 1][..], &[0xA; 16], &[seconds], &[0; 8]].concat();
        assert_eq!(Lease::decode(&[0, 0]), Err(LeaseDecodeError::UnknownVersion(0)));
        assert_eq!(Lease::decode(&[2, 0]), Err(LeaseDecodeError::UnknownVersion(2)));
        assert_eq!(Lease::decode(&[1, 4]), Err(LeaseDecodeError::Malformed));
        for seconds in [1, 14, 61, 255] {
            assert_eq!(Lease::decode(&leased(seconds)), Err(LeaseDecodeError::Malformed), "{seconds} s");
        }
    }
}
