//! What waits until a member of a group can take it.

use crate::message::Message;
use std::collections::VecDeque;
use std::sync::Arc;

/// Messages of one group in the order in which they are to be delivered.
///
/// Invariant: at most `messages_max`, and at most `bytes_max` unless there is only one. The oldest ones give way.
#[derive(Debug)]
pub struct Backlog {
    messages_max: usize,
    bytes_max: usize,
    waiting: VecDeque<Arc<Message>>,
    bytes: usize,
}

impl Backlog {
    /// Room for `messages_max`, at least 1, and `bytes_max` bytes.
    #[must_use]
    pub fn new(messages_max: usize, bytes_max: usize) -> Self {
        Self { messages_max: messages_max.max(1), bytes_max, waiting: VecDeque::new(), bytes: 0 }
    }

    /// Adds the newest message. Returns how many old ones gave way.
    pub fn push(&mut self, message: Arc<Message>) -> usize {
        self.bytes += message.held_bytes();
        self.waiting.push_back(message);
        self.make_room()
    }

    /// Adds messages, in order, that are older than all that wait. Returns how many gave way.
    pub fn push_older(&mut self, older: impl DoubleEndedIterator<Item = Arc<Message>>) -> usize {
        for message in older.rev() {
            self.bytes += message.held_bytes();
            self.waiting.push_front(message);
        }
        self.make_room()
    }

    /// The message that is next.
    #[must_use]
    pub fn first(&self) -> Option<&Arc<Message>> {
        self.waiting.front()
    }

    /// Takes the message that is next.
    pub fn take_first(&mut self) -> Option<Arc<Message>> {
        let first = self.waiting.pop_front()?;
        self.bytes -= first.held_bytes();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        Some(first)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn make_room(&mut self) -> usize {
        let before = self.waiting.len();
        while self.waiting.len() > self.messages_max
            || (self.waiting.len() > 1 && self.bytes > self.bytes_max)
        {
            self.take_first();
        }
        before - self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{PublishProperties, QoS};
    use crate::topic::TopicName;
    use bytes::Bytes;

    /// Of ten bytes, its topic included.
    fn message(number: u8) -> Arc<Message> {
        Arc::new(Message {
            topic: TopicName::parse("t").unwrap(),
            payload: Bytes::copy_from_slice(&[number; 9]),
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: None,
            publisher: "p".into(),
            publish_time_ms: 0,
        })
    }

    fn taken(backlog: &mut Backlog) -> Vec<u8> {
        std::iter::from_fn(|| backlog.take_first()).map(|message| message.payload[0]).collect()
    }

    #[test]
    fn the_oldest_give_way_at_either_bound() {
        for (messages_max, bytes_max) in [(3, 1_000), (100, 35)] {
            let mut backlog = Backlog::new(messages_max, bytes_max);

            let gone: Vec<usize> = (0..5).map(|number| backlog.push(message(number))).collect();

            assert_eq!(gone, [0, 0, 0, 1, 1]);
            assert_eq!(backlog.len(), 3);
            assert_eq!(taken(&mut backlog), [2, 3, 4]);
            assert_eq!(backlog.bytes, 0);
        }
    }

    #[test]
    fn older_messages_come_before_those_that_wait_and_are_the_first_to_give_way() {
        let mut backlog = Backlog::new(4, 1_000);
        for number in 10..12 {
            backlog.push(message(number));
        }

        let gone = backlog.push_older((0..3).map(message));

        assert_eq!(gone, 1);
        assert_eq!(taken(&mut backlog), [1, 2, 10, 11]);
    }

    #[test]
    fn one_message_waits_however_large_it_is() {
        let mut backlog = Backlog::new(10, 1);

        assert_eq!(backlog.push(message(1)), 0);
        assert_eq!(backlog.push(message(2)), 1);
        assert_eq!(taken(&mut backlog), [2]);
    }

    /// Each takes 5 bytes of a packet, and much more of memory.
    #[test]
    fn empty_user_properties_count() {
        let user_properties: Vec<_> = (0..1_000).map(|_| ("".into(), "".into())).collect();
        let memory = size_of_val(&user_properties[..]);
        let properties = PublishProperties { user_properties, ..PublishProperties::default() };
        let message = Message { properties: Some(Box::new(properties)), ..Message::clone(&message(0)) };
        let mut backlog = Backlog::new(100, 3 * memory);

        let gone: usize = (0..10).map(|_| backlog.push(Arc::new(message.clone()))).sum();

        assert_eq!(
            (gone, backlog.len()),
            (8, 2),
            "three of them, topics and payloads included, are too much"
        );
    }
}
