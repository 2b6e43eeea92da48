//! What one connection of a persistent session leaves to the next.

use super::{Exchange, Held, Outbound};
use crate::packet::QoS;
use crate::session::delivery::{OutgoingDelivery, Source};
use crate::session::in_flight::{OutgoingInFlight, SentFromQueue};
use std::num::NonZeroU16;

impl Outbound {
    /// For a persistent session, which goes on with what it had in flight. PUBREL is due for [`Self::released`]; live
    /// deliveries are pending; those of the queue wait for the owner to deliver them again.
    #[must_use]
    pub fn resume(window: NonZeroU16, in_flight: OutgoingInFlight) -> Self {
        let OutgoingInFlight { next_id, queue, live, released } = in_flight;
        let mut outbound = Self { next_id, is_persistent: true, ..Self::new(window) };
        for packet_id in released {
            let order = outbound.next_order();
            outbound.in_use.insert(packet_id, Exchange::Released(order));
        }
        for sent in queue {
            outbound.reserve(sent.packet_id);
            outbound.offsets.get_or_insert_default().expect_again(sent);
        }
        for delivery in live {
            delivery.sent_as.inspect(|packet_id| outbound.reserve(*packet_id));
            outbound.push_pending(delivery);
        }
        outbound
    }

    /// Whether a live delivery that is kept was sent and is not done, or waits.
    #[must_use]
    pub fn has_live_in_flight(&self) -> bool {
        let is_sent = self.in_use.values().any(|exchange| {
            matches!(exchange, Exchange::AtLeastOnce(Held::Kept(_)) | Exchange::ExactlyOnce(Held::Kept(_)))
        });
        is_sent || self.pending.iter().any(|delivery| delivery.source == Source::Live)
    }

    /// The connection has ended: gives everything back, and what a persistent session goes on with.
    pub fn take_in_flight(&mut self) -> OutgoingInFlight {
        let released = self.released();
        let (mut queue, mut kept) = (Vec::new(), Vec::new());
        for (packet_id, exchange) in std::mem::take(&mut self.in_use) {
            let (qos, held) = match exchange {
                Exchange::AtLeastOnce(held) => (QoS::AtLeastOnce, held),
                Exchange::ExactlyOnce(held) => (QoS::ExactlyOnce, held),
                // The owner knows of it.
                Exchange::Received => continue,
                Exchange::Reserved | Exchange::Released(_) => continue,
            };
            match held {
                Held::Queue(offset) => queue.push(SentFromQueue { offset, packet_id, qos }),
                Held::Kept(kept_one) => {
                    let (order, delivery) = *kept_one;
                    let delivery =
                        OutgoingDelivery { sent_as: Some(packet_id), is_repeated: true, ..delivery };
                    kept.push((order, delivery));
                }
                // What others shall have was taken before.
                Held::Live | Held::Shared { .. } => {}
            }
        }
        kept.sort_unstable_by_key(|(order, _)| *order);
        let mut live: Vec<_> = kept.into_iter().map(|(_, delivery)| delivery).collect();
        for delivery in std::mem::take(&mut self.pending) {
            match (delivery.source, delivery.sent_as) {
                // What was never sent the owner delivers again.
                (Source::Queue(offset), Some(packet_id)) if delivery.is_repeated => {
                    queue.push(SentFromQueue { offset, packet_id, qos: delivery.qos });
                }
                (Source::Queue(_), Some(_) | None) => {}
                (Source::Live, _) => live.push(delivery),
                (Source::Shared(_), _) => {}
            }
        }
        queue.extend(self.offsets.take().into_iter().flat_map(|offsets| offsets.into_expected()));
        queue.sort_unstable_by_key(|sent| sent.offset);
        (self.pending_bytes, self.reserved) = (0, 0);
        OutgoingInFlight { next_id: self.next_id, queue, live, released }
    }
}
