//! Rules that one key alone cannot say.

use super::{Config, Coordination, Durability, Limits, SharedSubscriptions};
use std::net::SocketAddr;

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
    /// Two keys that exclude each other.
    #[error("{key}: {reason}")]
    Conflict {
        /// The key as written in the file.
        key: &'static str,
        /// Why it cannot stand.
        reason: &'static str,
    },
    /// An address that is not `host:port`.
    #[error("{key} is '{value}', expected host:port with an IP address")]
    Address {
        /// The key as written in the file.
        key: &'static str,
        /// What was given.
        value: String,
    },
    /// A name that cannot stand where it is used.
    #[error("{key} is '{value}', allowed is {allowed}")]
    Name {
        /// The key as written in the file.
        key: &'static str,
        /// What was given.
        value: String,
        /// What is allowed, in words.
        allowed: &'static str,
    },
    /// Two listeners of one name.
    #[error("listeners: two of them have the name '{name}'")]
    SameName {
        /// The name.
        name: String,
    },
    /// A listener beyond loopback without a decision about access.
    #[error(
        "listener '{name}' on {address} is open to anybody: configure auth, or allow it with auth.anonymous (--allow-anonymous)"
    )]
    OpenListener {
        /// The listener's name.
        name: String,
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
        let (partitions, groups) = self.partitioning();
        range("partitions", u64::from(partitions), 1..=64, "1 to 64")?;
        let groups_allowed = 1..=u64::from(partitions);
        range("partitionGroups", u64::from(groups), groups_allowed, "1 to the number of partitions")?;
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
        self.check_listeners()
    }

    /// Partitions and partition groups of whichever log is configured.
    #[must_use]
    pub fn partitioning(&self) -> (u16, u16) {
        match &self.kafka {
            Some(kafka) => (kafka.partitions, kafka.partition_groups),
            None => (self.embedded.partitions, self.embedded.partition_groups),
        }
    }

    fn check_embedded(&self) -> Result<(), ConfigError> {
        let Some(interval) = self.embedded.sync_interval_ms else { return Ok(()) };
        if self.embedded.durability != Durability::Interval {
            return Err(ConfigError::Conflict {
                key: "embedded.syncIntervalMs",
                reason: "it only has a meaning with embedded.durability: interval",
            });
        }
        range("embedded.syncIntervalMs", u64::from(interval), 1..=60_000, "1 to 60000")
    }

    fn check_shared_subscriptions(&self) -> Result<(), ConfigError> {
        let is_served = self.coordination == Coordination::Local;
        if !is_served && self.shared_subscriptions != SharedSubscriptions::default() {
            return Err(ConfigError::Conflict {
                key: "sharedSubscriptions",
                reason: "coordination: kubernetes does not serve shared subscriptions yet",
            });
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
            return Err(ConfigError::Conflict {
                key: "mqtt.responseInformation",
                reason: "1 to 1024 bytes, without U+0000",
            });
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
                return Err(ConfigError::Name { key, value: name.to_owned(), allowed });
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
        if kafka.replication_factor < 1 || kafka.min_in_sync_replicas < 1 {
            return Err(ConfigError::Conflict {
                key: "kafka.replicationFactor",
                reason: "replicationFactor and minInSyncReplicas are at least 1",
            });
        }
        if kafka.min_in_sync_replicas > kafka.replication_factor {
            return Err(ConfigError::Conflict {
                key: "kafka.minInSyncReplicas",
                reason: "it must not exceed replicationFactor, or nothing could be written",
            });
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
                return Err(ConfigError::Conflict {
                    key: "limits.retainedBytes",
                    reason: "with coordination: kubernetes nothing is retained yet",
                });
            }
        }
        let membership = &self.membership;
        if let (Some(renew), Some(stop), Some(duration)) =
            (membership.renew_interval_secs, membership.stop_after_secs, membership.lease_duration_secs)
        {
            if renew == 0 || stop <= 2 * renew || duration < stop + 3 {
                return Err(ConfigError::Conflict {
                    key: "membership",
                    reason: "stopAfterSecs must exceed twice renewIntervalSecs, leaseDurationSecs must exceed stopAfterSecs by 3",
                });
            }
        } else if membership.renew_interval_secs.is_some()
            || membership.stop_after_secs.is_some()
            || membership.lease_duration_secs.is_some()
        {
            return Err(ConfigError::Missing {
                key: "membership",
                reason: "renewIntervalSecs, stopAfterSecs and leaseDurationSecs come together",
            });
        }
        Ok(())
    }

    fn check_listeners(&self) -> Result<(), ConfigError> {
        if self.listeners.0.is_empty() {
            return Err(ConfigError::Missing { key: "listeners", reason: "clients could not connect" });
        }
        parse_address("admin.address", &self.admin.address)?;
        for (index, listener) in self.listeners.0.iter().enumerate() {
            if self.listeners.0[..index].iter().any(|earlier| earlier.name == listener.name) {
                return Err(ConfigError::SameName { name: listener.name.clone() });
            }
            let address = parse_address("listeners.address", &listener.address)?;
            if !address.ip().is_loopback() && !self.auth.anonymous {
                return Err(ConfigError::OpenListener {
                    name: listener.name.clone(),
                    address: listener.address.clone(),
                });
            }
        }
        Ok(())
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

fn parse_address(key: &'static str, value: &str) -> Result<SocketAddr, ConfigError> {
    value.parse().map_err(|_| ConfigError::Address { key, value: value.to_owned() })
}

#[cfg(test)]
mod tests;
