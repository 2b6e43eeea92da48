//! Addresses that the broker listens on or connects to.

use super::{Config, ConfigError};
use std::net::SocketAddr;

impl Config {
    pub(super) fn check_addresses(&self) -> Result<(), ConfigError> {
        if self.listeners.0.is_empty() {
            return Err(ConfigError::Missing { key: "listeners", reason: "clients could not connect" });
        }
        let mut taken =
            vec![("admin.address".to_owned(), parse_address("admin.address", &self.admin.address)?)];
        if let Some(peers) = &self.peers {
            let key = "peers.address".to_owned();
            // The name of a host is taken, too; whether it is free is only known when it is bound.
            if peers.address.parse::<SocketAddr>().is_ok() || !is_host_and_port(&peers.address) {
                take(&mut taken, key, &peers.address)?;
            }
        }
        for (index, listener) in self.listeners.0.iter().enumerate() {
            let key = |part| format!("listeners[{index}].{part}");
            if listener.name.trim().is_empty() {
                return Err(ConfigError::Name {
                    key: key("name").into(),
                    value: listener.name.clone(),
                    allowed: "a name that is not empty",
                });
            }
            let earlier = self.listeners.0[..index].iter().position(|earlier| earlier.name == listener.name);
            if let Some(earlier) = earlier {
                return Err(ConfigError::Same {
                    key: key("name"),
                    other: format!("listeners[{earlier}].name"),
                    value: listener.name.clone(),
                });
            }
            let address = take(&mut taken, key("address"), &listener.address)?;
            if !address.ip().is_loopback() && !self.auth.anonymous {
                return Err(ConfigError::OpenListener {
                    key: key("address"),
                    address: listener.address.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Reads an address that none of those `taken` may be. With port 0 the system finds a free one.
fn take(taken: &mut Vec<(String, SocketAddr)>, key: String, value: &str) -> Result<SocketAddr, ConfigError> {
    let address = parse_address(&key, value)?;
    if let Some((other, _)) = taken.iter().find(|(_, other)| *other == address && address.port() != 0) {
        return Err(ConfigError::Same { key, other: other.clone(), value: value.to_owned() });
    }
    taken.push((key, address));
    Ok(address)
}

fn parse_address(key: &str, value: &str) -> Result<SocketAddr, ConfigError> {
    value.parse().map_err(|_| ConfigError::Address { key: key.to_owned(), value: value.to_owned() })
}

/// Whether `text` is `host:port` as clients of Kafka take it, also with a protocol in front.
pub(super) fn is_host_and_port(text: &str) -> bool {
    let text = text.trim();
    let text = text.split_once("://").map_or(text, |(_, authority)| authority);
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_in_brackets = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
    let is_host = is_in_brackets || !(host.is_empty() || host.contains([':', '/', '[', ']']));
    is_host && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok_and(|port| port > 0)
}
