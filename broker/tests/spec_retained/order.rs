//! One order of versions for each topic, whoever publishes and subscribes at the same time. Straight at the router:
//! sockets are too slow to meet each other often.

use super::*;
use std::num::NonZeroU16;
use std::sync::{Arc, Barrier};
use std::task::Poll;
use tidemill_broker::cluster::LiveClass;
use tidemill_broker::mailbox::{Flush, Kept, Mailbox, MailboxContext, MailboxLimits, OpenedClient};
use tidemill_broker::router::{LiveSubscription, PublishDone, RetainedProgress, RetainedRequest, Router};
use tidemill_codec::Encoder;
use tidemill_core::message::Message;
use tidemill_core::session::timers::KeepAlive;
use tidemill_core::topic::TopicFilter;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A mailbox that is subscribed to `t`, and the socket behind it.
struct Subscriber {
    mailbox: Arc<Mailbox>,
    client: Client,
    writing: JoinHandle<()>,
}

impl Subscriber {
    async fn new(router: &Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(Client::open(address, Version::V3_1_1), async {
            listener.accept().await.unwrap().0
        });
        let (_, writer) = accepted.into_split();
        let writer = Arc::new(writer);
        let context = MailboxContext {
            limits: MailboxLimits { messages: usize::MAX, bytes: usize::MAX },
            metrics: router.metrics().clone(),
            may_acknowledge: Box::new(|| true),
        };
        let mailbox = Mailbox::new(Arc::new(context), Flush::PlainTcp(Arc::clone(&writer)));
        mailbox.open(OpenedClient {
            client_id: "c".into(),
            encoder: Encoder::new(Version::V3_1_1, None),
            window: NonZeroU16::MIN,
            kept: Kept::Nothing,
            topic_alias_maximum: 0,
            receive_maximum: 1,
            keep_alive: KeepAlive::of_connect(0, 0),
        });
        // What the connection's task does when the socket was full.
        let writing = tokio::spawn({
            let mailbox = Arc::clone(&mailbox);
            std::future::poll_fn(move |context| -> Poll<()> {
                while mailbox.poll_state(context).is_blocked {
                    let socket: &TcpStream = (*writer).as_ref();
                    match socket.poll_write_ready(context) {
                        Poll::Ready(_) => mailbox.handle_writable(),
                        Poll::Pending => break,
                    }
                }
                Poll::Pending
            })
        });
        let subscription = LiveSubscription {
            filter: TopicFilter::parse("t").unwrap(),
            options: options(QoS::AtMostOnce),
            identifier: None,
            class: LiveClass::AnyQos,
            replaces: None,
        };
        router.subscribe_live(&mailbox, vec![subscription]).await;
        Self { mailbox, client, writing }
    }

    async fn receive(&mut self) -> Seen {
        Seen::of(&self.client.receive().await, Version::V3_1_1)
    }
}

fn publish_retained(router: &Router, cache: &mut RouteCache, payload: String) {
    let message = Message {
        topic: TopicName::parse("t").unwrap(),
        payload: payload.into(),
        qos: QoS::AtMostOnce,
        retain: true,
        properties: None,
        publisher: "p".into(),
        publish_time_ms: 0,
    };
    let mut turn = Turn::begin(router.metrics());
    router.publish(&Arc::new(message), cache, PublishDone::Nobody, &mut turn);
    turn.finish();
}

fn send_retained(router: &Router, mailbox: &Arc<Mailbox>) {
    let filter = TopicFilter::parse("t").unwrap();
    let mut request =
        RetainedRequest { filter, qos: QoS::AtMostOnce, identifiers: None, no_local: None, from: None };
    let mut turn = Turn::begin(router.metrics());
    let progress = router.deliver_retained(&mut request, mailbox, &mut turn);
    turn.finish();
    assert_eq!(progress, RetainedProgress::Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_subscription_ever_gets_an_older_version_after_a_newer_one() {
    const VERSIONS: u32 = 20_000;

    let broker = Broker::start().await;
    let router = Arc::clone(&broker.data_path.router);
    let mut subscriber = Subscriber::new(&router).await;
    let publishing = std::thread::spawn({
        let router = Arc::clone(&router);
        move || {
            let mut cache = RouteCache::new(Publisher::Other);
            (1..=VERSIONS).for_each(|version| publish_retained(&router, &mut cache, version.to_string()));
        }
    });
    let sending = std::thread::spawn({
        let mailbox = Arc::clone(&subscriber.mailbox);
        move || (0..VERSIONS).for_each(|_| send_retained(&router, &mailbox))
    });

    let mut last = 0;
    while last < VERSIONS {
        let version = subscriber.receive().await.payload.parse().unwrap();
        assert!(version >= last, "{version} after {last}");
        last = version;
    }
    publishing.join().unwrap();
    sending.join().unwrap();
    subscriber.writing.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_subscription_got_last_is_what_is_retained_also_with_several_publishers() {
    const ROUNDS: usize = 3_000;

    let broker = Broker::start().await;
    let router = Arc::clone(&broker.data_path.router);
    let mut subscriber = Subscriber::new(&router).await;
    let barrier = Arc::new(Barrier::new(2));
    let publishing = ["p", "q"].map(|name| {
        let (router, barrier) = (Arc::clone(&router), Arc::clone(&barrier));
        let mailbox = Arc::clone(&subscriber.mailbox);
        std::thread::spawn(move || {
            let mut cache = RouteCache::new(Publisher::Other);
            for round in 0..ROUNDS {
                barrier.wait();
                publish_retained(&router, &mut cache, format!("{name} {round}"));
                if barrier.wait().is_leader() {
                    send_retained(&router, &mailbox);
                }
            }
        })
    });

    for round in 0..ROUNDS {
        let [first, second, retained] =
            [subscriber.receive().await, subscriber.receive().await, subscriber.receive().await];
        assert!(!first.retain && !second.retain && retained.retain, "round {round}");
        assert_eq!(second.payload, retained.payload, "after {}", first.payload);
    }
    for publisher in publishing {
        publisher.join().unwrap();
    }
    subscriber.writing.abort();
}
