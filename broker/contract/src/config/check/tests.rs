use super::*;
use crate::config::{Embedded, Listener, Listeners, Protocol};

fn parse(yaml: &str) -> Result<Config, String> {
    serde_saphyr::from_str(yaml).map_err(|error| error.to_string())
}

#[test]
fn an_empty_file_is_the_standalone_broker() {
    let config = parse("{}").unwrap();

    config.check().unwrap();
    assert_eq!(config.listeners.0[0].address, "127.0.0.1:1883");
    assert_eq!(config.admin.address, "127.0.0.1:8080");
    assert_eq!(config.partitioning(), (32, 16));
}

#[test]
fn every_config_in_the_manual_is_valid() {
    let manual = include_str!("../../../../../docs/running.md");
    let mut blocks = Vec::new();
    let mut lines = manual.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() == "```yaml" {
            let block: Vec<_> = lines.by_ref().take_while(|line| line.trim_start() != "```").collect();
            blocks.push(block.join("\n"));
        }
    }

    let configs: Vec<_> = blocks.iter().map(|block| parse(block).unwrap()).collect();

    assert!(configs.iter().all(|config| config.check() == Ok(())));
    assert!(configs.iter().any(|config| !config.shared_subscriptions.groups.is_empty()));
}

#[test]
fn an_unknown_key_is_refused_by_name_and_place() {
    let error = parse("limits:\n  maximumPacketByte: 12\n").unwrap_err();

    assert!(error.contains("maximumPacketByte"), "{error}");
    assert!(error.contains('2'), "names the line: {error}");
}

#[test]
fn an_interval_of_syncs_is_only_taken_with_the_durability_that_has_one() {
    for durability in ["fsync", "none"] {
        let config = parse(&format!("embedded: {{durability: {durability}, syncIntervalMs: 5}}")).unwrap();
        let refused = config.check();
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with("embedded.syncIntervalMs: "), "{refused}");
    }
    let config = parse("embedded: {durability: interval, syncIntervalMs: 5}").unwrap();
    assert_eq!(config.check(), Ok(()));
    assert_eq!(parse("embedded: {durability: interval}").unwrap().check(), Ok(()));
    assert_eq!(Embedded::default().durability, Durability::Fsync);
    assert!(parse("embedded: {durability: always}").unwrap_err().contains("always"));
}

#[test]
fn a_listener_beyond_loopback_needs_a_decision_about_access() {
    let listener = Listener { name: "lan".into(), protocol: Protocol::Mqtt, address: "0.0.0.0:1883".into() };
    let mut config = Config { listeners: Listeners(vec![listener]), ..Config::default() };

    assert!(matches!(config.check(), Err(ConfigError::OpenListener { .. })));
    config.auth.anonymous = true;
    assert_eq!(config.check(), Ok(()));
}

