//! Schedules that break simpler protocols, by their usual numbers: two owners (F1, F2), splits that are no halves (F10),
//! what is no proof of death (F16), epochs that start again (F17).

use std::collections::BTreeSet;
use std::time::Duration;

use tidemill_core::member::OwnerEpoch;
use tidemill_core::membership::config::StatefulSetIdentity;
use tidemill_core::membership::event::InvalidReason;
use tidemill_core::membership::lease::LeaseKey;
use tidemill_core::membership::timings::Mode;
use tidemill_core::partition::PartitionGroup;

use super::aftermath::{cut_between, each_seed};
use super::faults::{Action, Kubelet};
use super::happening::ApiPath;
use super::world::{GROUPS, Setup, World, member};

#[test]
fn f1_a_paused_member_is_expired_by_a_write_before_its_groups_are_claimed_and_never_renews_again() {
    each_seed(&Setup::new(3, Mode::Disconnect), |world| {
        let before = world.process(2).own.clone().unwrap();
        world.act(Action::Pause(2));
        world.run_safely(14);
        assert_eq!(world.owned_by(0).len() + world.owned_by(1).len(), usize::from(GROUPS));

        world.act(Action::Resume(2));
        world.run_safely(1);

        assert_eq!(world.ends(2), [InvalidReason::ValidityEnded]);
        world.expect_settled_within(10);
        assert_ne!(world.process(2).own.as_ref(), Some(&before));
        world.expect_expiry_before_claims();
    });
}

#[test]
fn f1_a_renewal_that_arrives_after_the_expiry_changes_nothing() {
    each_seed(&Setup::new(3, Mode::Disconnect), |world| {
        world.act(Action::Path(2, ApiPath::RequestsLate(Duration::from_millis(9_500))));
        world.run_safely(25);
        world.act(Action::Path(2, ApiPath::Works));

        world.expect_settled_within(20);
        world.expect_expiry_before_claims();
    });
}

#[test]
fn f2a_a_broker_cut_from_the_api_alone_holds_and_nobody_claims_its_groups() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        let groups = world.owned_by(2);
        world.act(Action::Path(2, ApiPath::RequestsLost));
        for _ in 0..17 {
            world.run_safely(1);
            assert_eq!(world.owned_by(2), groups);
        }
        // At the hold limit it closes; a minute later the others may be sure of it.
        world.run_safely(4);
        assert!(!world.is_valid(2));
        world.run_safely(70);
        assert_eq!(world.owned_by(0).len() + world.owned_by(1).len(), usize::from(GROUPS));
    });
}

#[test]
fn f2b_a_majority_that_holds_is_not_expired_by_the_minority_that_reaches_the_api() {
    each_seed(&Setup::new(5, Mode::Hold), |world| {
        cut_between(world, &[0, 1], &[2, 3, 4]);
        for slot in 2..5 {
            world.act(Action::Path(slot, ApiPath::RequestsLost));
        }
        world.run_safely(16);

        assert!((2..5).all(|slot| world.is_valid(slot)));
    });
}

#[test]
fn f2b_a_minority_that_cannot_renew_closes_and_is_expired_by_consent_of_the_rest() {
    each_seed(&Setup::new(5, Mode::Hold), |world| {
        cut_between(world, &[0, 1], &[2, 3, 4]);
        for slot in 0..2 {
            world.act(Action::Path(slot, ApiPath::RequestsLost));
        }
        world.run_safely(16);

        assert!(!world.is_valid(0) && !world.is_valid(1));
        assert_eq!((2..5).map(|slot| world.owned_by(slot).len()).sum::<usize>(), usize::from(GROUPS));
    });
}

