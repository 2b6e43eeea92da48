use super::fixture::{id, outgoing, window};
use super::*;
use crate::session::in_flight::OutgoingInFlight;
use crate::session::offsets::DONE_OFFSETS_MAX;

fn admit(outbound: &mut Outbound, qos: QoS, source: Source) -> Admission {
    outbound.admit((qos, None), source, || outgoing(0, qos, source))
}

fn first(qos: QoS, number: u16) -> Admission {
    Admission::Send(Sending { qos, packet_id: PacketId::new(number), dup: false })
}

fn again(qos: QoS, number: u16) -> Admission {
    Admission::Send(Sending { qos, packet_id: PacketId::new(number), dup: true })
}

#[test]
fn a_packet_id_is_not_reused_while_it_is_in_use() {
    let mut outbound = Outbound::new(NonZeroU16::MAX);
    for number in 1..=u16::MAX {
        assert_eq!(admit(&mut outbound, QoS::AtLeastOnce, Source::Live), first(QoS::AtLeastOnce, number));
    }
    assert_eq!(admit(&mut outbound, QoS::AtLeastOnce, Source::Live), Admission::Wait);
    assert_eq!(outbound.poll_pending(), None);

    outbound.handle_puback(id(7)).unwrap();

    let (sending, _) = outbound.poll_pending().unwrap();
    assert_eq!(sending.packet_id, Some(id(7)));
    assert_eq!(outbound.handle_puback(id(7)), Ok(None));
    assert_eq!(outbound.handle_puback(id(7)), Err(AckError::Unknown(id(7))));
}

#[test]
fn a_qos_2_delivery_holds_its_packet_id_and_its_place_until_pubcomp() {
    let mut outbound = Outbound::new(window(1));
    let qos = QoS::ExactlyOnce;
    assert_eq!(admit(&mut outbound, qos, Source::Queue(5)), first(qos, 1));
    assert_eq!(admit(&mut outbound, qos, Source::Queue(6)), Admission::Wait);

    assert_eq!(outbound.handle_pubrec(id(1), false), Ok(Received::Store(5)));
    assert_eq!(outbound.handle_pubrec(id(1), false), Ok(Received::Waiting), "repeated");
    assert_eq!(outbound.handle_pubcomp(id(1)), Err(AckError::OutOfStep(id(1))), "nothing was released");
    assert!(outbound.release_stored(id(1)));
    assert_eq!(outbound.handle_pubrec(id(1), false), Ok(Received::Release), "repeated");
    assert_eq!((outbound.in_flight_offsets(), outbound.done_offsets()), (vec![6], vec![5]));
    assert_eq!(outbound.poll_pending(), None, "the id is in use");
    assert_eq!(outbound.handle_pubcomp(id(1)), Ok(()));

    assert_eq!(outbound.poll_pending().unwrap().0.packet_id, Some(id(2)));
    assert_eq!(outbound.handle_pubcomp(id(1)), Err(AckError::Unknown(id(1))));
    assert_eq!(outbound.handle_pubrec(id(1), false), Err(AckError::Unknown(id(1))));
}

#[test]
fn a_refusing_pubrec_ends_the_delivery() {
    let mut outbound = Outbound::new(window(1));
    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(5));

    assert_eq!(outbound.handle_pubrec(id(1), true), Ok(Received::Refused(Some(5))));

    assert_eq!((outbound.in_use_count(), outbound.done_offsets()), (0, vec![5]));
}

#[test]
fn an_acknowledgement_of_the_wrong_kind_is_told_from_an_unknown_one() {
    let mut outbound = Outbound::new(window(10));
    admit(&mut outbound, QoS::AtLeastOnce, Source::Live);
    admit(&mut outbound, QoS::ExactlyOnce, Source::Live);
    admit(&mut outbound, QoS::ExactlyOnce, Source::Live);
    outbound.handle_pubrec(id(3), false).unwrap();

    let out_of_step = |number| AckError::OutOfStep(id(number));
    assert_eq!(outbound.handle_pubrec(id(1), false), Err(out_of_step(1)));
    assert_eq!(outbound.handle_pubcomp(id(1)), Err(out_of_step(1)));
    assert_eq!(outbound.handle_puback(id(2)), Err(out_of_step(2)));
    assert_eq!(outbound.handle_pubcomp(id(2)), Err(out_of_step(2)));
    assert_eq!(outbound.handle_puback(id(3)), Err(out_of_step(3)));
    assert_eq!(outbound.in_use_count(), 3, "nothing changed");
}

