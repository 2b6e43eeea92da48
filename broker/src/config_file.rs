//! The effective config: file, then environment, then flags.

mod parse;

use parse::{Fault, parse};
use serde_json::Value;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use tidemill_contract::config::{Config, ConfigError, Listener, Listeners, Protocol};
use tidemill_contract::{names, ports};

/// Deepest key of `--set`.
const KEY_LEVELS_MAX: usize = 16;

/// The config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// The file cannot be read.
    #[error("config file {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is no config. The message has line and column.
    #[error("config file {} is not valid: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What and where.
        message: String,
    },
    /// `--set` without `=`, or with a key that leads nowhere.
    #[error("--set {setting}: {message}")]
    Setting {
        /// As given.
        setting: String,
        /// What is wrong.
        message: String,
    },
    /// `--listen` with something else than `mqtt://address:port`.
    #[error("--listen {url}: expected mqtt://ADDRESS[:PORT] with an IP address or localhost")]
    Listen {
        /// As given.
        url: String,
    },
    /// The parts do not fit together.
    #[error(transparent)]
    Check(#[from] ConfigError),
}

/// What the command line says about the config.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Addresses that replace all listeners of the file.
    pub listen: Vec<String>,
    /// Address of the admin port.
    pub admin: Option<String>,
    /// Data directory.
    pub data: Option<PathBuf>,
    /// Lets anybody in.
    pub allow_anonymous: bool,
    /// `key.key=value`, applied in order after everything else.
    pub settings: Vec<String>,
}

/// What a pod tells its broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `TIDEMILL_MEMBER`: the pod's name.
    pub member: Option<String>,
    /// `TIDEMILL_POD_UID`.
    pub pod_uid: Option<String>,
    /// `TIDEMILL_POD_IP`.
    pub pod_ip: Option<String>,
    /// `TIDEMILL_NAMESPACE`.
    pub namespace: Option<String>,
}

impl Environment {
    /// Reads the process's environment; empty variables count as absent.
    #[must_use]
    pub fn read() -> Self {
        let read = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            member: read(names::ENV_MEMBER),
            pod_uid: read(names::ENV_POD_UID),
            pod_ip: read(names::ENV_POD_IP),
            namespace: read(names::ENV_NAMESPACE),
        }
    }

    /// Fills in what the file leaves open, and replaces `${TIDEMILL_MEMBER}` in the paths of `peers.tls`.
    fn apply(&self, config: &mut Config) {
        if config.member.is_none() {
            config.member = self.member.clone().or_else(host_name);
        }
        if config.membership.namespace.is_none() {
            config.membership.namespace.clone_from(&self.namespace);
        }
        let member = config.member.clone().unwrap_or_default();
        if let Some(peers) = &mut config.peers {
            if peers.advertised.is_none()
                && let Some(pod_ip) = &self.pod_ip
            {
                let port = peers.address.rsplit_once(':').map_or("7883", |(_, port)| port);
                let host = if pod_ip.contains(':') { format!("[{pod_ip}]") } else { pod_ip.clone() };
                peers.advertised = Some(format!("{host}:{port}"));
            }
            let tls = &mut peers.tls;
            for path in [&mut tls.ca_file, &mut tls.certificate_file, &mut tls.key_file] {
                *path = path.to_string_lossy().replace("${TIDEMILL_MEMBER}", &member).into();
            }
        }
    }
}

/// The config that the broker runs with, checked.
///
/// # Errors
///
/// [`ConfigFileError`] says which key, line or flag to change; the broker must not start.
pub fn load(
    file: Option<&Path>,
    overrides: &Overrides,
    environment: &Environment,
) -> Result<Config, ConfigFileError> {
    let mut config = file.map_or_else(|| Ok(Config::default()), read)?;
    environment.apply(&mut config);
    if !overrides.listen.is_empty() {
        let listeners = overrides.listen.iter().enumerate();
        let listeners = listeners.map(|(number, url)| parse_listen(number, url)).collect::<Result<_, _>>()?;
        config.listeners = Listeners(listeners);
    }
    if let Some(admin) = &overrides.admin {
        config.admin.address.clone_from(admin);
    }
    if let Some(data) = &overrides.data {
        config.data.directory.clone_from(data);
    }
    config.auth.anonymous |= overrides.allow_anonymous;
    for setting in &overrides.settings {
        config = apply_setting(&config, setting)?;
    }
    config.check()?;
    Ok(config)
}

fn read(path: &Path) -> Result<Config, ConfigFileError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigFileError::Read { path: path.to_owned(), source })?;
    if text.trim().is_empty() {
        return Ok(Config::default());
    }
    parse(&text).map_err(|Fault { message, place }| {
        let place = place.map(|(line, column)| format!(", line {line}, column {column}")).unwrap_or_default();
        ConfigFileError::Parse { path: path.to_owned(), message: format!("{message}{place}") }
    })
}

fn parse_listen(number: usize, url: &str) -> Result<Listener, ConfigFileError> {
    let wrong = || ConfigFileError::Listen { url: url.to_owned() };
    let authority = url.strip_prefix("mqtt://").ok_or_else(wrong)?.trim_end_matches('/');
    let authority = match authority.strip_prefix("localhost") {
        Some(port) if port.is_empty() || port.starts_with(':') => format!("127.0.0.1{port}"),
        Some(_) | None => authority.to_owned(),
    };
    let address = match authority.parse::<SocketAddr>() {
        Ok(address) => address,
        Err(_) => {
            let ip: IpAddr = authority.trim_matches(['[', ']']).parse().map_err(|_| wrong())?;
            SocketAddr::new(ip, ports::MQTT)
        }
    };
    let name = if number == 0 { "mqtt".to_owned() } else { format!("mqtt-{}", number + 1) };
    Ok(Listener { name, protocol: Protocol::Mqtt, address: address.to_string() })
}