#[test]
fn f2c_who_holds_and_who_expires_count_in_the_same_view_also_when_the_newest_is_another() {
    each_seed(&Setup::new(5, Mode::Hold), |world| {
        // Two members leave the view while the third cannot renew; it goes on naming the view of five.
        world.act(Action::Path(2, ApiPath::RequestsLost));
        world.act(Action::Crash(3, Kubelet::Reports));
        world.act(Action::Crash(4, Kubelet::Reports));
        world.run_safely(4);
        assert_eq!(world.in_view(), ["a", "b", "c"]);
        assert_eq!(world.view().history[&world.member_lease(2).view_number].len(), 5);
        // Granted by a and b it has three of five.
        world.run_safely(8);
        assert!(world.is_valid(2));

        // With b alone it has two of three, but that is not the view it names.
        cut_between(world, &[0], &[2]);
        world.run_safely(8);
        assert!(!world.is_valid(2));
    });
}

#[test]
fn f10_1_of_three_components_the_largest_stays_and_both_others_close() {
    each_seed(&Setup::new(5, Mode::Hold), |world| {
        cut_between(world, &[0, 1, 2], &[3, 4]);
        cut_between(world, &[3], &[4]);
        world.run_safely(18);

        assert_eq!(world.in_view(), ["a", "b", "c"]);
        assert_eq!(world.ends(3), [InvalidReason::Dropped]);
        assert_eq!(world.ends(4), [InvalidReason::Dropped]);
        world.expect_owned_within(3);
    });
}

#[test]
fn f10_2_of_three_that_reach_nobody_exactly_the_one_with_the_lowest_name_stays() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        cut_between(world, &[0], &[1, 2]);
        cut_between(world, &[1], &[2]);
        world.run_safely(18);

        assert_eq!(world.in_view(), ["a"]);
        assert_eq!(world.owned_by(0).len(), usize::from(GROUPS));
    });
}

#[test]
fn f10_3_in_a_chain_one_end_closes_so_that_all_that_stay_reach_each_other() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        cut_between(world, &[0], &[2]);
        world.run_safely(18);

        assert_eq!(world.in_view(), ["a", "b"]);
        assert_eq!(world.ends(2), [InvalidReason::Dropped]);
    });
}

#[test]
fn f10_4_a_link_that_works_one_way_is_no_link() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        world.act(Action::Link(0, 2, false));
        world.run_safely(18);
        assert_eq!(world.in_view(), ["a", "b"]);

        // It joins again when it reaches all that are in, both ways.
        world.run_safely(10);
        assert_eq!(world.in_view(), ["a", "b"]);
        world.act(Action::Link(0, 2, true));
        world.expect_settled_within(10);
    });
}

#[test]
fn f10_5_all_go_by_one_verdict_although_they_see_the_split_at_different_moments() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        cut_between(world, &[0], &[1, 2]);
        world.run_safely(2);
        world.act(Action::WatchStuck(0, true));
        world.run_safely(20);

        assert_eq!(world.in_view(), ["b", "c"]);
        assert_eq!(world.ends(0), [InvalidReason::Dropped]);
        assert!(world.ends(1).is_empty() && world.ends(2).is_empty());
        let verdict = world.view().verdict.as_ref().unwrap();
        assert_eq!(verdict.dropped.len(), 1);
    });
}

#[test]
fn f10_a_lasting_split_is_healed_when_the_links_are() {
    each_seed(&Setup::new(5, Mode::Hold), |world| {
        cut_between(world, &[0, 1], &[2, 3, 4]);
        world.run_safely(30);
        assert_eq!(world.in_view(), ["c", "d", "e"]);
        for a in 0..5 {
            for b in 0..5 {
                world.act(Action::Link(a, b, true));
            }
        }

        world.expect_settled_within(10);
        world.run_safely(20);
        world.expect_balance().unwrap();
    });
}

#[test]
fn f16_a_pod_that_is_gone_proves_nothing_while_its_process_may_run() {
    let mut setup = Setup::new(3, Mode::Disconnect);
    setup.identity = StatefulSetIdentity::Doubted;
    each_seed(&setup, |world| {
        let old = world.current[2];
        let groups = world.owned_by(2);
        // The old process serves on, because it renews; the new one waits for as long as it does.
        world.act(Action::ForceDelete(2));
        world.run_safely(20);
        assert!(world.processes[old].is_valid(world.at));
        assert_eq!(world.owned_by(2), groups);
        assert!(world.process(2).own.is_none());

        world.processes[old].is_alive = false;
        world.expect_settled_within(14);
    });
}

