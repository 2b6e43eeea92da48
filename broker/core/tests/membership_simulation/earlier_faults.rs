//! Promises that earlier texts of this protocol broke, one test each.

use std::time::Duration;

use tidemill_core::membership::config::StatefulSetIdentity;
use tidemill_core::membership::event::InvalidReason;
use tidemill_core::membership::lease::{LeaseContent, LeaseKey, MemberState, PodStatus};
use tidemill_core::membership::timings::{Mode, Timings};
use tidemill_core::partition::PartitionGroup;

use super::aftermath::{cut_between, each_seed};
use super::faults::{Action, Kubelet};
use super::happening::ApiPath;
use super::world::{GROUPS, Setup, member};

/// Members that hold for longer than the schedule lasts.
fn patient(members: usize) -> Setup {
    let mut setup = Setup::new(members, Mode::Hold);
    setup.timings.hold_limit = Duration::from_secs(60);
    setup
}

#[test]
fn a_mode_whose_renewal_got_no_answer_binds_the_member() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        let timings = world.setup.timings;
        world.act(Action::Path(2, ApiPath::AnswersLost));
        world.act(Action::Settings(2, Mode::Disconnect, timings));
        world.run_safely(1);
        // The API knows it as one that does not hold; it does not know that the API knows.
        assert_eq!(world.member_lease(2).mode, Mode::Disconnect);

        world.run_safely(14);

        assert_eq!(world.ends(2).first(), Some(&InvalidReason::ValidityEnded));
    });
}

#[test]
fn shorter_timings_whose_renewal_got_no_answer_bind_the_member() {
    let mut setup = Setup::new(3, Mode::Disconnect);
    setup.timings = Timings::for_members(20);
    each_seed(&setup, |world| {
        world.act(Action::Path(2, ApiPath::AnswersLost));
        world.act(Action::Settings(2, Mode::Disconnect, Timings::for_members(3)));
        world.run_safely(7);

        // By its confirmed timings it would go on for 15 s.
        assert_eq!(world.ends(2), [InvalidReason::ValidityEnded]);
        world.run_safely(14);
    });
}

#[test]
fn a_boot_id_is_used_for_one_join_write_also_when_that_arrives_late() {
    each_seed(&Setup::new(3, Mode::Disconnect), |world| {
        world.act(Action::Crash(2, Kubelet::Silent));
        world.act(Action::Path(2, ApiPath::Works));
        world.act(Action::RestartContainer(2));
        // The first list is answered; the join write is on its way when the way becomes slow.
        world.run_until(world.at + Duration::from_millis(40));
        world.act(Action::Path(2, ApiPath::RequestsLate(Duration::from_secs(11))));
        world.run_safely(20);
        world.act(Action::Path(2, ApiPath::Works));

        world.expect_settled_within(30);
        world.run_safely(15);

        world.expect_one_join_per_boot_id();
        world.expect_expiry_before_claims();
    });
}

#[test]
fn an_owner_whose_release_got_no_answer_serves_the_group_only_after_a_new_claim() {
    each_seed(&Setup::new(3, Mode::Disconnect), |world| {
        world.act(Action::Crash(2, Kubelet::Reports));
        world.run_safely(3);
        world.act(Action::RestartContainer(2));
        world.run_safely(8);
        // Groups move to the member that came back; no answers while they do.
        for slot in 0..2 {
            world.act(Action::Path(slot, ApiPath::AnswersLost));
        }
        world.run_safely(4);
        for slot in 0..2 {
            world.act(Action::Path(slot, ApiPath::Works));
        }

        world.expect_settled_within(20);
        world.expect_one_start_per_claim();
    });
}

#[test]
fn a_recreated_member_lease_is_no_death_of_its_holder() {
    for mode in [Mode::Hold, Mode::Disconnect] {
        each_seed(&Setup::new(3, mode), |world| {
            let groups = world.owned_by(2);
            world.act(Action::Delete(LeaseKey::Member(member(2))));
            world.run_safely(1);
            world.act(Action::Create(LeaseKey::Member(member(2))));
            world.run_safely(10);

            assert!(world.ends(2).is_empty());
            assert_eq!(world.owned_by(2), groups);
            assert_eq!(
                world.member_lease(2).incarnation(),
                Some(world.process(2).own.as_ref().unwrap().member.incarnation)
            );
        });
    }
}

#[test]
fn a_dead_member_whose_lease_was_recreated_is_expired_all_the_same() {
    each_seed(&Setup::new(3, Mode::Disconnect), |world| {
        world.act(Action::Crash(2, Kubelet::Silent));
        world.act(Action::Delete(LeaseKey::Member(member(2))));
        world.act(Action::Create(LeaseKey::Member(member(2))));

        world.expect_owned_within(11);
    });
}

