//! Frames that are sent in parts, because what they hold is bounded by a session or by a broker and not by a frame. Each
//! part repeats everything but the entries; `more` says that another one follows.

use super::Body;
use super::attach::{AttachReply, ReattachReply};
use super::subscribe::Subscribe;
use prost::Message;

/// Bytes of the entries in one part, about; far below the smallest frame bound.
pub const PART_BYTES: usize = 32 * 1024;

/// Splits entries into parts; at least one. An entry that is larger than a part has one of its own.
#[must_use]
pub fn split<T: Message>(entries: Vec<T>) -> Vec<Vec<T>> {
    let mut parts = Vec::new();
    let mut part = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let size = entry.encoded_len();
        if bytes > 0 && bytes + size > PART_BYTES {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += size;
        part.push(entry);
    }
    parts.push(part);
    parts
}

/// Each part, and whether another one follows.
fn numbered<T: Message>(entries: Vec<T>) -> impl Iterator<Item = (Vec<T>, bool)> {
    let parts = split(entries);
    let last = parts.len() - 1;
    parts.into_iter().enumerate().map(move |(index, part)| (part, index < last))
}

impl Body {
    /// The frames that carry this body, in order: more than one for a body that may have very many entries.
    #[must_use]
    pub fn into_parts(self) -> Vec<Self> {
        if let Self::Subscribe(mut body) = self {
            let entries = numbered(std::mem::take(&mut body.subscriptions));
            let part = |(subscriptions, more)| Subscribe { subscriptions, more, ..body.clone() };
            entries.map(part).map(Self::Subscribe).collect()
        } else if let Self::AttachReply(mut body) = self {
            let entries = numbered(std::mem::take(&mut body.subscriptions));
            let part = |(subscriptions, more)| AttachReply { subscriptions, more, ..body.clone() };
            entries.map(part).map(Self::AttachReply).collect()
        } else if let Self::ReattachReply(mut body) = self {
            let entries = numbered(std::mem::take(&mut body.attachments));
            let part = |(attachments, more)| ReattachReply { attachments, more, ..body.clone() };
            entries.map(part).map(Self::ReattachReply).collect()
        } else {
            vec![self]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::wire::Frame;
    use crate::cluster::wire::attach::Reattached;
    use crate::cluster::wire::subscribe::Subscription;

    fn subscriptions(count: usize, filter_bytes: usize) -> Vec<Subscription> {
        let filter = "f".repeat(filter_bytes);
        vec![Subscription { filter, qos: 1, identifier: Some(268_435_455), ..Subscription::default() }; count]
    }

    #[test]
    fn a_body_with_very_many_entries_travels_in_frames_that_every_link_takes() {
        for (count, filter_bytes) in [(0, 0), (262_000, 1), (10_000, 110), (20, 65_535)] {
            let all = subscriptions(count, filter_bytes);
            let subscribe = Subscribe { request: 7, subscriptions: all.clone(), ..Subscribe::default() };
            let reply = AttachReply { request: 7, subscriptions: all.clone(), ..AttachReply::default() };
            let outcomes = vec![Reattached { error: 3, connection: None }; count];
            let reattach = ReattachReply { request: 7, attachments: outcomes, ..ReattachReply::default() };
            for body in [Body::Subscribe(subscribe), Body::AttachReply(reply), Body::ReattachReply(reattach)]
            {
                let parts = body.into_parts();

                let mut entries = 0;
                for (index, part) in parts.iter().enumerate() {
                    let (request, more, here) = if let Body::Subscribe(part) = part {
                        (part.request, part.more, part.subscriptions.len())
                    } else if let Body::AttachReply(part) = part {
                        (part.request, part.more, part.subscriptions.len())
                    } else if let Body::ReattachReply(part) = part {
                        (part.request, part.more, part.attachments.len())
                    } else {
                        panic!("{part:?}")
                    };
                    entries += here;
                    assert_eq!((request, more), (7, index + 1 < parts.len()));
                    let frame = Frame { body: Some(part.clone()), ..Frame::default() };
                    assert!(frame.encoded_len() < 128 * 1024);
                }
                assert_eq!(entries, count);
            }
        }
    }
}