#[test]
fn an_offset_in_flight_or_done_is_not_sent_again() {
    let mut outbound = Outbound::new(window(2));
    let qos = QoS::AtLeastOnce;

    assert_eq!(admit(&mut outbound, qos, Source::Queue(5)), first(qos, 1));
    assert_eq!(admit(&mut outbound, qos, Source::Queue(5)), Admission::InFlight);
    assert_eq!(outbound.in_flight_offsets(), [5]);
    assert_eq!(outbound.handle_puback(PacketId::MIN), Ok(Some(5)));
    assert_eq!(admit(&mut outbound, qos, Source::Queue(5)), Admission::Done);
    assert_eq!((outbound.in_flight_offsets(), outbound.done_offsets()), (vec![], vec![5]));
}

#[test]
fn the_oldest_done_offsets_are_forgotten_at_the_bound() {
    let mut outbound = Outbound::new(NonZeroU16::MIN);
    let count = u64::try_from(DONE_OFFSETS_MAX).unwrap() + 1;
    for offset in 0..count {
        let Admission::Send(sending) = admit(&mut outbound, QoS::AtLeastOnce, Source::Queue(offset)) else {
            panic!("offset {offset} is new")
        };
        outbound.handle_puback(sending.packet_id.unwrap()).unwrap();
    }

    assert_eq!(outbound.done_offsets(), (1..count).collect::<Vec<_>>());
}

#[test]
fn a_resumed_session_goes_on_under_the_same_packet_ids() {
    let mut outbound = Outbound::resume(window(10), OutgoingInFlight::default());
    admit(&mut outbound, QoS::AtLeastOnce, Source::Queue(5));
    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(6));
    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(7));
    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(8));
    assert_eq!(admit(&mut outbound, QoS::AtLeastOnce, Source::Live), first(QoS::AtLeastOnce, 5));
    for number in [4, 3] {
        outbound.handle_pubrec(id(number), false).unwrap();
        assert!(outbound.release_stored(id(number)));
    }

    let mut resumed = Outbound::resume(window(10), outbound.take_in_flight());

    assert_eq!(resumed.released(), [id(4), id(3)], "in the order of PUBREC");
    let (sending, _) = resumed.poll_pending().unwrap();
    assert_eq!(Admission::Send(sending), again(QoS::AtLeastOnce, 5));
    // The subscription may have changed since; the delivery goes on at the QoS at which it was begun.
    assert_eq!(admit(&mut resumed, QoS::AtLeastOnce, Source::Queue(5)), again(QoS::AtLeastOnce, 1));
    assert_eq!(admit(&mut resumed, QoS::AtLeastOnce, Source::Queue(6)), again(QoS::ExactlyOnce, 2));
    assert_eq!(admit(&mut resumed, QoS::AtLeastOnce, Source::Queue(9)), first(QoS::AtLeastOnce, 6));
}

#[test]
fn a_smaller_window_holds_for_what_is_sent_again_and_keeps_its_ids() {
    let mut outbound = Outbound::resume(window(10), OutgoingInFlight::default());
    for offset in 0..3 {
        admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(offset));
    }
    let mut resumed = Outbound::resume(window(1), outbound.take_in_flight());
    assert_eq!(admit(&mut resumed, QoS::ExactlyOnce, Source::Queue(0)), again(QoS::ExactlyOnce, 1));
    assert_eq!(admit(&mut resumed, QoS::ExactlyOnce, Source::Queue(1)), Admission::Wait);

    let mut resumed = Outbound::resume(window(2), resumed.take_in_flight());

    for offset in 0..2 {
        let expected = again(QoS::ExactlyOnce, u16::try_from(offset + 1).unwrap());
        assert_eq!(admit(&mut resumed, QoS::ExactlyOnce, Source::Queue(offset)), expected);
    }
    assert_eq!(admit(&mut resumed, QoS::ExactlyOnce, Source::Queue(2)), Admission::Wait);
    resumed.handle_pubrec(id(1), true).unwrap();
    assert_eq!(Admission::Send(resumed.poll_pending().unwrap().0), again(QoS::ExactlyOnce, 3));
}

#[test]
fn what_is_too_large_when_it_is_sent_again_is_released_and_else_ends() {
    let mut outbound = Outbound::resume(window(10), OutgoingInFlight::default());
    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(0));
    let sending = Sending { qos: QoS::ExactlyOnce, packet_id: Some(id(1)), dup: true };

    assert_eq!(outbound.handle_not_written(sending), Some(Received::Store(0)));
    assert!(outbound.release_stored(id(1)));
    assert_eq!(outbound.released(), [id(1)]);

    admit(&mut outbound, QoS::ExactlyOnce, Source::Queue(1));
    let sending = Sending { packet_id: Some(id(2)), dup: false, ..sending };
    assert_eq!(outbound.handle_not_written(sending), Some(Received::Refused(Some(1))));
    assert_eq!(outbound.in_use_count(), 1);
}
