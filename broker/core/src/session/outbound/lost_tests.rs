use super::fixture::{number_of, outgoing};
use super::*;
use crate::session::in_flight::OutgoingInFlight;
use crate::shared::LostDelivery;
use proptest::prelude::*;

const GROUP: Source = Source::Shared(ShareId(7));

fn outbound(window: u16, is_persistent: bool) -> Outbound {
    let window = NonZeroU16::new(window).unwrap();
    if is_persistent { Outbound::resume(window, OutgoingInFlight::default()) } else { Outbound::new(window) }
}

fn deliver(outbound: &mut Outbound, number: u64, qos: QoS, source: Source) -> Option<PacketId> {
    match outbound.admit((qos, None), source, || outgoing(number, qos, source)) {
        Admission::Send(sending) => sending.packet_id,
        Admission::Wait => None,
        unexpected @ (Admission::InFlight | Admission::Done) => panic!("{unexpected:?}"),
    }
}

fn numbers(deliveries: &[LostDelivery]) -> Vec<u64> {
    deliveries.iter().map(|lost| number_of(&lost.message)).collect()
}

#[test]
fn unacknowledged_and_unsent_deliveries_are_lost_in_order_and_others_are_not() {
    let mut outbound = outbound(4, false);
    let second = deliver(&mut outbound, 1, QoS::AtLeastOnce, GROUP).unwrap();
    deliver(&mut outbound, 2, QoS::AtLeastOnce, GROUP);
    deliver(&mut outbound, 3, QoS::AtLeastOnce, Source::Live);
    deliver(&mut outbound, 4, QoS::AtLeastOnce, Source::Queue(9));
    deliver(&mut outbound, 5, QoS::ExactlyOnce, GROUP);
    deliver(&mut outbound, 6, QoS::AtLeastOnce, Source::Live);
    outbound.handle_puback(second).unwrap();
    outbound.poll_pending().unwrap();

    let lost = outbound.take_lost();

    // 5 was sent when 1 made room, 6 still waits, and is not of a group.
    assert_eq!((numbers(&lost.deliveries), lost.dropped), (vec![2], 1));
    assert_eq!((outbound.pending_count(), outbound.in_use_count()), (1, 2));
    assert_eq!(outbound.pending_bytes(), 9);
    assert_eq!(outbound.take_lost(), Lost::default(), "once");
}

#[test]
fn qos_2_of_a_persistent_session_stays_with_it_once_it_was_sent() {
    let mut outbound = outbound(2, true);
    let sent = deliver(&mut outbound, 1, QoS::ExactlyOnce, GROUP).unwrap();
    let released = deliver(&mut outbound, 2, QoS::ExactlyOnce, GROUP).unwrap();
    deliver(&mut outbound, 3, QoS::ExactlyOnce, GROUP);
    outbound.handle_pubrec(released, false).unwrap();

    let lost = outbound.take_lost();
    let kept = outbound.take_in_flight();

    assert_eq!((numbers(&lost.deliveries), lost.dropped), (vec![3], 0));
    let live: Vec<_> =
        kept.live.iter().map(|one| (number_of(&one.message), one.sent_as, one.source)).collect();
    assert_eq!(live, [(1, Some(sent), Source::Live)], "under the packet id that the client knows");
    assert_eq!(kept.released, [released]);
}

proptest! {
    /// Model: the numbers in the order of delivery, and those that the client has acknowledged.
    #[test]
    fn every_delivery_of_a_group_is_acknowledged_dropped_kept_or_lost_and_only_one_of_these(
        steps in proptest::collection::vec((0_u8..4, any::<prop::sample::Index>()), 0..120),
        window in 1_u16..6,
        is_persistent in any::<bool>(),
    ) {
        let mut outbound = outbound(window, is_persistent);
        let mut at_client: Vec<(PacketId, QoS, u64)> = Vec::new();
        let (mut waiting, mut next) = (std::collections::VecDeque::new(), 0_u64);
        for (step, pick) in steps {
            let qos = if step % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
            if step < 2 || at_client.is_empty() {
                match deliver(&mut outbound, next, qos, GROUP) {
                    Some(id) => at_client.push((id, qos, next)),
                    None => waiting.push_back((qos, next)),
                }
                next += 1;
            } else {
                let (id, qos, _) = at_client.remove(pick.index(at_client.len()));
                if qos == QoS::AtLeastOnce {
                    outbound.handle_puback(id).unwrap();
                } else {
                    outbound.handle_pubrec(id, true).unwrap();
                }
                while let Some((sending, delivery)) = outbound.poll_pending() {
                    let (qos, number) = waiting.pop_front().unwrap();
                    prop_assert_eq!(number_of(&delivery.message), number);
                    at_client.push((sending.packet_id.unwrap(), qos, number));
                }
            }
        }

        let lost = outbound.take_lost();
        let kept = outbound.take_in_flight();

        let mut expected: Vec<u64> =
            at_client.iter().filter(|(_, qos, _)| *qos == QoS::AtLeastOnce).map(|(_, _, number)| *number).collect();
        expected.extend(waiting.iter().map(|(_, number)| *number));
        prop_assert_eq!(numbers(&lost.deliveries), expected);
        let sent_twice = at_client.iter().filter(|(_, qos, _)| *qos == QoS::ExactlyOnce).count();
        prop_assert_eq!(if is_persistent { kept.live.len() } else { lost.dropped }, sent_twice);
        prop_assert_eq!(if is_persistent { lost.dropped } else { kept.live.len() }, 0);
        prop_assert_eq!((outbound.pending_count(), outbound.pending_bytes(), outbound.in_use_count()), (0, 0, 0));
    }
}