#[test]
fn a_recreated_group_lease_is_claimed_by_others_only_when_its_owner_must_have_stopped() {
    each_seed(&patient(3), |world| {
        // The owner holds and cannot see that its group leases are new objects.
        let groups = world.owned_by(2);
        world.act(Action::Path(2, ApiPath::RequestsLost));
        for group in &groups {
            world.act(Action::Delete(LeaseKey::Group(*group)));
            world.act(Action::Create(LeaseKey::Group(*group)));
        }
        world.run_safely(18);
        assert_eq!(world.owned_by(2), groups);

        world.act(Action::Path(2, ApiPath::Works));
        world.expect_settled_within(10);
    });
}

#[test]
fn a_recreated_view_is_refilled_and_closes_nobody() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        let number = world.view().number;
        world.act(Action::Delete(LeaseKey::View));
        world.run_safely(1);
        world.act(Action::Create(LeaseKey::View));
        world.run_safely(6);

        assert!((0..3).all(|slot| world.ends(slot).is_empty()));
        assert_eq!(world.in_view(), ["a", "b", "c"]);
        assert!(world.view().number > number);
    });
}

#[test]
fn the_loser_of_a_split_obeys_the_verdict_although_its_watch_is_stuck() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        world.act(Action::WatchStuck(2, true));
        cut_between(world, &[0, 1], &[2]);
        let lists = world.process(2).lists_asked;
        world.run_safely(20);

        assert_eq!(world.ends(2), [InvalidReason::Dropped]);
        assert!(world.owned_by(2).is_empty());
        assert!(world.process(2).lists_asked > lists + 3);
    });
}

#[test]
fn a_member_that_holds_is_not_judged_by_a_split_verdict() {
    each_seed(&patient(5), |world| {
        world.act(Action::Path(4, ApiPath::RequestsLost));
        world.run_safely(1);
        cut_between(world, &[3], &[0, 1, 2, 4]);
        world.run_safely(16);
        assert_eq!(world.in_view(), ["a", "b", "c", "e"]);

        world.act(Action::Path(4, ApiPath::Works));
        world.run_safely(5);

        assert!(world.ends(4).is_empty());
        assert_eq!(world.ends(3), [InvalidReason::Dropped]);
    });
}

#[test]
fn a_frozen_watch_writes_no_verdict_on_what_is_over() {
    let mut setup = Setup::new(3, Mode::Hold);
    setup.timings = Timings { hold_limit: Duration::from_secs(60), ..Timings::for_members(20) };
    each_seed(&setup, |world| {
        // A short cut is published; then one member sees nothing newer by its watch.
        cut_between(world, &[0, 1], &[2]);
        world.run_safely(7);
        for slot in 0..3 {
            world.act(Action::WatchStuck(slot, true));
        }
        for a in 0..3 {
            for b in 0..3 {
                world.act(Action::Link(a, b, true));
            }
        }
        world.run_safely(30);

        assert!((0..3).all(|slot| world.ends(slot).is_empty()));
        assert_eq!(world.in_view(), ["a", "b", "c"]);
    });
}

#[test]
fn a_member_that_is_not_in_the_view_expires_the_dead_and_joins_without_them() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        // Everybody closes at the hold limit; only one comes back.
        for slot in 0..3 {
            world.act(Action::Path(slot, ApiPath::RequestsLost));
        }
        cut_between(world, &[0], &[1, 2]);
        cut_between(world, &[1], &[2]);
        world.run_safely(8);
        world.act(Action::Crash(1, Kubelet::Silent));
        world.act(Action::Crash(2, Kubelet::Silent));
        world.act(Action::Path(0, ApiPath::Works));
        // The hold limit and a minute, as long as nobody else can say that the two are dead.
        world.run_safely(20 + 60 + 12);

        assert_eq!(world.in_view(), ["a"]);
        assert_eq!(world.owned_by(0).len(), usize::from(GROUPS));
    });
}

#[test]
fn the_end_of_a_container_is_no_death_of_the_next_one_in_the_same_pod() {
    each_seed(&Setup::new(3, Mode::Disconnect), |world| {
        let process = world.process(2);
        let (pod_uid, container) = (process.pod_uid.clone(), process.container_id.clone());
        world.act(Action::RestartContainer(2));
        world.expect_settled_within(14);
        let version = world.api.next_version();
        world.report_pod(PodStatus { member: member(2), pod_uid, version, terminated: [container].into() });
        world.run_safely(5);

        assert!(world.ends(2).is_empty());
    });
}

#[test]
fn a_late_word_about_the_pod_before_is_no_death_of_the_pod_that_runs() {
    each_seed(&Setup::new(3, Mode::Disconnect), |world| {
        let old = world.process(2).pod_uid.clone();
        let version = world.api.next_version();
        world.act(Action::StartNewPod(2));
        world.expect_settled_within(14);
        world.report_pod(PodStatus { member: member(2), pod_uid: old, version, terminated: [].into() });
        world.run_safely(5);

        assert!(world.ends(2).is_empty());
    });
}

