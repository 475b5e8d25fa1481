//! Times on the wire: ticks of 100 ns since 1601, and the values of a change that are no times.

use lazuli_concurrency::Timestamp;

use super::status::Status;

/// What a client wants a time to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewTime {
    /// Stays as it is.
    Kept,
    /// Stays as it is, whatever is done through this handle.
    Frozen,
    /// Moves again with what is done through this handle.
    Thawed,
    /// Set, and not moved by what is done through this handle.
    Set(Timestamp),
}

impl NewTime {
    /// Reads one.
    pub(crate) fn parse(value: u64) -> Result<Self, Status> {
        match value.cast_signed() {
            0 => Ok(Self::Kept),
            -1 => Ok(Self::Frozen),
            -2 => Ok(Self::Thawed),
            ..-2 => Err(Status::INVALID_PARAMETER),
            1.. => Ok(Self::Set(Timestamp::from_filetime(value).min(Timestamp::MAX))),
        }
    }

    /// The time that is set, if one is.
    pub(crate) const fn set(self) -> Option<Timestamp> {
        match self {
            Self::Set(time) => Some(time),
            Self::Kept | Self::Frozen | Self::Thawed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_values_are_no_times() {
        assert_eq!(NewTime::parse(0), Ok(NewTime::Kept));
        assert_eq!(NewTime::parse(u64::MAX), Ok(NewTime::Frozen));
        assert_eq!(NewTime::parse(u64::MAX - 1), Ok(NewTime::Thawed));
        assert_eq!(NewTime::parse(u64::MAX - 2), Err(Status::INVALID_PARAMETER));
        assert_eq!(NewTime::parse(1 << 63), Err(Status::INVALID_PARAMETER));
    }

    #[test]
    fn times_come_back_as_they_were_and_end_with_the_year_9999() {
        // 2021-04-20T15:54:52.9740791Z
        let filetime = 132_634_076_929_740_791;
        let time = NewTime::parse(filetime).unwrap().set().unwrap();
        assert_eq!((time.filetime(), time.unix_seconds()), (filetime, 1_618_934_092));
        assert_eq!(NewTime::parse(i64::MAX as u64).unwrap().set(), Some(Timestamp::MAX));
    }
}
