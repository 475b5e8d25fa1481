//! Times in messages: ticks of 100 ns since 1601, and special values in changes.

use lazuli_concurrency::Timestamp;
use lazuli_file::handles::NewTime;

use super::status::Status;

/// Parses the new value of a time.
pub(crate) fn new_time(value: u64) -> Result<NewTime, Status> {
    match value.cast_signed() {
        0 => Ok(NewTime::Kept),
        -1 => Ok(NewTime::Frozen),
        -2 => Ok(NewTime::Thawed),
        ..-2 => Err(Status::INVALID_PARAMETER),
        1.. => Ok(NewTime::Set(Timestamp::from_filetime(value).min(Timestamp::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_values_do_not_set_the_time() {
        assert_eq!(new_time(0), Ok(NewTime::Kept));
        assert_eq!(new_time(u64::MAX), Ok(NewTime::Frozen));
        assert_eq!(new_time(u64::MAX - 1), Ok(NewTime::Thawed));
        assert_eq!(new_time(u64::MAX - 2), Err(Status::INVALID_PARAMETER));
        assert_eq!(new_time(1 << 63), Err(Status::INVALID_PARAMETER));
    }

    #[test]
    fn times_survive_a_round_trip_and_end_with_the_year_9999() {
        // 2021-04-20T15:54:52.9740791Z
        let filetime = 132_634_076_929_740_791;
        let NewTime::Set(time) = new_time(filetime).unwrap() else { panic!("no time") };
        assert_eq!((time.filetime(), time.unix_seconds()), (filetime, 1_618_934_092));
        assert_eq!(new_time(i64::MAX as u64), Ok(NewTime::Set(Timestamp::MAX)));
    }
}
