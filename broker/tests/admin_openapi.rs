//! `/v1/openapi.json` describes what `/v1` answers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fixture/broker.rs"]
mod broker;
#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/http.rs"]
mod http;

use broker::Broker;
use client::{Client, publish};
use http::request;
use serde_json::Value;
use tidemill_core::packet::{Packet, PublishPacket, PublishProperties, Version};

/// Follows `$ref`.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).expect("the schema is there"),
        None => schema,
    }
}

/// Every member of `value` is described, with its type, and nothing that is required is missing.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = resolve(document, schema);
    match value {
        Value::Object(members) => {
            assert_eq!(schema["type"], "object", "{at}");
            let Some(properties) = schema["properties"].as_object() else { return };
            for (name, member) in members {
                let described =
                    properties.get(name).unwrap_or_else(|| panic!("{at}.{name} is not described"));
                check(document, described, member, &format!("{at}.{name}"));
            }
            for required in schema["required"].as_array().into_iter().flatten() {
                assert!(members.contains_key(required.as_str().unwrap()), "{at} has no {required}");
            }
        }
        Value::Array(items) => {
            assert_eq!(schema["type"], "array", "{at}");
            items.iter().for_each(|item| check(document, &schema["items"], item, &format!("{at}[]")));
        }
        Value::String(_) => assert_eq!(schema["type"], "string", "{at}"),
        Value::Number(_) => assert_eq!(schema["type"], "integer", "{at}"),
        Value::Bool(_) => assert_eq!(schema["type"], "boolean", "{at}"),
        Value::Null => panic!("{at}: what is absent is left out"),
    }
}

#[tokio::test]
async fn every_path_that_is_described_answers_as_described() {
    let broker = Broker::start().await;
    let address = broker.running.admin_address();
    let mut publisher = Client::connect(broker.address(), Version::V5, "p").await;
    let properties = PublishProperties {
        payload_is_utf8: Some(true),
        message_expiry_secs: Some(60),
        content_type: Some("t".into()),
        response_topic: Some("r".into()),
        correlation_data: Some("c".into()),
        user_properties: vec![("k".into(), "v".into())],
        ..PublishProperties::default()
    };
    let properties = Some(Box::new(properties));
    publisher
        .send(Packet::Publish(PublishPacket { retain: true, properties, ..publish("t", b"x", Some(1)) }))
        .await;
    publisher.receive().await;

    let document = request(address, "GET", "/v1/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();

    assert_eq!(document["openapi"], "3.1.0");
    for (path, operations) in paths {
        let filled = path.replace("{topic}", "t").replace("{clientId}", "c");
        let operations = operations.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters");
        // GET comes before DELETE would take away what it shows.
        let mut operations: Vec<_> = operations.collect();
        operations.sort_by_key(|(name, _)| *name != "get");
        for (method, operation) in operations {
            let answer = request(address, &method.to_uppercase(), &filled).await;
            let described = &operation["responses"][answer.status.to_string()];
            assert!(answer.status < 300 && described.is_object(), "{method} {path}: {answer:?}");
            if answer.status != 204 {
                let schema = &described["content"][&answer.content_type]["schema"];
                check(&document, schema, &answer.json(), path);
            }
        }
    }
    let missing = request(address, "GET", "/v1/retained/never").await;
    let schema = &paths["/v1/retained/{topic}"]["get"]["responses"]["404"]["content"][&missing.content_type];
    check(&document, &schema["schema"], &missing.json(), "problem");
}
