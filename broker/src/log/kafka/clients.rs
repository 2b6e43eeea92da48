//! The one place where Kafka clients are configured.

use super::KafkaSettings;
use rdkafka::admin::AdminClient;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, DeliveryResult, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, util::IntoOpaque};
use tidemill_core::partition::PartitionGroup;

/// What a queue of one partition keeps before the fetch of that partition pauses.
const FETCH_AHEAD_KIB: &str = "1024";
/// After how many milliseconds a paused fetch looks again. The default of one second would bound a backlog reader to
/// the queue above per second.
const FETCH_PAUSE_MS: &str = "20";
/// How long Kafka keeps a fetch that finds nothing. It does not delay data.
const FETCH_WAIT_MS: &str = "500";
/// The same for the short-lived reader of the state, which ends at the end of its partitions.
const LOAD_FETCH_WAIT_MS: &str = "20";
/// Bound of one transaction, after which Kafka aborts it.
const TRANSACTION_MS: &str = "10000";

/// Sends the client's words to the log of the broker.
pub(super) struct Context;

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        // It warns of settings that were chosen on purpose.
        let level = if facility == "CONFWARN" { RDKafkaLogLevel::Debug } else { level };
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::warn!(facility, text, "kafka client"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::debug!(facility, text, "kafka client");
            }
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // A reader that reaches the end says so itself.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
            tracing::trace!(reason, "kafka client");
        } else {
            tracing::warn!(%error, reason, "kafka client");
        }
    }
}

impl ConsumerContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

pub(super) type Consumer = BaseConsumer<Context>;
pub(super) type Admin = AdminClient<Context>;
pub(super) type TransactionalProducer = BaseProducer<Context>;

fn base(settings: &KafkaSettings, role: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &settings.bootstrap_servers)
        .set("client.id", format!("tidemill-{role}"))
        .set("topic.metadata.refresh.interval.ms", "60000")
        .set("reconnect.backoff.max.ms", "2000")
        .set("log.connection.close", "false")
        .set_log_level(RDKafkaLogLevel::Warning);
    config
}

fn producer(settings: &KafkaSettings, role: &str) -> ClientConfig {
    let mut config = base(settings, role);
    config
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("message.max.bytes", settings.message_bytes_max().to_string());
    config
}

fn consumer(settings: &KafkaSettings, role: &str, isolation: &str) -> ClientConfig {
    let mut config = base(settings, role);
    let receive = (2 * settings.message_bytes_max()).clamp(100_000_000, 1_000_000_000);
    config
        .set("isolation.level", isolation)
        .set("auto.offset.reset", "error")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("receive.message.max.bytes", receive.to_string())
        .set("message.max.bytes", settings.message_bytes_max().to_string());
    config
}

/// A consumer that is assigned partitions by hand. The client insists on a group name; no group is ever joined and no
/// offset committed.
fn assigned_consumer(
    settings: &KafkaSettings,
    role: &str,
    isolation: &str,
    fetch_wait_ms: &str,
) -> KafkaResult<Consumer> {
    let mut config = consumer(settings, role, isolation);
    config
        .set("group.id", format!("{}.unused", settings.topics.log()))
        .set("enable.partition.eof", "true")
        .set("fetch.wait.max.ms", fetch_wait_ms)
        .set("queued.max.messages.kbytes", FETCH_AHEAD_KIB)
        .set("fetch.queue.backoff.ms", FETCH_PAUSE_MS);
    config.create_with_context(Context)
}

/// Appends to the log: never gives up, and if Kafka refuses a record for good the producer ends with it, so that nothing
/// is stored behind a hole.
pub(super) fn log_producer<C>(settings: &KafkaSettings, context: C) -> KafkaResult<ThreadedProducer<C>>
where
    C: ProducerContext + 'static,
    C::DeliveryOpaque: IntoOpaque,
{
    let mut config = producer(settings, "log");
    config
        .set("message.timeout.ms", "0")
        .set("enable.gapless.guarantee", "true")
        .set("linger.ms", "1")
        .set("queue.buffering.max.messages", "100000")
        .set("queue.buffering.max.kbytes", "131072");
    ThreadedProducer::from_config_and_context(&config, context)
}

/// Reads the log. It is not transactional, and what is in it is true whoever wrote it.
pub(super) fn log_consumer(settings: &KafkaSettings) -> KafkaResult<Consumer> {
    assigned_consumer(settings, "log-reader", "read_uncommitted", FETCH_WAIT_MS)
}

/// Asks for the high watermark: the end of everything written, whether or not its transaction ended.
pub(super) fn high_watermark_probe(settings: &KafkaSettings) -> KafkaResult<Consumer> {
    consumer(settings, "probe", "read_uncommitted").create_with_context(Context)
}

/// Writes the state of `group`; whoever initialises it fences all former ones.
pub(super) fn state_producer(
    settings: &KafkaSettings,
    group: PartitionGroup,
) -> KafkaResult<TransactionalProducer> {
    let mut config = producer(settings, "state");
    config
        .set("transactional.id", settings.topics.transactional_id(group.0))
        .set("transaction.timeout.ms", TRANSACTION_MS)
        .set("linger.ms", "0");
    config.create_with_context(Context)
}

/// Reads the state of a group once. What it is told as the end is the last stable offset.
pub(super) fn state_consumer(settings: &KafkaSettings) -> KafkaResult<Consumer> {
    assigned_consumer(settings, "state-reader", "read_committed", LOAD_FETCH_WAIT_MS)
}

pub(super) fn admin(settings: &KafkaSettings) -> KafkaResult<Admin> {
    AdminClient::from_config_and_context(&base(settings, "admin"), Context)
}
