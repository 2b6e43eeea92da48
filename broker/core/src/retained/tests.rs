use super::*;
use crate::packet::{PublishProperties, QoS};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Few levels, so that topics and filters meet; `!` sorts before `/`, and one level is empty.
const LEVELS: [&str; 5] = ["a", "a!", "b", "", "$s"];
const FILTERS: [&str; 12] =
    ["#", "+", "a", "a/#", "+/b", "a/+/b", "+/+", "a!/+", "$s/#", "$s/+/b", "/#", "+/+/#"];

fn name(text: &str) -> TopicName {
    TopicName::parse(text).unwrap()
}

fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).unwrap()
}

fn message(topic: &str, payload: &str, expiry_secs: Option<u32>, now_ms: u64) -> Arc<Message> {
    let properties = PublishProperties { message_expiry_secs: expiry_secs, ..PublishProperties::default() };
    Arc::new(Message {
        topic: name(topic),
        payload: payload.to_owned().into(),
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: expiry_secs.map(|_| Box::new(properties)),
        publisher: "p".into(),
        publish_time_ms: now_ms,
    })
}

/// Everything that matches, with at most `visits_max` visits in one call.
fn collect(store: &RetainedStore, filter: &TopicFilter, visits_max: usize, now_ms: u64) -> Vec<String> {
    let mut topics = Vec::new();
    let mut from = None;
    loop {
        let search = Search { filter, from: from.as_ref(), visits_max, now_ms };
        from = store.search(search, |message| {
            topics.push(message.topic.to_string());
            ControlFlow::Continue(())
        });
        if from.is_none() {
            return topics;
        }
    }
}

#[test]
fn a_message_that_does_not_fit_is_refused_and_the_former_one_stays() {
    let mut store = RetainedStore::new();
    store.set(message("a/b", "small", None, 0), usize::MAX, 0).unwrap();
    let bytes_max = store.bytes() + 10;

    let larger = store.set(message("a/b", "much larger than small", None, 0), bytes_max, 0);
    let another = store.set(message("a/c", "small", None, 0), bytes_max, 0);

    assert_eq!(larger, Err(StoreFull { bytes: bytes_max - 10 + 17 }));
    assert!(matches!(another, Err(StoreFull { .. })), "{another:?}");
    assert_eq!(store.get(&name("a/b"), 0).unwrap().payload, "small");
    assert_eq!((store.len(), store.bytes()), (1, bytes_max - 10));
    assert!(store.set(message("a/b", "fits: 15 bytes.", None, 0), bytes_max, 0).is_ok());
}

#[test]
fn an_empty_payload_clears_and_gives_all_memory_back() {
    let mut store = RetainedStore::new();
    for topic in ["a", "a/b/c", "a/b/d", "$s/x"] {
        store.set(message(topic, "x", Some(5), 0), usize::MAX, 0).unwrap();
    }

    for topic in ["a/b/c", "a", "$s/x", "a/b/d", "a/b", "nothing"] {
        store.set(message(topic, "", None, 0), 0, 0).unwrap();
    }

    assert_eq!((store.len(), store.bytes(), store.is_empty()), (0, 0, true));
    assert!(!store.has_expired(u64::MAX));
}

#[test]
fn what_has_expired_is_neither_found_nor_kept() {
    let mut store = RetainedStore::new();
    for (topic, expiry_secs) in [("t/1", Some(1)), ("t/2", Some(2)), ("t/3", None), ("t/4", Some(0))] {
        store.set(message(topic, "x", expiry_secs, 1_000), usize::MAX, 1_000).unwrap();
    }
    assert_eq!(store.len(), 3, "what expires at once is not retained");
    assert_eq!(collect(&store, &filter("t/+"), 100, 1_999), ["t/1", "t/2", "t/3"]);

    assert_eq!(collect(&store, &filter("t/+"), 100, 2_000), ["t/2", "t/3"]);
    assert!(store.get(&name("t/1"), 2_000).is_none());
    assert_eq!(store.sweep(10_000, 1).len(), 1);
    assert_eq!(store.sweep(10_000, 10).len(), 1);
    assert_eq!(store.sweep(u64::MAX, 10).len(), 0);
    assert_eq!(store.len(), 1);

    store.set(message("t/3", "later", Some(0), 1_000), usize::MAX, 1_000).unwrap();
    assert_eq!((store.len(), store.bytes()), (0, 0), "it replaced the former message before it expired");
}

