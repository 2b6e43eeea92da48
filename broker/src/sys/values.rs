//! Figures to topics and texts.

use super::load::Loads;
use crate::metrics::Totals;

/// Every topic with its text. What this broker does not know has no topic.
pub(super) fn build(totals: &Totals, loads: &Loads, uptime_secs: u64) -> Vec<(String, String)> {
    let mut values = vec![
        ("version".to_owned(), format!("tidemill version {}", env!("CARGO_PKG_VERSION"))),
        ("uptime".to_owned(), format!("{uptime_secs} seconds")),
    ];
    let counts = [
        ("clients/connected", totals.connections),
        ("clients/maximum", totals.connections_peak),
        ("bytes/received", totals.bytes_received),
        ("bytes/sent", totals.bytes_sent),
        ("messages/received", totals.packets_received),
        ("messages/sent", totals.packets_sent),
        ("publish/messages/received", totals.messages_received),
        ("publish/messages/sent", totals.messages_sent),
        ("publish/messages/dropped", totals.messages_dropped),
        ("publish/bytes/received", totals.payload_bytes_received),
        ("publish/bytes/sent", totals.payload_bytes_sent),
        ("subscriptions/count", totals.subscriptions),
    ];
    values.extend(counts.map(|(name, count)| (name.to_owned(), count.to_string())));
    if let Some(sessions) = totals.sessions {
        // Read one after the other, so the difference may be below 0 for a moment.
        let disconnected = sessions.all.saturating_sub(sessions.attached);
        let counts = [
            ("clients/disconnected", disconnected),
            ("clients/total", totals.connections + disconnected),
            ("clients/expired", sessions.expired),
        ];
        values.extend(counts.map(|(name, count)| (name.to_owned(), count.to_string())));
    }
    let loads = loads.iter();
    values.extend(
        loads.map(|(name, minutes, value)| (format!("load/{name}/{minutes}min"), format!("{value:.2}"))),
    );
    values.into_iter().map(|(name, text)| (format!("$SYS/broker/{name}"), text)).collect()
}

/// How many messages are retained, for a broker that retains any. These here count, too.
pub(super) fn retained(totals: &Totals) -> (String, String) {
    ("$SYS/broker/retained messages/count".to_owned(), totals.retained.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::SessionTotals;
    use std::collections::BTreeMap;

    #[test]
    fn clients_that_are_away_count_beside_those_that_are_here() {
        let sessions = Some(SessionTotals { all: 7, attached: 3, expired: 2 });
        let totals = Totals { connections: 5, sessions, ..Totals::default() };

        let values: BTreeMap<_, _> = build(&totals, &Loads::default(), 61).into_iter().collect();

        let value = |name: &str| values[&format!("$SYS/broker/{name}")].as_str();
        assert_eq!(value("clients/connected"), "5");
        assert_eq!(value("clients/disconnected"), "4");
        assert_eq!(value("clients/total"), "9");
        assert_eq!(value("clients/expired"), "2");
        assert_eq!(value("uptime"), "61 seconds");
        assert_eq!(value("load/publish/sent/15min"), "0.00");
    }

    #[test]
    fn what_is_not_known_has_no_topic() {
        let values = build(&Totals::default(), &Loads::default(), 0);

        assert!(values.iter().all(|(topic, _)| topic != "$SYS/broker/clients/total"));
        assert!(values.iter().any(|(topic, _)| topic == "$SYS/broker/clients/connected"));
    }
}
