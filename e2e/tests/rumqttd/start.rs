//! rumqttd on threads of this process. Its routers cannot be stopped; the process ends them.

use serde_json::json;
use std::time::Duration;
use tidemill_e2e::broker::free_port;
use tidemill_e2e::mosquitto::Endpoint;
use tidemill_e2e::wait::until;
use tokio::net::TcpStream;

/// One rumqttd: it serves 3.1.1 and 5.0 on ports of their own, from one router.
#[derive(Debug, Clone)]
pub(crate) struct Rumqttd {
    v4: Endpoint,
    v5: Endpoint,
}

impl Rumqttd {
    pub(crate) async fn start() -> Self {
        let [v4, v5] = [(); 2].map(|()| free_port().unwrap());
        let server = |name: &str, port: u16| {
            json!({
                "name": name,
                "listen": format!("127.0.0.1:{port}"),
                "next_connection_delay_ms": 0,
                "connections": {
                    "connection_timeout_ms": 5_000,
                    "max_payload_size": 1 << 20,
                    "max_inflight_count": 100,
                    "dynamic_filters": true,
                },
            })
        };
        let config = json!({
            "id": 0,
            "router": {
                "max_connections": 1_000,
                "max_outgoing_packet_count": 200,
                "max_segment_size": 1 << 20,
                "max_segment_count": 10,
            },
            "v4": { "a": server("v4", v4) },
            "v5": { "b": server("v5", v5) },
        });
        let config: rumqttd::Config = serde_json::from_value(config).unwrap();
        std::thread::spawn(|| drop(rumqttd::Broker::new(config).start()));
        for port in [v4, v5] {
            until("rumqttd", Duration::from_secs(30), || async {
                TcpStream::connect(("127.0.0.1", port)).await?;
                Ok(Some(()))
            })
            .await
            .unwrap();
        }
        Self { v4: Endpoint::new("127.0.0.1", v4), v5: Endpoint::new("127.0.0.1", v5) }
    }

    pub(crate) fn endpoint(&self, level: u8) -> &Endpoint {
        if level == 5 { &self.v5 } else { &self.v4 }
    }
}
