//! Rules that one key alone cannot say.

mod addresses;

use super::{
    Config, Coordination, Durability, Limits, SharedSubscriptions, default_partition_groups,
    default_partitions,
};
use addresses::is_host_and_port;
use std::borrow::Cow;

/// What is wrong with a config that parsed. Each message names the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number is outside its bounds.
    #[error("{key} is {value}, allowed is {allowed}")]
    OutOfRange {
        /// The key as written in the file.
        key: &'static str,
        /// What was given.
        value: u64,
        /// What is allowed, in words.
        allowed: &'static str,
    },
    /// A key that another key asks for is missing.
    #[error("{key} is missing: {reason}")]
    Missing {
        /// The key as written in the file.
        key: &'static str,
        /// Why it is needed.
        reason: &'static str,
    },
    /// A key that cannot stand as it is, or not beside another one.
    #[error("{key}: {reason}")]
    Conflict {
        /// The key as written in the file.
        key: Cow<'static, str>,
        /// Why it cannot stand.
        reason: &'static str,
    },
    /// An address that is not `host:port`.
    #[error("{key} is '{value}', expected host:port with an IP address")]
    Address {
        /// The key as written in the file.
        key: String,
        /// What was given.
        value: String,
    },
    /// A name that cannot stand where it is used.
    #[error("{key} is '{value}', allowed is {allowed}")]
    Name {
        /// The key as written in the file.
        key: Cow<'static, str>,
        /// What was given.
        value: String,
        /// What is allowed, in words.
        allowed: &'static str,
    },
    /// Two names or addresses that must differ.
    #[error("{key} is '{value}', as {other} is; they must differ")]
    Same {
        /// The key as written in the file.
        key: String,
        /// The key of the other one.
        other: String,
        /// What both are.
        value: String,
    },
    /// A listener beyond loopback without a decision about access.
    #[error(
        "{key} is {address}, open to anybody: configure auth, or allow it with auth.anonymous (--allow-anonymous)"
    )]
    OpenListener {
        /// The key as written in the file.
        key: String,
        /// Where it would listen.
        address: String,
    },
}

