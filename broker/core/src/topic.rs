//! Topic names and topic filters (MQTT 5.0 section 4.7): parsed at the edge, proof inward.

use arcstr::ArcStr;
use bytestring::ByteString;
use std::borrow::Borrow;
use std::fmt;

/// Longest topic name or filter in bytes: the length field of MQTT has two bytes.
pub const TOPIC_BYTES_MAX: usize = 65_535;

/// Levels of a name or filter; more are refused, so that matching has a bound.
pub const LEVELS_MAX: usize = 128;

/// What a message is published to: not empty, no wildcards, no U+0000.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(ByteString);

/// What a subscription asks for: levels, `+` and `#` in whole levels, `#` last.
///
/// One pointer to a text that all clones share, and that shares no memory with the packet it came in: sessions, tables
/// and routes keep millions of them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicFilter(ArcStr);

/// The text is not a topic name or topic filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// Nothing between the quotes.
    #[error("topic is empty")]
    Empty,
    /// Longer than [`TOPIC_BYTES_MAX`].
    #[error("topic has {bytes} bytes, at most 65535 are allowed")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
    },
    /// More than [`LEVELS_MAX`] levels.
    #[error("topic has more than 128 levels")]
    TooDeep,
    /// Contains U+0000.
    #[error("topic contains U+0000")]
    Null,
    /// A wildcard where only a name may stand.
    #[error("topic name contains a wildcard")]
    WildcardInName,
    /// `+` or `#` beside other characters, or `#` before the last level.
    #[error("wildcard does not fill its level, or # is not the last level")]
    MisplacedWildcard,
    /// `$share` without name or filter, or with a wildcard in its name; `$queue` without filter.
    #[error("shared subscription is not $share/name/filter")]
    MalformedShare,
}

impl TopicName {
    /// Parses a topic name.
    ///
    /// # Errors
    ///
    /// [`TopicError`]: answer 0x90 (topic name invalid) or close as malformed.
    pub fn parse(text: impl Into<ByteString>) -> Result<Self, TopicError> {
        let text = text.into();
        check_text(&text)?;
        if text.contains(['+', '#']) {
            return Err(TopicError::WildcardInName);
        }
        Ok(Self(text))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as shared text.
    #[must_use]
    pub fn text(&self) -> &ByteString {
        &self.0
    }

    /// A copy that shares no memory with the packet it came in.
    #[must_use]
    pub fn to_compact(&self) -> Self {
        Self(ByteString::from(self.as_str()))
    }

    /// Whether only the broker itself publishes to it: `$SYS` and below.
    #[must_use]
    pub fn is_of_broker(&self) -> bool {
        self.0.strip_prefix("$SYS").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether wildcards at the first level must not match it: it starts with `$` (MQTT-4.7.2-1).
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with('$')
    }
}

impl TopicFilter {
    /// Parses a topic filter without `$share` prefix; see [`SubscriptionTarget::parse`] for what a client sends.
    ///
    /// # Errors
    ///
    /// [`TopicError`]: answer 0x8F (topic filter invalid) for this filter.
    pub fn parse(text: impl AsRef<str>) -> Result<Self, TopicError> {
        let text = text.as_ref();
        check_text(text)?;
        let mut levels = text.split('/').peekable();
        while let Some(level) = levels.next() {
            let is_last = levels.peek().is_none();
            if level.contains(['+', '#']) && (level.len() > 1 || (level == "#" && !is_last)) {
                return Err(TopicError::MisplacedWildcard);
            }
        }
        Ok(Self(text.into()))
    }

    /// The filter as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it contains `+` or `#`.
    #[must_use]
    pub fn has_wildcard(&self) -> bool {
        self.0.contains(['+', '#'])
    }

    /// Whether `topic` matches, level by level (MQTT 5.0 section 4.7.1).
    #[must_use]
    pub fn matches(&self, topic: &TopicName) -> bool {
        if topic.is_reserved() && self.0.starts_with(['+', '#']) {
            return false;
        }
        let mut names = topic.as_str().split('/');
        for level in self.0.split('/') {
            if level == "#" {
                return true;
            }
            match names.next() {
                Some(name) if level == "+" || level == name => {}
                _ => return false,
            }
        }
        names.next().is_none()
    }
}

/// ShareName of the group that `$queue/filter` names: the text is an alias of `$share/$queue/filter`.
pub const QUEUE_SHARE: &str = "$queue";

const SHARE_PREFIX: &str = "$share/";
const QUEUE_PREFIX: &str = "$queue/";

/// A shared subscription: the ShareName and the filter together name the group (MQTT 5.0 section 4.8.2).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedFilter {
    share: ByteString,
    filter: TopicFilter,
}

impl SharedFilter {
    /// The ShareName: not empty, without `/`, `+` and `#`.
    #[must_use]
    pub fn share(&self) -> &ByteString {
        &self.share
    }

    /// What the group subscribes to.
    #[must_use]
    pub fn filter(&self) -> &TopicFilter {
        &self.filter
    }
}

/// What one entry of a SUBSCRIBE or UNSUBSCRIBE names. Its text form is `Display`; parsing it gives the same target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SubscriptionTarget {
    /// A plain filter.
    Filter(TopicFilter),
    /// `$share/name/filter`, or its alias `$queue/filter`.
    Shared(SharedFilter),
}