#[test]
fn a_number_or_name_that_cannot_work_is_refused_by_its_key() {
    let cases = [
        ("limits: {mailboxBytes: 0}", "limits.mailboxBytes"),
        ("embedded: {durability: interval, syncIntervalMs: 0}", "embedded.syncIntervalMs"),
        ("embedded: {durability: interval, syncIntervalMs: 60001}", "embedded.syncIntervalMs"),
        ("limits: {mailboxMessages: 0}", "limits.mailboxMessages"),
        ("limits: {subscriptions: 0}", "limits.subscriptions"),
        ("sessions: {maxExpirySecs: 0}", "sessions.maxExpirySecs"),
        ("sessions: {queue: {messages: 0}}", "sessions.queue.messages"),
        ("sessions: {queue: {bytes: 0}}", "sessions.queue.bytes"),
        ("sessions: {queue: {ageSecs: 0}}", "sessions.queue.ageSecs"),
        ("sessions: {queue: {deadLetterTopic: a/#}}", "sessions.queue.deadLetterTopic"),
        ("sessions: {queue: {deadLetterTopic: $SYS/x}}", "sessions.queue.deadLetterTopic"),
        ("sessions: {parkAfterSecs: 0}", "sessions.parkAfterSecs"),
        ("sessions: {maxDeliveries: 0}", "sessions.maxDeliveries"),
        ("sessions: {replayPerSession: 0}", "sessions.replayPerSession"),
        ("sessions: {replayTotal: 0}", "sessions.replayTotal"),
        ("limits: {inFlight: 0}", "limits.inFlight"),
        ("limits: {maximumPacketBytes: 127}", "limits.maximumPacketBytes"),
        ("limits: {retainedBytes: 0}", "limits.retainedBytes"),
        ("mqtt: {maximumKeepAliveSecs: 0}", "mqtt.maximumKeepAliveSecs"),
        ("mqtt: {sysIntervalSecs: 86401}", "mqtt.sysIntervalSecs"),
        ("mqtt: {responseInformation: ''}", "mqtt.responseInformation"),
        ("data: {directory: ''}", "data.directory"),
        ("peers: {tls: {caFile: a, certificateFile: '', keyFile: c}}", "peers.tls.certificateFile"),
        ("peers: {address: x, tls: {caFile: a, certificateFile: b, keyFile: c}}", "peers.address"),
        ("member: ''", "member"),
        ("member: 'b 0'", "member"),
        ("member: ../b", "member"),
        ("cluster: a/b", "cluster"),
        ("coordination: kubernetes\nmember: B-0", "member"),
        ("coordination: kubernetes\nmember: b-", "member"),
        ("coordination: kubernetes\nmember: b.0", "member"),
    ];

    for (yaml, key) in cases {
        let error = parse(yaml).unwrap().check().unwrap_err().to_string();
        assert!(error.starts_with(key), "{yaml}: {error}");
    }
    assert_eq!(parse("member: My_Host.local").unwrap().check(), Ok(()));
}

#[test]
fn names_and_addresses_that_must_differ_are_told_with_both_keys() {
    let listeners = |first: &str, second: &str| {
        parse(&format!("listeners: [{{protocol: mqtt, {first}}}, {{protocol: mqtt, {second}}}]")).unwrap()
    };
    let cases = [
        (
            "name: lan, address: '127.0.0.1:1'",
            "name: lan, address: '127.0.0.1:2'",
            "listeners[1].name is 'lan', as listeners[0].name is",
        ),
        (
            "name: a, address: '127.0.0.1:1'",
            "name: b, address: '127.0.0.1:1'",
            "listeners[1].address is '127.0.0.1:1', as listeners[0].address is",
        ),
        (
            "name: a, address: '127.0.0.1:8080'",
            "name: b, address: '127.0.0.1:1'",
            "listeners[0].address is '127.0.0.1:8080', as admin.address is",
        ),
        ("name: a, address: '127.0.0.1:1'", "name: ' ', address: '127.0.0.1:2'", "listeners[1].name is ' '"),
        (
            "name: a, address: '127.0.0.1:1'",
            "name: b, address: 'localhost:2'",
            "listeners[1].address is 'localhost:2', expected",
        ),
        (
            "name: a, address: '127.0.0.1:1'",
            "name: b, address: '0.0.0.0:2'",
            "listeners[1].address is 0.0.0.0:2, open to anybody",
        ),
    ];

    for (first, second, told) in cases {
        let error = listeners(first, second).check().unwrap_err().to_string();
        assert!(error.starts_with(told), "{error}");
    }
    let free = listeners("name: a, address: '127.0.0.1:0'", "name: b, address: '127.0.0.1:0'");
    assert_eq!(free.check(), Ok(()));
}

#[test]
fn there_are_no_more_groups_than_partitions_unless_one_asks_for_them() {
    for (section, other) in [("embedded", ""), ("kafka", "bootstrapServers: 'k:9092', ")] {
        let config = |keys: &str| parse(&format!("{section}: {{{other}{keys}}}")).unwrap();

        assert_eq!(config("partitions: 8").partitioning(), (8, 8));
        assert_eq!(config("partitions: 8").check(), Ok(()));
        assert_eq!(config("partitions: 64").partitioning(), (64, 16));
        assert_eq!(config("partitions: 8, partitionGroups: 3").partitioning(), (8, 3));
        let error = config("partitionGroups: 33").check().unwrap_err().to_string();
        assert_eq!(error, format!("{section}.partitionGroups is 33, allowed is 1 to {section}.partitions"));
        let error = config("partitions: 65").check().unwrap_err().to_string();
        assert_eq!(error, format!("{section}.partitions is 65, allowed is 1 to 64"));
    }
}

