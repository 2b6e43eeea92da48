//! How the member is chosen.

/// How the members of a group share its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Anyone, with equal chances.
    Random,
    /// One after the other.
    #[default]
    RoundRobin,
    /// All to one member, until it goes; then to the next one.
    Sticky,
    /// To the member with the fewest messages in flight or waiting; among equals one after the other.
    LeastInFlight,
    /// All of one publisher to the same member.
    HashPublisher,
    /// All of one topic to the same member.
    HashTopic,
}
