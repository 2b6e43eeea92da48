//! Clients of others against `make run`'s broker: paho-mqtt, MQTT.js, and mosquitto's, in each version of MQTT they speak.
//!
//! What paho-mqtt and MQTT.js expect is written in their own languages below `e2e/interop`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tidemill_contract::config::Config;
use tidemill_e2e::broker::Broker;
use tidemill_e2e::environment::interop;
use tidemill_e2e::mosquitto::{Subscriber, publish};
use tokio::process::Command;

/// The slowest script waits for expiries and keep alives, about 40 s in all.
const SCRIPT_LIMIT: Duration = Duration::from_secs(240);

/// Runs a script of `e2e/interop` against a new broker; it must say how many of its checks passed, and that none failed.
async fn run_checks(program: &str, script: &str, version: &str) {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();
    let installed = interop().unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop").join(script);
    let command = Command::new(program)
        .arg(&script)
        .args([&broker.mqtt().host, &broker.mqtt().port.to_string(), version])
        .env("PYTHONPATH", installed.join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NODE_PATH", installed.join("node_modules"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(SCRIPT_LIMIT, command).await.expect("the script hangs").unwrap();

    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    println!("{} {version}:\n{said}", script.display());
    let verdict = said.lines().last().unwrap_or_default();
    assert!(
        output.status.success() && verdict.ends_with(" passed, 0 failed") && !verdict.starts_with("0 "),
        "{program} {} {version}: {}\n{said}\n{complained}",
        script.display(),
        output.status,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn paho_mqtt_gets_what_it_expects_in_mqtt_3_1() {
    run_checks("python3", "paho/run.py", "3.1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paho_mqtt_gets_what_it_expects_in_mqtt_3_1_1() {
    run_checks("python3", "paho/run.py", "3.1.1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paho_mqtt_gets_what_it_expects_in_mqtt_5() {
    run_checks("python3", "paho/run.py", "5").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mqtt_js_gets_what_it_expects_in_mqtt_3_1() {
    run_checks("node", "mqttjs/run.js", "3.1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mqtt_js_gets_what_it_expects_in_mqtt_3_1_1() {
    run_checks("node", "mqttjs/run.js", "3.1.1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mqtt_js_gets_what_it_expects_in_mqtt_5() {
    run_checks("node", "mqttjs/run.js", "5").await;
}

const MOSQUITTO_VERSIONS: [&str; 3] = ["mqttv31", "mqttv311", "mqttv5"];

async fn broker() -> (tempfile::TempDir, Broker) {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();
    (folder, broker)
}

/// What keeps a session of this version over the end of its connection.
fn persistent(version: &str) -> Vec<&str> {
    let mut arguments = vec!["-V", version, "-i", "reader", "-c"];
    if version == "mqttv5" {
        arguments.extend(["-x", "600"]);
    }
    arguments
}

#[tokio::test(flavor = "multi_thread")]
async fn mosquitto_clients_pass_messages_of_every_qos_and_size_in_every_version() {
    let (folder, broker) = broker().await;
    let large = "größer als ein Puffer ".repeat(30_000);
    let file = folder.path().join("large");
    std::fs::write(&file, &large).unwrap();
    for version in MOSQUITTO_VERSIONS {
        for qos in 0..3 {
            let topic = format!("m/{version}/{qos}/straße/🌊");
            let more = ["-V", version];
            let mut reader = Subscriber::start(broker.mqtt(), &topic, qos, &more).await.unwrap();

            publish(broker.mqtt(), &topic, "small", qos, &more).await.unwrap();
            let from_file = ["-V", version, "-f", file.to_str().unwrap()];
            publish_as(&broker, &topic, qos, &from_file).await;

            assert_eq!(reader.next_message().await.unwrap(), format!("{topic} small"));
            assert_eq!(reader.next_message().await.unwrap(), format!("{topic} {large}"));
        }
    }
}

/// As `publish`, with the message from somewhere else than `-m`.
async fn publish_as(broker: &Broker, topic: &str, qos: u8, more: &[&str]) {
    let port = broker.mqtt().port.to_string();
    let command = Command::new("mosquitto_pub")
        .args(["-h", &broker.mqtt().host, "-p", &port, "-t", topic, "-q", &qos.to_string()])
        .args(more)
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(30), command).await.unwrap().unwrap();
    assert!(output.status.success(), "mosquitto_pub {more:?}: {output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mosquitto_sub_that_comes_back_gets_what_it_missed_in_every_version() {
    for version in MOSQUITTO_VERSIONS {
        let (_folder, broker) = broker().await;
        let first = Subscriber::start(broker.mqtt(), "missed/#", 2, &persistent(version)).await.unwrap();
        first.kill().await.unwrap();
        for qos in [1, 2] {
            publish(broker.mqtt(), "missed/x", &qos.to_string(), qos, &["-V", version]).await.unwrap();
        }

        let mut again = Subscriber::start(broker.mqtt(), "missed/#", 2, &persistent(version)).await.unwrap();

        assert_eq!(again.next_message().await.unwrap(), "missed/x 1", "{version}");
        assert_eq!(again.next_message().await.unwrap(), "missed/x 2", "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mosquitto_sub_gets_the_retained_message_and_the_will_of_a_lost_client_in_every_version() {
    for version in MOSQUITTO_VERSIONS {
        let (_folder, broker) = broker().await;
        let will = [
            "-V",
            version,
            "--will-topic",
            "state",
            "--will-payload",
            "lost",
            "--will-retain",
            "--will-qos",
            "2",
        ];
        let lost = Subscriber::start(broker.mqtt(), "x", 0, &will).await.unwrap();
        let mut live = Subscriber::start(broker.mqtt(), "state", 2, &["-V", version]).await.unwrap();
        publish(broker.mqtt(), "state", "online", 1, &["-V", version, "-r"]).await.unwrap();
        assert_eq!(live.next_message().await.unwrap(), "state online", "{version}");

        lost.kill().await.unwrap();

        assert_eq!(live.next_message().await.unwrap(), "state lost", "{version}");
        let mut late = Subscriber::start(broker.mqtt(), "+", 1, &["-V", version]).await.unwrap();
        assert_eq!(late.next_message().await.unwrap(), "state lost", "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_mosquitto_subs_share_a_subscription_in_every_version() {
    for version in MOSQUITTO_VERSIONS {
        let (_folder, broker) = broker().await;
        let more = ["-V", version];
        let mut members = [
            Subscriber::start(broker.mqtt(), "$share/g/work/#", 1, &more).await.unwrap(),
            Subscriber::start(broker.mqtt(), "$share/g/work/#", 1, &more).await.unwrap(),
        ];
        // Each member also gets the end on a topic of its own, after what it was given.
        for number in 0..10 {
            publish(broker.mqtt(), "work/x", &number.to_string(), 1, &more).await.unwrap();
        }

        let [first, second] = &mut members;
        let mut got = Vec::new();
        for _ in 0..10 {
            let message = tokio::select! {
                message = first.next_message() => message,
                message = second.next_message() => message,
            };
            got.push(message.unwrap().replace("work/x ", "").parse::<u32>().unwrap());
        }

        got.sort_unstable();
        assert_eq!(got, (0..10).collect::<Vec<_>>(), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_pass_from_mosquitto_pub_to_mosquitto_sub() {
    let (_folder, broker) = broker().await;
    let format = ["-V", "mqttv5", "-F", "%t|%p|%C|%R|%D|%P|%E"];
    let mut reader = Subscriber::start(broker.mqtt(), "p", 1, &format).await.unwrap();
    let sent = [
        "-V mqttv5 -D publish content-type text/plain -D publish response-topic answers",
        "-D publish correlation-data 42 -D publish user-property k v -D publish user-property k w",
        "-D publish message-expiry-interval 1000",
    ];
    let sent: Vec<_> = sent.iter().flat_map(|line| line.split(' ')).collect();

    publish(broker.mqtt(), "p", "x", 1, &sent).await.unwrap();

    let got = reader.next_message().await.unwrap();
    assert!(
        ["p|x|text/plain|answers|42|k:v k:w|1000", "p|x|text/plain|answers|42|k:v k:w|999"]
            .contains(&got.as_str()),
        "{got}"
    );
}