#[test]
fn many_topics_below_one_level_come_in_order_while_they_come_and_go() {
    let mut store = RetainedStore::new();
    let mut expected = std::collections::BTreeSet::new();
    let all = filter("t/+");
    // 37 and 50 have no common divisor, so that every number comes once, in no order.
    let numbers: Vec<usize> = (0..50).map(|step| step * 37 % 50).collect();
    for number in &numbers {
        let topic = format!("t/{number:02}");
        store.set(message(&topic, "x", None, 0), usize::MAX, 0).unwrap();
        expected.insert(topic);
        assert_eq!(collect(&store, &all, 7, 0), Vec::from_iter(expected.clone()));
    }

    for number in numbers {
        let topic = format!("t/{number:02}");
        store.clear(&name(&topic));
        expected.remove(&topic);
        assert_eq!(collect(&store, &all, 7, 0), Vec::from_iter(expected.clone()));
    }
    assert_eq!(store.bytes(), 0);
}

#[test]
fn a_search_visits_only_what_can_match() {
    let mut store = RetainedStore::new();
    for number in 0..1_000 {
        for leaf in ["b", "c", "d"] {
            store.set(message(&format!("a/{number}/{leaf}"), "x", None, 0), usize::MAX, 0).unwrap();
            store.set(message(&format!("z/{number}/{leaf}"), "x", None, 0), usize::MAX, 0).unwrap();
        }
    }
    // One for `a`, and one for each level below it that can match.
    for (text, visits, count) in
        [("a/7/b", 3, 1), ("a/+/b", 2_001, 1_000), ("a/+/x", 1_001, 0), ("a/5/#", 5, 3), ("nothing/#", 1, 0)]
    {
        let filter = filter(text);
        let search = Search { filter: &filter, from: None, visits_max: visits, now_ms: 0 };
        let mut found = 0;
        let rest = store.search(search, |_| {
            found += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((rest, found), (None, count), "{text} in {visits} visits");
    }
}

#[test]
fn a_message_that_was_not_taken_comes_first_when_the_search_goes_on() {
    let mut store = RetainedStore::new();
    for topic in ["t", "t/1", "t/1/x", "t/2"] {
        store.set(message(topic, "old", None, 0), usize::MAX, 0).unwrap();
    }
    let all = filter("#");
    let mut taken = Vec::new();
    let search = Search { filter: &all, from: None, visits_max: 100, now_ms: 0 };
    let from = store.search(search, |message| {
        if taken.len() == 2 {
            return ControlFlow::Break(());
        }
        taken.push(message.topic.to_string());
        ControlFlow::Continue(())
    });

    store.set(message("t/1/x", "new", None, 0), usize::MAX, 0).unwrap();
    store.set(message("t/1/a", "passed already", None, 0), usize::MAX, 0).unwrap();
    store.clear(&name("t/2"));
    let search = Search { from: from.as_ref(), ..search };
    let from = store.search(search, |message| {
        taken.push(format!("{} {:?}", message.topic, message.payload));
        ControlFlow::Continue(())
    });

    assert_eq!((from, taken), (None, vec!["t".into(), "t/1".into(), "t/1/x b\"new\"".into()]));
}

#[derive(Debug, Clone)]
enum Step {
    /// Payload 0 clears.
    Set {
        topic: String,
        payload: u8,
        expiry_secs: Option<u32>,
    },
    Wait {
        ms: u64,
    },
    Sweep {
        messages_max: usize,
    },
}

fn topic() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(&LEVELS[..]), 1..4)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("a topic is not empty", |topic| !topic.is_empty())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (topic(), 0..4_u8, proptest::option::of(0..4_u32)).prop_map(|(topic, payload, expiry_secs)| {
            Step::Set { topic, payload, expiry_secs }
        }),
        1 => (0..2_000_u64).prop_map(|ms| Step::Wait { ms }),
        1 => (0..4_usize).prop_map(|messages_max| Step::Sweep { messages_max }),
    ]
}

/// The oracle: a list of topics, searched one by one. Levels order it.
#[derive(Default)]
struct Model {
    now_ms: u64,
    messages: BTreeMap<Vec<String>, Arc<Message>>,
}