impl SubscriptionTarget {
    /// Parses what a client wrote into SUBSCRIBE or UNSUBSCRIBE.
    ///
    /// # Errors
    ///
    /// [`TopicError`]: answer 0x8F (topic filter invalid) for this entry.
    pub fn parse(text: &ByteString) -> Result<Self, TopicError> {
        let (share, filter) = if let Some(filter) = text.strip_prefix(QUEUE_PREFIX) {
            (QUEUE_SHARE, filter)
        } else if let Some(rest) = text.strip_prefix(SHARE_PREFIX) {
            rest.split_once('/').ok_or(TopicError::MalformedShare)?
        } else {
            return TopicFilter::parse(text).map(Self::Filter);
        };
        if share.is_empty() || filter.is_empty() || share.contains(['+', '#']) {
            return Err(TopicError::MalformedShare);
        }
        check_text(share)?;
        Ok(Self::Shared(SharedFilter { share: share.into(), filter: TopicFilter::parse(filter)? }))
    }

    /// Whether `text`, well-formed or not, begins as a shared subscription does.
    #[must_use]
    pub fn is_shared_text(text: &str) -> bool {
        text.starts_with(SHARE_PREFIX) || text.starts_with(QUEUE_PREFIX)
    }

    /// The filter, without the ShareName.
    #[must_use]
    pub fn filter(&self) -> &TopicFilter {
        match self {
            Self::Filter(filter) => filter,
            Self::Shared(shared) => shared.filter(),
        }
    }
}

fn check_text(text: &str) -> Result<(), TopicError> {
    if text.is_empty() {
        return Err(TopicError::Empty);
    }
    if text.len() > TOPIC_BYTES_MAX {
        return Err(TopicError::TooLong { bytes: text.len() });
    }
    if text.contains('\0') {
        return Err(TopicError::Null);
    }
    if text.bytes().filter(|byte| *byte == b'/').count() >= LEVELS_MAX {
        return Err(TopicError::TooDeep);
    }
    Ok(())
}

/// Hash and order of a filter are those of its text.
impl Borrow<str> for TopicFilter {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.as_str())
    }
}

impl fmt::Display for TopicFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for TopicFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.as_str())
    }
}

impl fmt::Display for SharedFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{SHARE_PREFIX}{}/{}", self.share, self.filter)
    }
}

impl fmt::Debug for SharedFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{self}\"")
    }
}

impl fmt::Display for SubscriptionTarget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter(filter) => filter.fmt(formatter),
            Self::Shared(shared) => shared.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_match_as_section_4_7_says() {
        let cases = [
            ("sport/tennis/player1/#", "sport/tennis/player1", true),
            ("sport/tennis/player1/#", "sport/tennis/player1/ranking", true),
            ("sport/#", "sport", true),
            ("#", "sport", true),
            ("sport/+", "sport", false),
            ("sport/+", "sport/", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("#", "$SYS/uptime", false),
            ("+/uptime", "$SYS/uptime", false),
            ("$SYS/#", "$SYS/uptime", true),
            ("a/b", "a/b/c", false),
            ("ä/+", "ä/ö", true),
        ];

        for (filter, topic, expected) in cases {
            let matched = TopicFilter::parse(filter).unwrap().matches(&TopicName::parse(topic).unwrap());
            assert_eq!(matched, expected, "{filter} on {topic}");
        }
    }

    #[test]
    fn malformed_names_and_filters_are_refused() {
        assert_eq!(TopicName::parse("").unwrap_err(), TopicError::Empty);
        assert_eq!(TopicName::parse("a/+").unwrap_err(), TopicError::WildcardInName);
        assert_eq!(TopicName::parse("a\0b").unwrap_err(), TopicError::Null);
        assert_eq!(TopicName::parse("x".repeat(65_536)).unwrap_err(), TopicError::TooLong { bytes: 65_536 });
        assert_eq!(TopicName::parse("/".repeat(128)).unwrap_err(), TopicError::TooDeep);
        for filter in ["a/#/b", "a#", "+a", "a/b+/c", "##", "a/#b"] {
            assert_eq!(TopicFilter::parse(filter).unwrap_err(), TopicError::MisplacedWildcard, "{filter}");
        }
        for shared in
            ["$share/", "$share/g", "$share//f", "$share/g/", "$share/g+/f", "$share/#/f", "$queue/"]
        {
            assert_eq!(
                SubscriptionTarget::parse(&shared.into()).unwrap_err(),
                TopicError::MalformedShare,
                "{shared}"
            );
        }
    }

    #[test]
    fn a_shared_subscription_is_named_by_share_and_filter_and_its_text_names_it_again() {
        let cases = [
            ("$share/g/a/+", "g", "a/+", "$share/g/a/+"),
            ("$share/g//", "g", "/", "$share/g//"),
            ("$share/$queue/a", "$queue", "a", "$share/$queue/a"),
            ("$queue/a/#", "$queue", "a/#", "$share/$queue/a/#"),
            ("$queue/$SYS/x", "$queue", "$SYS/x", "$share/$queue/$SYS/x"),
        ];

        for (text, share, filter, canonical) in cases {
            let target = SubscriptionTarget::parse(&text.into()).unwrap();
            let SubscriptionTarget::Shared(shared) = &target else { panic!("{text} is shared") };
            assert_eq!((&**shared.share(), shared.filter().as_str()), (share, filter), "{text}");
            assert_eq!(target.to_string(), canonical);
            assert_eq!(SubscriptionTarget::parse(&canonical.into()), Ok(target));
        }
        for plain in ["$share", "$queue", "$shared/g/a", "a/$share/g/b"] {
            let target = SubscriptionTarget::parse(&plain.into()).unwrap();
            assert!(matches!(target, SubscriptionTarget::Filter(_)), "{plain}");
            assert_eq!(target.to_string(), plain);
        }
    }
}
