//! The clients that everybody has: `mosquitto_pub` and `mosquitto_sub`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;

use broker::Broker;
use std::process::Output;
use std::time::Duration;
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_secs(30);

fn client(program: &str, broker: &Broker, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    let port = broker.address().port().to_string();
    command.args(["-h", "127.0.0.1", "-p", &port]).args(arguments).kill_on_drop(true);
    command
}

async fn finish(mut command: Command) -> Output {
    tokio::time::timeout(PATIENCE, command.output()).await.expect("a client hangs").unwrap()
}

#[tokio::test]
async fn mosquitto_sub_receives_what_mosquitto_pub_sends_at_every_qos_in_every_version() {
    let versions = ["mqttv31", "mqttv311", "5"];
    for (version, qos) in versions.into_iter().flat_map(|version| ["0", "1", "2"].map(|qos| (version, qos))) {
        let broker = Broker::start().await;
        let arguments = ["-V", version, "-q", qos, "-t", "news/#", "-C", "2", "-v"];
        let subscriber = tokio::spawn(finish(client("mosquitto_sub", &broker, &arguments)));
        broker.until_subscribed(1).await;

        for _ in 0..2 {
            let publish = ["-V", version, "-q", qos, "-t", "news/today", "-m", "tide"];
            let sent = finish(client("mosquitto_pub", &broker, &publish)).await;
            assert!(sent.status.success(), "{version} at QoS {qos}: {sent:?}");
        }

        let received = subscriber.await.unwrap();
        let text = String::from_utf8(received.stdout).unwrap();
        assert_eq!(text, "news/today tide\nnews/today tide\n", "{version} at QoS {qos}");
        broker.running.stop().await;
    }
}
