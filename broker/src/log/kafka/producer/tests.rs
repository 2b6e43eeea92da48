use super::*;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use std::sync::mpsc;
use tidemill_contract::names::Topics;
use tidemill_core::partition::{Offset, Partitioning};

type Answer = Result<Offset, AppendError>;

const PARTITION: Partition = Partition(1);

struct Scene {
    cluster: MockCluster<'static, DefaultProducerContext>,
    appender: Appender,
}

impl Scene {
    fn new() -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("t.log", 2, 1).unwrap();
        let settings = KafkaSettings {
            bootstrap_servers: cluster.bootstrap_servers(),
            topics: Topics::new("t"),
            partitioning: Partitioning::new(2, 1).unwrap(),
            replication_factor: 1,
            min_in_sync_replicas: 1,
            maximum_packet_bytes: 1 << 20,
        };
        Self { appender: Appender::start(Arc::new(settings)).unwrap(), cluster }
    }

    fn append(&self, record: &[u8]) -> (Sequence, mpsc::Receiver<Answer>) {
        let (answer, answered) = mpsc::sync_channel(1);
        let mut place = None;
        let build = &mut |sequence| {
            place = Some(sequence);
            Bytes::copy_from_slice(record)
        };
        self.appender.append(PARTITION, build, Box::new(move |result| answer.send(result).unwrap()));
        (place.unwrap(), answered)
    }
}

#[test]
fn a_refused_record_is_answered_and_the_next_producer_counts_from_0() {
    let scene = Scene::new();
    let (first, answered) = scene.append(b"x");
    assert_eq!((first, answered.recv().unwrap()), (Sequence { producer: 1, sequence: 0 }, Ok(0)));
    let forbidden = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    scene.cluster.request_errors(RDKafkaApiKey::Produce, &[forbidden]);

    let (_, answered) = scene.append(b"x");
    let failed = answered.recv().unwrap();

    let Err(AppendError::ProducerFailed { reason }) = failed else { panic!("{failed:?}") };
    assert!(reason.contains("Topic authorization failed"), "{reason}");
    let next = loop {
        // Until the pump has replaced the producer, appends go to the failed one and are answered so.
        let (place, answered) = scene.append(b"y");
        match answered.recv().unwrap() {
            Ok(_) => break place,
            Err(error) => assert!(matches!(error, AppendError::ProducerFailed { .. }), "{error}"),
        }
    };
    assert_eq!(next, Sequence { producer: 2, sequence: 0 });
}

#[test]
fn appends_wait_for_kafka_and_keep_their_order_beyond_what_the_client_takes() {
    const RECORDS: u32 = 110_000;
    let scene = Scene::new();
    scene.append(b"first").1.recv().unwrap().unwrap();
    scene.cluster.broker_down(1).unwrap();

    let answers: Vec<_> = (0..RECORDS).map(|number| scene.append(&number.to_le_bytes()).1).collect();
    assert!(scene.appender.congestion().is_congested());
    assert!(answers.iter().all(|answer| answer.try_recv() == Err(mpsc::TryRecvError::Empty)));
    scene.cluster.broker_up(1).unwrap();

    let offsets: Vec<_> = answers.iter().map(|answer| answer.recv().unwrap().unwrap()).collect();
    assert_eq!(offsets, (1..=u64::from(RECORDS)).collect::<Vec<_>>());
    assert!(scene.appender.congestion().is_empty());
}

#[test]
fn a_record_that_is_too_large_is_refused_alone() {
    let scene = Scene::new();

    let (_, refused) = scene.append(&vec![0; (1 << 20) + (64 << 10)]);
    let (place, taken) = scene.append(b"x");

    assert!(matches!(refused.recv().unwrap(), Err(AppendError::Refused { partition: 1, .. })));
    assert_eq!(place, Sequence { producer: 1, sequence: 0 }, "a refused record takes no number");
    assert_eq!(taken.recv().unwrap(), Ok(0));
}

#[test]
fn a_closed_log_gives_up_what_kafka_does_not_take() {
    let scene = Scene::new();
    scene.append(b"first").1.recv().unwrap().unwrap();
    scene.cluster.broker_down(1).unwrap();
    let (_, waiting) = scene.append(b"never");

    drop(scene.appender);

    assert_eq!(waiting.recv().unwrap(), Err(AppendError::Closed));
}