impl Model {
    fn key(topic: &str) -> Vec<String> {
        topic.split('/').map(String::from).collect()
    }

    fn apply(&mut self, step: &Step, store: &mut RetainedStore) {
        match step {
            Step::Set { topic, payload, expiry_secs } => {
                let payload = "x".repeat(usize::from(*payload));
                let message = message(topic, &payload, *expiry_secs, self.now_ms);
                store.set(Arc::clone(&message), usize::MAX, self.now_ms).unwrap();
                if payload.is_empty() || *expiry_secs == Some(0) {
                    self.messages.remove(&Self::key(topic));
                } else {
                    self.messages.insert(Self::key(topic), message);
                }
            }
            Step::Wait { ms } => self.now_ms += ms,
            Step::Sweep { messages_max } => {
                let swept = store.sweep(self.now_ms, *messages_max);
                for message in &swept {
                    assert!(message.is_expired(self.now_ms));
                    self.messages.remove(&Self::key(message.topic.as_str()));
                }
                assert!(swept.len() == *messages_max || !store.has_expired(self.now_ms));
            }
        }
    }

    fn matching(&self, filter: &TopicFilter) -> Vec<String> {
        let live = self.messages.values().filter(|message| !message.is_expired(self.now_ms));
        let matching = live.filter(|message| filter.matches(&message.topic));
        matching.map(|message| message.topic.to_string()).collect()
    }
}

proptest! {
    #[test]
    fn the_store_holds_and_finds_what_a_plain_list_does(
        steps in proptest::collection::vec(step(), 1..80),
        visits_max in 1_usize..20,
    ) {
        let (mut store, mut model) = (RetainedStore::new(), Model::default());
        for step in &steps {
            model.apply(step, &mut store);
            prop_assert_eq!(store.len(), model.messages.len());
        }

        for text in FILTERS {
            let filter = filter(text);
            prop_assert_eq!(collect(&store, &filter, visits_max, model.now_ms), model.matching(&filter), "{}", text);
        }
        for message in model.messages.values() {
            let expected = (!message.is_expired(model.now_ms)).then_some(message);
            prop_assert_eq!(store.get(&message.topic, model.now_ms), expected);
        }
        let mut fresh = RetainedStore::new();
        for message in model.messages.values().rev() {
            fresh.set(Arc::clone(message), usize::MAX, message.publish_time_ms).unwrap();
        }
        prop_assert_eq!(store.bytes(), fresh.bytes(), "bytes depend on what is there alone");
    }

    /// The store changes between the calls of one search.
    #[test]
    fn a_search_that_goes_on_brings_what_stays_exactly_once_and_never_an_old_version(
        before in proptest::collection::vec(step(), 1..60),
        during in proptest::collection::vec(step(), 1..40),
        filter_number in 0..FILTERS.len(),
        visits_max in 1_usize..5,
    ) {
        let (mut store, mut model) = (RetainedStore::new(), Model::default());
        for step in &before {
            model.apply(step, &mut store);
        }
        let filter = filter(FILTERS[filter_number]);
        let mut stayed = model.matching(&filter);
        let mut found: Vec<Vec<String>> = Vec::new();
        let (mut from, mut steps) = (None, during.iter());
        loop {
            let search = Search { filter: &filter, from: from.as_ref(), visits_max, now_ms: model.now_ms };
            let mut versions = Vec::new();
            from = store.search(search, |message| {
                versions.push(Arc::clone(message));
                ControlFlow::Continue(())
            });
            for message in versions {
                let key = Model::key(message.topic.as_str());
                prop_assert!(filter.matches(&message.topic) && !message.is_expired(model.now_ms));
                prop_assert_eq!(model.messages.get(&key), Some(&message), "the version of this moment");
                prop_assert!(found.last().is_none_or(|last| *last < key), "in order, each once");
                found.push(key);
            }
            if from.is_none() {
                break;
            }
            if let Some(step) = steps.next() {
                model.apply(step, &mut store);
                let matching = model.matching(&filter);
                stayed.retain(|topic| matching.contains(topic));
            }
        }
        for topic in stayed {
            prop_assert!(found.contains(&Model::key(&topic)), "{} was there all the time", topic);
        }
    }
}
