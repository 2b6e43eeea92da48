//! Moments as the documents of the admin API write them.

/// A moment in RFC 3339; one beyond what it can write is the last one that it can.
#[must_use]
pub fn rfc_3339(unix_ms: u64) -> String {
    let moment = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    moment.unwrap_or(jiff::Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_rfc_3339_says_also_beyond_its_end() {
        assert_eq!(rfc_3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc_3339(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert!(rfc_3339(u64::MAX).starts_with("9999-12-30T"));
    }
}