#[test]
fn f16_without_the_kubelets_word_a_group_is_claimed_only_after_the_duration_of_the_lease() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        world.act(Action::Crash(2, Kubelet::Silent));
        let lost = (0..GROUPS).filter(|group| world.owner(PartitionGroup(*group)).is_none()).count();
        assert!(lost > 0);

        let took = world.expect_owned_within(11);

        assert!(took > Duration::from_millis(6_500), "{took:?}");
    });
}

#[test]
fn f16_a_container_that_the_kubelet_saw_terminated_is_dead_at_once() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        world.act(Action::Crash(2, Kubelet::Reports));

        let took = world.expect_owned_within(3);

        assert!(took < Duration::from_millis(1_500), "{took:?}");
        world.expect_expiry_before_claims();
    });
}

#[test]
fn f16_a_process_that_comes_back_in_its_pod_replaces_its_own_lease_at_once() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        world.act(Action::Crash(2, Kubelet::Silent));
        world.run_safely(2);
        world.act(Action::RestartContainer(2));

        let took = world.expect_owned_within(3);

        assert!(took < Duration::from_millis(1_500), "{took:?}");
        world.expect_settled_within(6);
    });
}

#[test]
fn f17_a_recreated_group_lease_ends_above_the_epoch_that_its_state_has_stored() {
    each_seed(&Setup::new(3, Mode::Hold), |world| {
        for group in 0..GROUPS {
            world.stored_epochs.insert(PartitionGroup(group), OwnerEpoch(41));
            world.act(Action::Delete(LeaseKey::Group(PartitionGroup(group))));
        }
        world.run_safely(2);
        for group in 0..GROUPS {
            world.act(Action::Create(LeaseKey::Group(PartitionGroup(group))));
        }
        world.run_safely(3);

        world.expect_owned_within(1);
        for group in 0..GROUPS {
            assert!(world.group_lease(group).epoch > OwnerEpoch(41), "{:?}", world.group_lease(group));
        }
    });
}

#[test]
fn f17_a_member_whose_lease_was_recreated_joins_above_every_epoch_that_others_remember() {
    each_seed(&Setup::new(3, Mode::Disconnect), |world| {
        for _ in 0..3 {
            world.act(Action::RestartContainer(2));
            world.run_safely(3);
        }
        let before = world.process(2).own.clone().unwrap();
        world.act(Action::Crash(2, Kubelet::Silent));
        // No lease and no view tells the next incarnation of the ones before it.
        world.act(Action::Delete(LeaseKey::Member(member(2))));
        world.act(Action::Create(LeaseKey::Member(member(2))));
        world.act(Action::Delete(LeaseKey::View));
        world.act(Action::Create(LeaseKey::View));
        world.act(Action::StartNewPod(2));

        world.expect_settled_within(14);
        assert!(world.process(2).own.as_ref().unwrap().epoch > before.epoch);
        world.run_safely(12);
        world.expect_balance().unwrap();
    });
}

#[test]
fn f17_a_new_broker_on_recreated_leases_ends_above_the_epoch_that_its_state_has_stored() {
    for seed in 0..4 {
        let mut world = World::new(Setup::new(1, Mode::Disconnect), seed);
        world.stored_epochs.insert(PartitionGroup(0), OwnerEpoch(41));
        world.act(Action::Delete(LeaseKey::Group(PartitionGroup(0))));
        world.act(Action::Create(LeaseKey::Group(PartitionGroup(0))));
        world.start_new_pod(0);

        world.expect_settled_within(25);
        world.run_safely(2);

        assert_eq!(world.group_lease(0).epoch, OwnerEpoch(42));
        let owned: BTreeSet<_> = world.process(0).owned.values().copied().collect();
        assert!(owned.contains(&OwnerEpoch(42)));
    }
}
