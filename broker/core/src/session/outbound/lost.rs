//! What a connection that ends leaves to the other members of its groups.

use super::{Exchange, Held, Outbound};
use crate::session::delivery::Source;
use crate::shared::LostDelivery;

/// What becomes of the shared subscriptions' deliveries when a connection ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lost {
    /// For other members, in the order in which they came: those that were sent at QoS 1 and are not acknowledged, then
    /// those that were not sent.
    pub deliveries: Vec<LostDelivery>,
    /// Deliveries at QoS 2 of a clean session that were sent and whose PUBREC has not come: nobody gets them.
    pub dropped: usize,
}

impl Outbound {
    /// The connection has ended: takes out what does not stay with the session.
    pub fn take_lost(&mut self) -> Lost {
        let (mut sent, mut dropped) = (Vec::new(), 0);
        self.in_use.retain(|_, exchange| match exchange {
            Exchange::AtLeastOnce(Held::Shared { order, share, message }) => {
                sent.push((*order, LostDelivery { share: *share, message: message.clone() }));
                false
            }
            Exchange::ExactlyOnce(Held::Shared { .. }) => {
                dropped += 1;
                false
            }
            Exchange::Reserved
            | Exchange::Received
            | Exchange::Released(_)
            | Exchange::AtLeastOnce(Held::Live | Held::Kept(_) | Held::Queue(_))
            | Exchange::ExactlyOnce(Held::Live | Held::Kept(_) | Held::Queue(_)) => true,
        });
        sent.sort_unstable_by_key(|(order, _)| *order);
        let mut deliveries: Vec<_> = sent.into_iter().map(|(_, delivery)| delivery).collect();
        let pending_bytes = &mut self.pending_bytes;
        self.pending.retain(|delivery| match delivery.source {
            Source::Shared(share) => {
                *pending_bytes -= delivery.message.held_bytes();
                deliveries.push(LostDelivery { share, message: delivery.message.clone() });
                false
            }
            Source::Live | Source::Queue(_) => true,
        });
        Lost { deliveries, dropped }
    }
}
