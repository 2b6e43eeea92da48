//! How leases are written into Kubernetes objects: golden texts, so that brokers of two releases read each other.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidemill_core::member::{Incarnation, Member, MemberEpoch, MemberId, OwnerEpoch};
use tidemill_core::membership::annotations::{
    DECLARED_DEAD, DecodeError, FORMAT, LeaseFields, decode, encode,
};
use tidemill_core::membership::lease::{
    GroupLease, Holder, LeaseContent, LeaseKey, MemberLease, MemberState, NamedMember, ProtocolRange,
    Verdict, View,
};
use tidemill_core::membership::timings::{Mode, Timings};
use tidemill_core::partition::PartitionGroup;

fn member(name: &str, incarnation: u64) -> Member {
    Member { id: MemberId::new(name), incarnation: Incarnation(incarnation) }
}

fn named(name: &str, incarnation: u64, epoch: u64) -> NamedMember {
    NamedMember { member: member(name, incarnation), epoch: MemberEpoch(epoch) }
}

fn by_name(members: &[NamedMember]) -> BTreeMap<MemberId, NamedMember> {
    members.iter().map(|named| (named.member.id.clone(), named.clone())).collect()
}

fn fields(
    holder: Option<&str>,
    transitions: i32,
    duration: Option<i32>,
    annotations: &[(&str, &str)],
) -> LeaseFields {
    LeaseFields {
        holder_identity: holder.map(str::to_owned),
        transitions,
        duration_secs: duration,
        annotations: annotations
            .iter()
            .map(|(key, value)| (format!("tidemill.dev/{key}"), (*value).to_owned()))
            .collect(),
    }
}

fn member_key() -> LeaseKey {
    LeaseKey::Member(MemberId::new("mq-1"))
}

fn member_lease() -> MemberLease {
    MemberLease {
        holder: Some(Holder {
            member: member("mq-1", 0xC0FFEE),
            pod_uid: "6f6e2c1e-8a3a-4a5e-9f1e-1c2d3e4f5a6b".to_owned(),
            container_id: Some("containerd://abc".to_owned()),
        }),
        epoch: MemberEpoch(7),
        renewal: 42,
        endpoint: "10.1.2.3:7883".to_owned(),
        state: MemberState::Serving,
        protocol: ProtocolRange { min: 1, max: 3 },
        reachable: BTreeSet::from([MemberId::new("mq-0"), MemberId::new("mq-2")]),
        route_digest: 0xABC,
        view_number: 12,
        mode: Mode::Hold,
        timings: Timings::for_members(3),
        declared_dead: None,
    }
}

#[test]
fn a_member_lease_is_written_like_this() {
    let expected = fields(
        Some("mq-1_6f6e2c1e-8a3a-4a5e-9f1e-1c2d3e4f5a6b_0000000000c0ffee"),
        7,
        Some(9),
        &[
            ("format", "1"),
            ("epoch", "7"),
            ("container", "containerd://abc"),
            ("renewal", "42"),
            ("endpoint", "10.1.2.3:7883"),
            ("state", "Serving"),
            ("protocol", "1-3"),
            ("reachable", "mq-0,mq-2"),
            ("route-digest", "00000000000000000000000000000abc"),
            ("view-number", "12"),
            ("mode", "hold"),
            ("timings-ms", "2000/6000/9000/300000"),
        ],
    );
    let content = LeaseContent::Member(member_lease());

    assert_eq!(encode(&content), expected);
    assert_eq!(decode(&member_key(), &expected), Ok(content));
}

#[test]
fn an_empty_member_lease_has_the_same_annotations_and_no_holder() {
    let content = LeaseContent::Member(MemberLease::vacant(MemberEpoch(8)));
    let written = encode(&content);

    assert_eq!(written.holder_identity, None);
    assert_eq!(written.transitions, 8);
    let keys = |fields: &LeaseFields| fields.annotations.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&written), keys(&encode(&LeaseContent::Member(member_lease()))));
    assert_eq!(decode(&member_key(), &written), Ok(content));
}

#[test]
fn a_group_lease_is_written_like_this() {
    let expected = fields(
        Some("mq-1_0000000000c0ffee"),
        9,
        None,
        &[("format", "1"), ("epoch", "9"), ("member-epoch", "7")],
    );
    let content =
        LeaseContent::Group(GroupLease { holder: Some(named("mq-1", 0xC0FFEE, 7)), epoch: OwnerEpoch(9) });

    assert_eq!(encode(&content), expected);
    assert_eq!(decode(&LeaseKey::Group(PartitionGroup(3)), &expected), Ok(content));
}

