//! Why rumqttd's router is not in the data path (docs/decisions/0008-rumqttd-router.md): two ordinary inputs that stop it
//! for everybody, and what this broker does with them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "rumqttd/start.rs"]
mod start;

use anyhow::Result;
use start::Rumqttd;
use std::time::Duration;
use tidemill_contract::config::Config;
use tidemill_e2e::broker::Broker;
use tidemill_e2e::mosquitto::Endpoint;
use tidemill_e2e::raw_client::RawClient;

/// Whether two clients who have nothing to do with what happened before can exchange a message.
async fn serves(endpoint: &Endpoint) -> Result<()> {
    let (mut reader, _) = RawClient::connect(endpoint, 4, "reader", true).await?;
    reader.subscribe("news", 1).await?;
    let (mut writer, _) = RawClient::connect(endpoint, 4, "writer", true).await?;
    writer.publish("news", b"tide", 1, false).await?;
    reader.round_trip().await?;
    anyhow::ensure!(reader.take_deliveries().len() == 1, "the message is not there");
    Ok(())
}

async fn tidemill() -> (tempfile::TempDir, Broker) {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), Config::default(), &[]).await.unwrap();
    (folder, broker)
}

/// A topic that starts with a character of more than one byte. Whether it is answered does not matter here.
async fn publish_to_a_multi_byte_topic(endpoint: &Endpoint) {
    let (mut client, _) = RawClient::connect(endpoint, 4, "abroad", true).await.unwrap();
    let _ = client.publish("été/température", b"31", 1, false).await;
}

/// The last member of a shared subscription, whose session is kept, leaves with one message not acknowledged, which is
/// what the loss of a device looks like.
async fn lose_the_last_member_of_a_group(endpoint: &Endpoint) {
    use bytes::BytesMut;
    use tidemill_e2e::wire::{Input, kind, put_connect, put_subscribe};
    use tokio::io::AsyncWriteExt;

    let mut output = BytesMut::new();
    put_connect(&mut output, 4, "member", false, &[]);
    put_subscribe(&mut output, false, 1, &[("$share/g/work", 1)]);
    let mut member = tokio::net::TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await.unwrap();
    member.write_all(&output).await.unwrap();
    let mut input = Input::default();
    wait_for(kind::SUBACK, &mut input, &mut member).await;
    let (mut writer, _) = RawClient::connect(endpoint, 4, "boss", true).await.unwrap();
    writer.publish("work", b"one", 1, false).await.unwrap();
    wait_for(kind::PUBLISH, &mut input, &mut member).await;

    async fn wait_for(wanted: u8, input: &mut Input, stream: &mut tokio::net::TcpStream) {
        let search = async {
            loop {
                while let Some(packet) = input.next_packet() {
                    if packet.kind() == wanted {
                        return;
                    }
                }
                input.read_some(stream).await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(10), search).await.expect("the packet never comes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_starts_with_a_multi_byte_character_stops_rumqttd_for_everybody_and_not_this_broker() {
    let rumqttd = Rumqttd::start().await;
    let (_folder, tidemill) = tidemill().await;
    serves(rumqttd.endpoint(4)).await.unwrap();

    publish_to_a_multi_byte_topic(rumqttd.endpoint(4)).await;
    publish_to_a_multi_byte_topic(tidemill.mqtt()).await;

    serves(rumqttd.endpoint(4))
        .await
        .expect_err("rumqttd 0.20.0 has stopped; a later one may be looked at again");
    serves(tidemill.mqtt()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_the_last_member_of_a_group_stops_rumqttd_for_everybody_and_not_this_broker() {
    let rumqttd = Rumqttd::start().await;
    let (_folder, tidemill) = tidemill().await;
    serves(rumqttd.endpoint(4)).await.unwrap();

    lose_the_last_member_of_a_group(rumqttd.endpoint(4)).await;
    lose_the_last_member_of_a_group(tidemill.mqtt()).await;

    serves(rumqttd.endpoint(4))
        .await
        .expect_err("rumqttd 0.20.0 has stopped; a later one may be looked at again");
    serves(tidemill.mqtt()).await.unwrap();
}