impl Config {
    /// Checks what parsing cannot: bounds, keys that need each other, and that nothing is open by accident.
    ///
    /// # Errors
    ///
    /// The first [`ConfigError`] found; the broker must not start with such a config.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_partitioning()?;
        if let Some(threads) = self.threads {
            range("threads", u64::from(threads), 1..=1_024, "1 to 1024")?;
        }
        self.check_embedded()?;
        self.check_shared_subscriptions()?;
        self.check_limits()?;
        self.sessions.check()?;
        self.check_mqtt()?;
        self.check_names()?;
        self.check_kafka()?;
        self.check_membership()?;
        self.check_paths()?;
        self.check_addresses()
    }

    /// Partitions and partition groups of whichever log is configured.
    #[must_use]
    pub fn partitioning(&self) -> (u16, u16) {
        let (partitions, groups) = match (&self.kafka, &self.embedded) {
            (Some(kafka), _) => (kafka.partitions, kafka.partition_groups),
            (None, Some(embedded)) => (embedded.partitions, embedded.partition_groups),
            (None, None) => (default_partitions(), None),
        };
        (partitions, groups.unwrap_or_else(|| default_partition_groups(partitions)))
    }

    fn check_partitioning(&self) -> Result<(), ConfigError> {
        let (partitions, groups) = self.partitioning();
        let (partitions_key, groups_key, groups_allowed) = match &self.kafka {
            Some(_) => ("kafka.partitions", "kafka.partitionGroups", "1 to kafka.partitions"),
            None => ("embedded.partitions", "embedded.partitionGroups", "1 to embedded.partitions"),
        };
        range(partitions_key, u64::from(partitions), 1..=64, "1 to 64")?;
        range(groups_key, u64::from(groups), 1..=u64::from(partitions), groups_allowed)
    }

    fn check_embedded(&self) -> Result<(), ConfigError> {
        let Some(embedded) = &self.embedded else { return Ok(()) };
        if self.kafka.is_some() {
            return Err(conflict("embedded", "with kafka everything is in Kafka; leave one of them out"));
        }
        let Some(interval) = embedded.sync_interval_ms else { return Ok(()) };
        if embedded.durability != Durability::Interval {
            let reason = "it only has a meaning with embedded.durability: interval";
            return Err(conflict("embedded.syncIntervalMs", reason));
        }
        range("embedded.syncIntervalMs", u64::from(interval), 1..=60_000, "1 to 60000")
    }

    fn check_shared_subscriptions(&self) -> Result<(), ConfigError> {
        let is_served = self.coordination == Coordination::Local;
        if !is_served && self.shared_subscriptions != SharedSubscriptions::default() {
            let reason = "coordination: kubernetes does not serve shared subscriptions yet";
            return Err(conflict("sharedSubscriptions", reason));
        }
        self.shared_subscriptions.check()
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        let packet = u64::from(limits.maximum_packet_bytes);
        range("limits.maximumPacketBytes", packet, 128..=268_435_455, "128 to 268435455")?;
        for (key, value) in
            [("limits.receiveMaximum", limits.receive_maximum), ("limits.inFlight", limits.in_flight)]
        {
            range(key, u64::from(value), 1..=65_535, "1 to 65535")?;
        }
        for (key, value) in [
            ("limits.connections", limits.connections),
            ("limits.mailboxMessages", limits.mailbox_messages),
            ("limits.mailboxBytes", limits.mailbox_bytes),
            ("limits.subscriptions", limits.subscriptions),
        ] {
            range(key, u64::from(value), 1..=u64::from(u32::MAX), "at least 1")?;
        }
        range("limits.retainedBytes", limits.retained_bytes, 1..=u64::MAX, "at least 1")
    }

    fn check_mqtt(&self) -> Result<(), ConfigError> {
        if let Some(secs) = self.mqtt.maximum_keep_alive_secs {
            range("mqtt.maximumKeepAliveSecs", u64::from(secs), 1..=65_535, "1 to 65535")?;
        }
        range("mqtt.sysIntervalSecs", u64::from(self.mqtt.sys_interval_secs), 0..=86_400, "0 to 86400")?;
        if let Some(text) = &self.mqtt.response_information
            && (text.is_empty() || text.len() > RESPONSE_INFORMATION_BYTES_MAX || text.contains('\0'))
        {
            return Err(conflict("mqtt.responseInformation", "1 to 1024 bytes, without U+0000"));
        }
        Ok(())
    }

    /// Names end up in leases, topics of Kafka, certificates and paths.
    fn check_names(&self) -> Result<(), ConfigError> {
        let names = [("member", self.member.as_deref()), ("cluster", Some(&*self.cluster.0))];
        for (key, name) in names {
            let Some(name) = name else { continue };
            let (is_allowed, allowed) = match self.coordination {
                Coordination::Local => (is_plain_name(name), PLAIN_NAME),
                Coordination::Kubernetes => (is_dns_name(name), DNS_NAME),
            };
            if !is_allowed {
                return Err(ConfigError::Name { key: key.into(), value: name.to_owned(), allowed });
            }
        }
        Ok(())
    }

    fn check_kafka(&self) -> Result<(), ConfigError> {
        let Some(kafka) = &self.kafka else { return Ok(()) };
        if kafka.bootstrap_servers.trim().is_empty() {
            return Err(ConfigError::Missing {
                key: "kafka.bootstrapServers",
                reason: "the brokers of Kafka",
            });
        }
        if !kafka.bootstrap_servers.split(',').all(is_host_and_port) {
            return Err(ConfigError::Name {
                key: "kafka.bootstrapServers".into(),
                value: kafka.bootstrap_servers.clone(),
                allowed: "host:port,host:port",
            });
        }
        let (replicas, in_sync) = (kafka.replication_factor, kafka.min_in_sync_replicas);
        for (key, value) in [("kafka.replicationFactor", replicas), ("kafka.minInSyncReplicas", in_sync)] {
            if value < 1 {
                return Err(conflict(key, "it must be at least 1"));
            }
        }
        if in_sync > replicas {
            let reason = "it must not exceed kafka.replicationFactor, or nothing could be written";
            return Err(conflict("kafka.minInSyncReplicas", reason));
        }
        Ok(())
    }

    fn check_paths(&self) -> Result<(), ConfigError> {
        if self.data.directory.as_os_str().is_empty() {
            let reason = "what clients must not lose is kept there";
            return Err(ConfigError::Missing { key: "data.directory", reason });
        }
        let Some(tls) = self.peers.as_ref().map(|peers| &peers.tls) else { return Ok(()) };
        for (key, file) in [
            ("peers.tls.caFile", &tls.ca_file),
            ("peers.tls.certificateFile", &tls.certificate_file),
            ("peers.tls.keyFile", &tls.key_file),
        ] {
            if file.as_os_str().is_empty() {
                return Err(ConfigError::Missing { key, reason: "links between brokers are mutual TLS" });
            }
        }
        Ok(())
    }

    fn check_membership(&self) -> Result<(), ConfigError> {
        if self.coordination == Coordination::Kubernetes {
            if self.kafka.is_none() {
                return Err(ConfigError::Missing {
                    key: "kafka",
                    reason: "coordination: kubernetes shares one log",
                });
            }
            if self.peers.is_none() {
                return Err(ConfigError::Missing {
                    key: "peers",
                    reason: "coordination: kubernetes links the brokers",
                });
            }
            if self.limits.retained_bytes != Limits::default().retained_bytes {
                let reason = "with coordination: kubernetes nothing is retained yet";
                return Err(conflict("limits.retainedBytes", reason));
            }
        }
        let membership = &self.membership;
        if let (Some(renew), Some(stop), Some(duration)) =
            (membership.renew_interval_secs, membership.stop_after_secs, membership.lease_duration_secs)
        {
            if renew == 0 || stop <= 2 * renew || duration < stop + 3 {
                return Err(conflict(
                    "membership",
                    "membership.stopAfterSecs must exceed twice membership.renewIntervalSecs, and \
                     membership.leaseDurationSecs must exceed membership.stopAfterSecs by 3",
                ));
            }
            return Ok(());
        }
        let timings = [
            ("membership.renewIntervalSecs", membership.renew_interval_secs),
            ("membership.stopAfterSecs", membership.stop_after_secs),
            ("membership.leaseDurationSecs", membership.lease_duration_secs),
        ];
        match timings.iter().find(|(_, secs)| secs.is_none()) {
            Some((key, _)) if timings.iter().any(|(_, secs)| secs.is_some()) => Err(ConfigError::Missing {
                key,
                reason: "membership.renewIntervalSecs, membership.stopAfterSecs and membership.leaseDurationSecs come \
                         together",
            }),
            Some(_) | None => Ok(()),
        }
    }
}

const RESPONSE_INFORMATION_BYTES_MAX: usize = 1_024;
const PLAIN_NAME: &str = "1 to 253 letters, digits, '-', '_' and '.', the first a letter or a digit";
const DNS_NAME: &str = "1 to 63 of a-z, 0-9 and '-', a letter or a digit at both ends";

fn is_plain_name(name: &str) -> bool {
    name.len() <= 253
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn is_dns_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 63
        && name.bytes().all(|byte| is_word(byte) || byte == b'-')
        && name.bytes().next().is_some_and(is_word)
        && name.bytes().last().is_some_and(is_word)
}

pub(super) fn range(
    key: &'static str,
    value: u64,
    bounds: std::ops::RangeInclusive<u64>,
    allowed: &'static str,
) -> Result<(), ConfigError> {
    if bounds.contains(&value) { Ok(()) } else { Err(ConfigError::OutOfRange { key, value, allowed }) }
}

pub(super) fn conflict(key: impl Into<Cow<'static, str>>, reason: &'static str) -> ConfigError {
    ConfigError::Conflict { key: key.into(), reason }
}

#[cfg(test)]
mod tests;
