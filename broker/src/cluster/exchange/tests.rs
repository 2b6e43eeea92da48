//! The tables on both ends of a link, without links.

use super::mirror::{Mirror, Outcome};
use super::own::{Delta, OwnRoutes};
use crate::cluster::{LiveClass, Route, RouteChange};
use proptest::prelude::*;
use tidemill_core::member::OwnerEpoch;
use tidemill_core::partition::Partition;
use tidemill_core::topic::TopicFilter;

fn filter(number: u16) -> TopicFilter {
    TopicFilter::parse(format!("f/{number}")).unwrap()
}

fn live(number: u16) -> Route {
    Route::Live { filter: filter(number), class: LiveClass::AnyQos }
}

fn durable(partition: u16, number: u16) -> Route {
    Route::Durable { partition: Partition(partition), filter: filter(number) }
}

fn tell(own: &OwnRoutes, delta: &Delta, mirror: &mut Mirror) -> Outcome {
    let mut outcome = Outcome::Nothing;
    for part in own.delta_frames(delta, 0) {
        assert_eq!(outcome, Outcome::Nothing, "only the last part has an effect");
        outcome = mirror.handle_delta(part).unwrap();
    }
    outcome
}

fn tell_all(own: &OwnRoutes, mirror: &mut Mirror) -> Outcome {
    let mut outcome = Outcome::Nothing;
    for part in own.snapshot(0) {
        assert_eq!(outcome, Outcome::Nothing, "only the last part has an effect");
        outcome = mirror.handle_snapshot(part).unwrap();
    }
    outcome
}

#[test]
fn routes_that_do_not_fit_one_frame_take_effect_together() {
    let mut own = OwnRoutes::default();
    let filters: Vec<_> = (0..20_000).map(filter).collect();
    let mut mirror = Mirror::default();
    tell_all(&own, &mut mirror);

    let delta = own.set_partition(Partition(3), OwnerEpoch(1), filters.clone());
    assert!(own.delta_frames(&delta, 0).len() > 10);
    let Outcome::Changed(changed) = tell(&own, &delta, &mut mirror) else { panic!("not applied") };

    assert_eq!(changed.partitions.len(), 1);
    assert_eq!(changed.partitions[0].added.len(), filters.len());
    let mut late = Mirror::default();
    assert!(matches!(tell_all(&own, &mut late), Outcome::Replaced(_)));
    assert_eq!(late.filters(Partition(3)), mirror.filters(Partition(3)));
}

#[test]
fn a_route_announced_before_needs_no_new_frame_and_names_its_old_sequence() {
    let mut own = OwnRoutes::default();
    own.set_partition(Partition(3), OwnerEpoch(1), vec![]);
    let first = own.change(vec![RouteChange::Add(durable(3, 1))]);
    own.change(vec![RouteChange::Add(live(9))]);

    let again = own.change(vec![RouteChange::Add(durable(3, 1))]);

    assert!(again.delta.is_empty());
    assert_eq!(again.known_at, first.known_at);
}

#[test]
fn durable_routes_of_a_partition_that_this_broker_does_not_speak_for_are_not_announced() {
    let mut own = OwnRoutes::default();

    let announcement = own.change(vec![RouteChange::Add(durable(3, 1))]);

    assert!(announcement.is_foreign);
    assert!(announcement.delta.is_empty());
}

#[test]
fn a_missed_delta_is_found_and_a_snapshot_repairs_it() {
    let mut own = OwnRoutes::default();
    let mut mirror = Mirror::default();
    tell_all(&own, &mut mirror);
    own.change(vec![RouteChange::Add(live(1))]);
    let second = own.change(vec![RouteChange::Add(live(2))]);

    assert_eq!(tell(&own, &second.delta, &mut mirror), Outcome::Diverged);
    assert_eq!(mirror.sequence(), None);
    assert!(matches!(tell_all(&own, &mut mirror), Outcome::Replaced(_)));
    assert!(mirror.sequence().is_some());
}

#[test]
fn what_goes_and_comes_in_one_change_is_told_as_coming_only() {
    let mut own = OwnRoutes::default();
    own.set_partition(Partition(3), OwnerEpoch(1), vec![filter(1)]);
    own.change(vec![RouteChange::Add(live(1))]);
    let both = |route: Route| [RouteChange::Remove(route.clone()), RouteChange::Add(route)];

    let delta = own.change([both(live(1)), both(durable(3, 1))].concat()).delta;

    assert_eq!((delta.live_added.len(), delta.live_removed.len()), (1, 0));
    assert_eq!((delta.partitions[0].added.len(), delta.partitions[0].removed.len()), (1, 0));
}

#[test]
fn one_change_of_very_many_routes_is_told_whole() {
    let mut own = OwnRoutes::default();
    let mut mirror = Mirror::default();
    tell_all(&own, &mut mirror);
    let all = |to: fn(Route) -> RouteChange| (0..20_000).map(move |number| to(live(number)));

    let delta = own
        .change(all(RouteChange::Add).chain(all(RouteChange::Remove)).chain(all(RouteChange::Add)).collect())
        .delta;

    assert_eq!(delta.live_added.len(), 20_000);
    assert!(matches!(tell(&own, &delta, &mut mirror), Outcome::Changed(_)));
}

#[derive(Debug, Clone)]
enum Step {
    Change(bool, Option<u16>, u16),
    Set(u16, u16),
    Release(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<bool>(), proptest::option::of(0_u16..3), 0_u16..6)
            .prop_map(|(add, partition, number)| Step::Change(add, partition, number)),
        (0_u16..3, 0_u16..6).prop_map(|(partition, count)| Step::Set(partition, count)),
        (0_u16..3).prop_map(Step::Release),
    ]
}

proptest! {
    #[test]
    fn a_mirror_fed_with_deltas_equals_one_fed_with_a_snapshot(steps in proptest::collection::vec(step(), 0..60)) {
        let mut own = OwnRoutes::default();
        let mut mirror = Mirror::default();
        tell_all(&own, &mut mirror);
        for (epoch, step) in (1..).zip(steps) {
            let delta = match step {
                Step::Change(add, partition, number) => {
                    let route = partition.map_or(live(number), |partition| durable(partition, number));
                    own.change(vec![if add { RouteChange::Add(route) } else { RouteChange::Remove(route) }]).delta
                }
                Step::Set(partition, count) => {
                    own.set_partition(Partition(partition), OwnerEpoch(epoch), (0..count).map(filter).collect())
                }
                Step::Release(partition) => own.release_partition(Partition(partition)).unwrap_or_default(),
            };
            if !delta.is_empty() {
                prop_assert!(matches!(tell(&own, &delta, &mut mirror), Outcome::Changed(_)));
            }
        }
        let mut fresh = Mirror::default();
        prop_assert!(matches!(tell_all(&own, &mut fresh), Outcome::Replaced(_)));
        for partition in (0..3).map(Partition) {
            prop_assert_eq!(mirror.speaks_for(partition), fresh.speaks_for(partition));
            prop_assert_eq!(mirror.filters(partition), fresh.filters(partition));
        }
    }
}