#[test]
fn a_joiner_waits_for_the_lease_of_another_pod_unless_identity_is_trusted() {
    let mut setup = Setup::new(3, Mode::Disconnect);
    for (identity, at_least, at_most) in
        [(StatefulSetIdentity::Doubted, 6_000, 12_000), (StatefulSetIdentity::Trusted, 0, 2_000)]
    {
        setup.identity = identity;
        each_seed(&setup, |world| {
            world.act(Action::Crash(2, Kubelet::Silent));
            world.act(Action::StartNewPod(2));
            let start = world.at;
            while world.process(2).own.is_none() {
                world.run(Duration::from_millis(50));
            }
            let took = (world.at - start).as_millis();
            assert!(took >= at_least && took <= at_most, "{took}");
        });
    }
}

#[test]
fn an_expired_member_of_the_view_counts_as_consenting_only_after_a_full_duration() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        // c holds by grants of b alone.
        world.act(Action::Path(2, ApiPath::RequestsLost));
        cut_between(world, &[0], &[2]);
        world.run_safely(12);
        assert!(world.is_valid(2));

        // b is proved dead at once; its last grant still makes c valid for a while.
        world.act(Action::Crash(1, Kubelet::Reports));
        world.run_safely(2);
        assert_eq!(world.member_lease(1).holder, None);
        assert!(world.is_valid(2));
        world.run_safely(5);
        assert!(world.member_lease(2).holder.is_some());

        world.run_safely(8);
        assert_eq!(world.owned_by(0).len(), usize::from(GROUPS));
    });
}

#[test]
fn an_administrators_word_ends_the_wait_and_the_process_if_it_still_runs() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        world.act(Action::Pause(2));
        world.run_safely(2);
        // The word is taken although the process may wake up: that is what the administrator vouches for.
        world.checker.excused.push(member(2));
        world.act(Action::Crash(2, Kubelet::Silent));
        world.act(Action::DeclareDead(2));

        world.expect_owned_within(2);
    });
}

#[test]
fn a_member_that_is_declared_dead_by_mistake_closes_at_once() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        world.checker.excused.push(member(2));
        world.act(Action::DeclareDead(2));
        world.run_safely(1);

        assert!(!world.is_valid(2));
        assert!(matches!(world.ends(2), [InvalidReason::DeclaredDead | InvalidReason::Expired]));
    });
}

#[test]
fn a_member_that_leaves_gives_its_groups_away_at_once() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        world.act(Action::Leave(2));

        let took = world.expect_owned_within(3);

        assert!(took < Duration::from_secs(2), "{took:?}");
        world.run_safely(5);
        assert!(world.process(2).has_left);
        assert_eq!(world.member_lease(2).holder, None);
        assert_eq!(world.in_view(), ["a", "b"]);
        world.expect_expiry_before_claims();
    });
}

#[test]
fn an_outage_of_the_api_shorter_than_the_hold_limit_changes_nothing() {
    each_seed(&patient(5), |world| {
        let owners: Vec<_> = (0..GROUPS).map(|group| world.owner(PartitionGroup(group))).collect();
        for slot in 0..5 {
            world.act(Action::Path(slot, ApiPath::RequestsLost));
        }
        world.run_safely(17);
        for slot in 0..5 {
            world.act(Action::Path(slot, ApiPath::Works));
        }
        world.run_safely(20);

        assert!((0..5).all(|slot| world.ends(slot).is_empty()));
        assert_eq!((0..GROUPS).map(|group| world.owner(PartitionGroup(group))).collect::<Vec<_>>(), owners);
    });
}

#[test]
fn a_draining_member_gives_its_groups_away_and_stays() {
    each_seed(&Setup::new(3, Mode::Disconnect), |world| {
        let current = world.current[2];
        let now = world.processes[current].now(world.at);
        world.processes[current].membership.handle_drain(now);
        world.pump(current, None);
        world.run_safely(4);

        assert!(world.owned_by(2).is_empty() && world.is_valid(2));
        assert_eq!(world.member_lease(2).state, MemberState::Draining);
        world.expect_owned_within(1);
    });
}

#[test]
fn the_view_keeps_every_view_that_a_lease_names() {
    each_seed(&Setup::new(5, Mode::Hold), |world| {
        world.act(Action::Path(4, ApiPath::RequestsLost));
        for round in 0..3 {
            world.act(Action::RestartContainer(round % 2));
            world.run_safely(4);
        }
        let named = world.member_lease(4).view_number;
        assert!(world.view().number > named);

        let Some(LeaseContent::View(view)) = world.api.get(&LeaseKey::View) else { panic!("no view") };

        assert!(view.history.contains_key(&named));
    });
}