#[test]
fn the_view_is_written_like_this() {
    let expected = fields(
        None,
        0,
        None,
        &[
            ("format", "1"),
            ("view-number", "12"),
            ("view-members", "mq-0:000000000000000a:3,mq-1:000000000000000b:7"),
            ("view-history", "10=mq-0:000000000000000a:3;11="),
            ("verdict", "12=mq-0=mq-2:000000000000000c"),
        ],
    );
    let content = LeaseContent::View(View {
        number: 12,
        members: by_name(&[named("mq-0", 10, 3), named("mq-1", 11, 7)]),
        verdict: Some(Verdict { number: 12, by: MemberId::new("mq-0"), dropped: vec![member("mq-2", 12)] }),
        history: BTreeMap::from([(10, by_name(&[named("mq-0", 10, 3)])), (11, BTreeMap::new())]),
    });

    assert_eq!(encode(&content), expected);
    assert_eq!(decode(&LeaseKey::View, &expected), Ok(content));
}

#[test]
fn what_the_operator_creates_is_an_object_that_says_nothing_but_its_epoch() {
    let new = fields(None, 1, None, &[]);

    let member = decode(&member_key(), &new);
    let group = decode(&LeaseKey::Group(PartitionGroup(0)), &new);
    let view = decode(&LeaseKey::View, &new);

    assert_eq!(member, Ok(LeaseContent::Member(MemberLease::vacant(MemberEpoch(1)))));
    assert_eq!(group, Ok(LeaseContent::Group(GroupLease { holder: None, epoch: OwnerEpoch(1) })));
    assert_eq!(view, Ok(LeaseContent::View(View::default())));
}

#[test]
fn an_epoch_beyond_the_transitions_of_a_lease_is_not_lost() {
    let content = LeaseContent::Member(MemberLease { epoch: MemberEpoch(5_000_000_000), ..member_lease() });

    let written = encode(&content);

    assert_eq!(written.transitions, i32::MAX);
    assert_eq!(decode(&member_key(), &written), Ok(content));
}

#[test]
fn an_administrators_word_is_read_and_never_written() {
    let mut written = encode(&LeaseContent::Member(member_lease()));
    assert!(!written.annotations.contains_key(DECLARED_DEAD));
    written.annotations.insert(DECLARED_DEAD.to_owned(), "uid-1".to_owned());

    let Ok(LeaseContent::Member(read)) = decode(&member_key(), &written) else { panic!("unreadable") };

    assert_eq!(read.declared_dead.as_deref(), Some("uid-1"));
    assert_eq!(encode(&LeaseContent::Member(read)), encode(&LeaseContent::Member(member_lease())));
}

#[test]
fn a_lease_of_a_later_format_is_refused() {
    let mut written = encode(&LeaseContent::Member(member_lease()));
    written.annotations.insert(FORMAT.to_owned(), "2".to_owned());

    assert_eq!(decode(&member_key(), &written), Err(DecodeError::Format { found: "2".to_owned() }));
}

#[test]
fn a_lease_whose_annotation_is_missing_or_malformed_is_refused_by_its_name() {
    let complete = encode(&LeaseContent::Member(member_lease()));
    for field in
        ["renewal", "state", "protocol", "timings-ms", "mode", "epoch", "view-number", "route-digest"]
    {
        let mut written = complete.clone();
        written.annotations.insert(format!("tidemill.dev/{field}"), "?".to_owned());
        let Err(DecodeError::Field { field: named }) = decode(&member_key(), &written) else {
            panic!("{field}")
        };
        assert_eq!(named, format!("tidemill.dev/{field}"));
    }
    let mut written = complete;
    written.holder_identity = Some("somebody".to_owned());
    assert_eq!(decode(&member_key(), &written), Err(DecodeError::Field { field: "holderIdentity" }));
}

proptest! {
    #[test]
    fn nothing_that_is_read_panics(
        holder in "[a-z0-9_:-]{0,20}",
        transitions in any::<i32>(),
        values in proptest::collection::vec("[a-z0-9_:;=,/-]{0,12}", 15),
    ) {
        let names = ["epoch", "container", "renewal", "endpoint", "state", "protocol", "reachable", "route-digest",
            "view-number", "mode", "timings-ms", "member-epoch", "view-members", "view-history", "verdict"];
        let annotations: Vec<_> = names.iter().copied().zip(values.iter().map(String::as_str)).collect();
        let fields = fields(Some(&holder), transitions, None, &annotations);
        for key in [member_key(), LeaseKey::Group(PartitionGroup(0)), LeaseKey::View] {
            let _ = decode(&key, &fields);
        }
    }
}
