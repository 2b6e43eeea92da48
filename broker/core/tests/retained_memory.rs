//! What retained messages cost. Alone in its process, because it looks at the process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bytestring::ByteString;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidemill_core::message::Message;
use tidemill_core::packet::QoS;
use tidemill_core::retained::{RetainedStore, Search};
use tidemill_core::topic::{TopicFilter, TopicName};

/// Four messages of each: enough to see what one costs; a million costs the same each.
const DEVICES: usize = 50_000;
const LEAVES: [&str; 4] = ["state", "temperature", "humidity", "firmware"];

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

#[test]
fn messages_cost_what_the_store_says_and_few_are_found_among_many_at_once() {
    let mut store = RetainedStore::new();
    let publisher = ByteString::from("one of few publishers");
    let before = resident_bytes();

    for device in 0..DEVICES {
        for leaf in LEAVES {
            let message = Message {
                topic: TopicName::parse(format!("site/{}/device-{device:06}/{leaf}", device % 10)).unwrap(),
                payload: vec![b'x'; 24].into(),
                qos: QoS::AtLeastOnce,
                retain: true,
                properties: None,
                publisher: publisher.clone(),
                publish_time_ms: 0,
            };
            store.set(Arc::new(message.to_compact()), usize::MAX, 0).unwrap();
        }
    }

    let resident = resident_bytes() - before;
    let (each, said) = (resident / store.len(), store.bytes() / store.len());
    println!("{each} bytes resident for each message of 24 bytes, the store says {said}");
    assert_eq!(store.len(), DEVICES * LEAVES.len());
    assert!(each < 500, "{each} bytes for each message");
    assert!((said * 3 / 4..said * 3 / 2).contains(&each), "{each} bytes for each message, {said} said");

    // Three levels and four leaves.
    let filter = TopicFilter::parse("site/3/device-010003/+").unwrap();
    let search = Search { filter: &filter, from: None, visits_max: 7, now_ms: 0 };
    let mut found = 0;
    let rest = store.search(search, |_| {
        found += 1;
        ControlFlow::Continue(())
    });
    assert_eq!((rest, found), (None, LEAVES.len()));
}