/// Sets one dotted key. The value is YAML, so that numbers, booleans, lists and maps can be given.
fn apply_setting(config: &Config, setting: &str) -> Result<Config, ConfigFileError> {
    let wrong = |message: String| ConfigFileError::Setting { setting: setting.to_owned(), message };
    let (key, text) = setting.split_once('=').ok_or_else(|| wrong("expected KEY=VALUE".to_owned()))?;
    let value = serde_saphyr::from_str::<Value>(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    let mut document = serde_json::to_value(config).map_err(|error| wrong(error.to_string()))?;
    let levels: Vec<_> = key.split('.').collect();
    if levels.len() > KEY_LEVELS_MAX || levels.iter().any(|level| level.is_empty()) {
        return Err(wrong("the key has an empty level or too many".to_owned()));
    }
    let mut place = &mut document;
    for level in levels {
        if place.is_null() {
            *place = Value::Object(serde_json::Map::new());
        }
        place = match place {
            Value::Object(fields) => fields.entry(level).or_insert(Value::Null),
            Value::Array(items) => level
                .parse::<usize>()
                .ok()
                .and_then(|index| items.get_mut(index))
                .ok_or_else(|| wrong(format!("'{level}' is no place in the list")))?,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                return Err(wrong(format!("there is no key '{level}' below a plain value")));
            }
        };
    }
    *place = value;
    parse(&document.to_string()).map_err(|fault| wrong(fault.message))
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_contract::config::Durability;

    fn load_text(text: &str, overrides: &Overrides) -> Result<Config, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        load(Some(file.path()), overrides, &Environment::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let error =
            load_text("member: a\nlimits:\n  mailboxMesages: 5\n", &Overrides::default()).unwrap_err();

        assert!(error.contains("mailboxMesages"), "{error}");
        assert!(error.contains("line 3"), "{error}");
    }

    #[test]
    fn flags_win_over_the_file() {
        let overrides = Overrides {
            listen: vec!["mqtt://0.0.0.0:1900".into(), "mqtt://localhost".into()],
            admin: Some("127.0.0.1:9000".into()),
            data: Some("/tmp/d".into()),
            allow_anonymous: true,
            settings: vec!["limits.mailboxMessages=7".into(), "listeners.1.name=second".into()],
        };

        let config = load_text("limits: {mailboxMessages: 5}\n", &overrides).unwrap();

        assert_eq!(config.limits.mailbox_messages, 7);
        let addresses: Vec<_> =
            config.listeners.0.iter().map(|listener| (&*listener.name, &*listener.address)).collect();
        assert_eq!(addresses, [("mqtt", "0.0.0.0:1900"), ("second", "127.0.0.1:1883")]);
        assert_eq!(config.admin.address, "127.0.0.1:9000");
    }

    #[test]
    fn the_durability_can_be_set_by_a_flag() {
        let set = |settings: &[&str]| {
            let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
            let loaded = load_text("", &Overrides { settings, ..Overrides::default() });
            loaded.map(|config| config.embedded.unwrap_or_default())
        };

        assert_eq!(set(&["embedded.durability=none"]).unwrap().durability, Durability::None);
        let interval = set(&["embedded.durability=interval", "embedded.syncIntervalMs=20"]).unwrap();
        assert_eq!((interval.durability, interval.sync_interval_ms), (Durability::Interval, Some(20)));
        assert!(set(&["embedded.syncIntervalMs=20"]).unwrap_err().contains("embedded.syncIntervalMs"));
    }

    #[test]
    fn a_setting_that_is_no_key_is_refused() {
        for (setting, told) in [
            ("limits.nothing=1", "there is no key limits.nothing"),
            ("limits", "expected KEY=VALUE"),
            ("limits..x=1", "the key has an empty level"),
            ("limits.connections=many", "limits.connections: expected a whole number"),
            ("auth.anonymous='true'", "auth.anonymous: expected true or false"),
            ("member.x=1", "there is no key 'x'"),
        ] {
            let overrides = Overrides { settings: vec![setting.into()], ..Overrides::default() };
            let error = load_text("member: a\n", &overrides).unwrap_err();
            assert!(error.starts_with(&format!("--set {setting}: {told}")), "{error}");
        }
    }

    #[test]
    fn fewer_partitions_can_be_set_alone() {
        let overrides = Overrides { settings: vec!["embedded.partitions=8".into()], ..Overrides::default() };

        assert_eq!(load_text("", &overrides).unwrap().partitioning(), (8, 8));
    }

    #[test]
    fn the_pod_names_the_member_and_its_certificate() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "kafka: {bootstrapServers: 'k:9092'}\ncoordination: kubernetes\n\
                    peers: {tls: {caFile: /c/ca, certificateFile: '/c/${TIDEMILL_MEMBER}.crt', keyFile: /c/k}}\n";
        std::fs::write(file.path(), text).unwrap();
        let environment = Environment {
            member: Some("demo-1".into()),
            pod_uid: None,
            pod_ip: Some("10.0.0.9".into()),
            namespace: Some("mq".into()),
        };

        let config = load(Some(file.path()), &Overrides::default(), &environment).unwrap();

        let peers = config.peers.unwrap();
        assert_eq!(config.member.as_deref(), Some("demo-1"));
        assert_eq!(peers.tls.certificate_file, PathBuf::from("/c/demo-1.crt"));
        assert_eq!(peers.advertised.as_deref(), Some("10.0.0.9:7883"));
        assert_eq!(config.membership.namespace.as_deref(), Some("mq"));
    }
}