#[test]
fn a_topic_for_dead_letters_that_nobody_can_receive_or_that_has_another_word_in_braces_is_refused() {
    let check = |topic: &str| {
        let yaml = format!("sessions: {{queue: {{deadLetterTopic: '{topic}'}}}}");
        parse(&yaml).unwrap().check().map_err(|error| error.to_string())
    };

    for topic in ["$share/a/b", "$queue/a", "dead/{clientid}", "{client}/{clientId}", "d/{}", "{{clientId}x}"]
    {
        let error = check(topic).unwrap_err();
        assert!(error.starts_with("sessions.queue.deadLetterTopic is"), "{topic}: {error}");
    }
    for topic in
        ["$dead/{clientId}", "dead/{clientId}/{clientId}", "$shared/a", "$queue", "a/$share/b", "a{b", "}{"]
    {
        assert_eq!(check(topic), Ok(()), "{topic}");
    }
}

#[test]
fn an_embedded_log_beside_kafka_is_refused_also_with_the_values_that_are_the_default() {
    for embedded in ["{}", "{durability: none}", "{partitions: 32}"] {
        let config = parse(&format!("kafka: {{bootstrapServers: 'k:9092'}}\nembedded: {embedded}")).unwrap();

        let error = config.check().unwrap_err().to_string();
        assert!(error.starts_with("embedded: "), "{error}");
    }
}

#[test]
fn a_broker_of_kafka_needs_a_port() {
    let check = |servers: &str| parse(&format!("kafka: {{bootstrapServers: '{servers}'}}")).unwrap().check();

    for servers in
        ["a:9092", "a:9092,b:9092", "a:9092, b:9092", "[::1]:9092", "PLAINTEXT://a:9092", "10.0.0.1:1"]
    {
        assert_eq!(check(servers), Ok(()), "{servers}");
    }
    for servers in ["a", "a:", ":9092", "a:9092,", "a:9092,b", "a:0", "a:70000", "::1:9092", "a b:1", " "] {
        let error = check(servers).unwrap_err().to_string();
        assert!(error.starts_with("kafka.bootstrapServers is "), "{servers}: {error}");
    }
}

#[test]
fn a_quoted_boolean_is_refused() {
    for keys in [
        "auth: {anonymous: \"yes\"}",
        "auth: {anonymous: 'true'}",
        "mqtt: {checkPayloadFormat: 'false'}",
        "membership: {strictIdentity: 1}",
    ] {
        assert!(parse(keys).unwrap_err().contains("true or false"), "{keys}");
    }
    assert!(parse("auth: {anonymous: true}").unwrap().auth.anonymous);
    assert!(!parse("auth: {anonymous: false}").unwrap().auth.anonymous);
}

#[test]
fn leases_need_kafka_and_peers() {
    let config = parse("coordination: kubernetes\n").unwrap();

    assert!(matches!(config.check(), Err(ConfigError::Missing { key: "kafka", .. })));
}

#[test]
fn a_bound_of_what_is_not_retained_is_refused() {
    let cluster = "coordination: kubernetes\nkafka: {bootstrapServers: 'kafka:9092'}\n\
                   peers: {tls: {caFile: a, certificateFile: b, keyFile: c}}\nauth: {anonymous: true}\n";
    let bounded = format!("{cluster}limits: {{retainedBytes: 1000}}\n");

    assert_eq!(parse(cluster).unwrap().check(), Ok(()));
    let error = parse(&bounded).unwrap().check().unwrap_err();
    assert!(error.to_string().starts_with("limits.retainedBytes: "), "{error}");
}

#[test]
fn lease_timings_that_could_overlap_are_refused() {
    let config =
        parse("membership: {renewIntervalSecs: 2, stopAfterSecs: 4, leaseDurationSecs: 9}\n").unwrap();

    assert!(config.check().unwrap_err().to_string().starts_with("membership: membership.stopAfterSecs "));
}
