//! The checker finds brokers that break a rule: without this, a simulation that passes says nothing.

use super::faults::{Action, Kubelet};
use super::happening::ApiPath;
use super::process::Mutation;
use super::world::{Setup, World};
use tidemill_core::membership::timings::Mode;

/// Runs a schedule with the mutation for some seeds; how many violations were found.
fn violations(setup: &Setup, schedule: impl Fn(&mut World)) -> Vec<String> {
    let found = (0..10).filter_map(|seed| {
        let mut world = World::running(setup.clone(), 9_000 + seed);
        world.run(std::time::Duration::from_secs(14));
        schedule(&mut world);
        world.checker.violation
    });
    found.collect()
}

#[test]
fn a_broker_that_goes_on_after_its_validity_has_ended_is_found_as_a_second_owner() {
    let mut setup = Setup::new(3, Mode::Disconnect);
    let schedule = |world: &mut World| {
        world.act(Action::Path(2, ApiPath::RequestsLost));
        world.run(std::time::Duration::from_secs(20));
    };
    assert_eq!(violations(&setup, schedule), Vec::<String>::new());

    setup.mutation = Some(Mutation::RenewsAfterItsEnd);

    let found = violations(&setup, schedule);
    assert_eq!(found.len(), 10);
    assert!(
        found.iter().all(|violation| violation.contains("own") || violation.contains("expired")),
        "{found:?}"
    );
}

#[test]
fn a_broker_that_consents_and_grants_all_the_same_is_found() {
    let mut setup = Setup::new(5, Mode::Hold);
    let schedule = |world: &mut World| {
        world.act(Action::Path(2, ApiPath::RequestsLost));
        world.run(std::time::Duration::from_secs(16));
    };
    assert_eq!(violations(&setup, schedule), Vec::<String>::new());

    setup.mutation = Some(Mutation::ConsentsToEverything);

    assert_eq!(violations(&setup, schedule).len(), 10);
}

#[test]
fn an_owner_that_serves_after_its_release_is_found_as_a_second_owner() {
    let mut setup = Setup::new(3, Mode::Disconnect);
    let schedule = |world: &mut World| {
        world.act(Action::Crash(0, Kubelet::Reports));
        world.run(std::time::Duration::from_secs(3));
        world.act(Action::RestartContainer(0));
        world.run(std::time::Duration::from_secs(20));
    };
    assert_eq!(violations(&setup, schedule), Vec::<String>::new());

    setup.mutation = Some(Mutation::ServesAfterRelease);

    assert!(!violations(&setup, schedule).is_empty());
}
