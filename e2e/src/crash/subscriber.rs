//! A subscriber of the harness.

use super::auditor::{Arrived, Violation};
use super::plan::{self, Behaviour, Event};
use super::receiver::{Received, Receiver};
use super::stream::{self, Stream};
use super::world::{Phase, RECONNECT_PAUSE, Stage, World};
use crate::connection::{Connection, Hello};
use crate::wire::{Arrival, RawPacket, kind, put_subscribe};
use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, BytesMut};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Session expiry of an hour.
const KEPT: [u8; 5] = [0x11, 0, 0, 0x0E, 0x10];

/// Takes part as planned until the run is over.
pub(super) async fn run(world: Arc<World>, number: u32) {
    let plan = world.plan.subscriber(number);
    let name = format!("subscriber-{number}");
    let mut subscriber = Subscriber {
        world,
        number,
        name,
        wanted: plan.filters.clone(),
        plan,
        asked: BTreeMap::new(),
        last_packet_id: 0,
        receiver: Receiver::default(),
        has_session: false,
        packets: 0,
    };
    let mut phase = subscriber.world.phase.subscribe();
    loop {
        let now = *phase.borrow_and_update();
        if now.stage == Stage::Over {
            return;
        }
        if subscriber.behaviour(now) == Behaviour::Offline {
            // The world outlives its clients.
            let _ = phase.changed().await;
            continue;
        }
        if let Err(error) = subscriber.serve_one_connection().await {
            subscriber.world.record_error(&subscriber.name, &error);
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }
}

struct Subscriber {
    world: Arc<World>,
    number: u32,
    name: String,
    plan: plan::Subscriber,
    /// Publishers without a SUBACK yet, and from which round on they are wanted.
    wanted: Vec<(u32, u32)>,
    /// By packet id of a SUBSCRIBE on this connection: the publisher.
    asked: BTreeMap<u16, u32>,
    last_packet_id: u16,
    receiver: Receiver,
    /// A CONNACK has come once: from then on there is a session.
    has_session: bool,
    /// That have come on this connection.
    packets: u32,
}

impl Subscriber {
    fn behaviour(&self, now: Phase) -> Behaviour {
        match now.stage {
            Stage::Storm => self.world.plan.behaviour(self.number, now.round),
            Stage::Draining | Stage::Over => Behaviour::Prompt,
        }
    }

    /// Ends without an error when the run is over, the connection shall break, or the client shall be away.
    async fn serve_one_connection(&mut self) -> Result<()> {
        let properties = self.properties();
        let hello =
            Hello { level: self.plan.level, client_id: &self.name, clean: false, properties: &properties };
        let (mut connection, session_present) = Connection::open_as(&self.world.endpoint, hello).await?;
        self.world.count(Event::Connected);
        if std::mem::replace(&mut self.has_session, true) && !session_present {
            self.world.record_violation(Violation::SessionLost { client: self.name.clone() });
        }
        self.receiver.begin(session_present);
        (self.packets, self.last_packet_id) = (0, 0);
        self.asked.clear();

        let mut phase = self.world.phase.subscribe();
        let begun = phase.borrow().round;
        loop {
            // The first ones may have come together with the CONNACK.
            while let Some(packet) = connection.input.next_packet() {
                self.packets += 1;
                self.handle_packet(packet)?;
            }
            let now = *phase.borrow_and_update();
            let behaviour = self.behaviour(now);
            let is_broken = matches!(behaviour, Behaviour::Flaky(packets) if self.packets >= packets);
            if is_broken
                || self.world.is_broken(begun)
                || now.stage == Stage::Over
                || behaviour == Behaviour::Offline
            {
                return Ok(());
            }
            self.put_subscribes(now.round, &mut connection.output);
            self.receiver.put_acks(behaviour, self.plan.receive_maximum, &mut connection.output);
            connection.flush().await?;
            tokio::select! {
                read = connection.input.read_some(&mut connection.stream) => read?,
                changed = phase.changed() => changed?,
            }
        }
    }

    fn properties(&self) -> Vec<u8> {
        let mut properties = Vec::new();
        if self.plan.level == 5 {
            properties.put_slice(&KEPT);
            if let Some(maximum) = self.plan.receive_maximum {
                properties.put_u8(0x21);
                properties.put_u16(maximum);
            }
        }
        properties
    }

    /// Asks for what is wanted in `round` and was not asked for on this connection.
    fn put_subscribes(&mut self, round: u32, output: &mut BytesMut) {
        for (publisher, from) in &self.wanted {
            if *from > round || self.asked.values().any(|asked| asked == publisher) {
                continue;
            }
            self.last_packet_id += 1;
            self.asked.insert(self.last_packet_id, *publisher);
            self.world.auditor.lock().record_asked(self.number, self.plan.qos, *publisher);
            let filter = Stream::filter(*publisher);
            put_subscribe(output, self.plan.level == 5, self.last_packet_id, &[(&filter, self.plan.qos)]);
        }
    }

    fn handle_packet(&mut self, mut packet: RawPacket) -> Result<()> {
        match packet.kind() {
            kind::PUBLISH => self.handle_publish(Arrival::parse(packet, self.plan.level == 5)?),
            kind::PUBREL => {
                ensure!(packet.body.len() >= 2, "PUBREL without packet id");
                self.receiver.handle_pubrel(packet.body.get_u16());
            }
            kind::SUBACK => {
                ensure!(packet.body.len() >= 3, "SUBACK without reason");
                let publisher = self.asked.get(&packet.body.get_u16()).copied();
                let publisher = publisher.context("a SUBACK that was not asked for")?;
                let granted = packet.body.last().copied();
                // While the broker is not sure that the subscription holds it says so, and the client asks again.
                ensure!(granted == Some(self.plan.qos), "SUBACK says {granted:?}");
                self.wanted.retain(|(wanted, _)| *wanted != publisher);
                self.world.auditor.lock().record_subscribed(self.number, publisher);
                self.world.count(Event::Subscribed);
            }
            _ => bail!("the broker sent {packet:?}"),
        }
        Ok(())
    }

    fn handle_publish(&mut self, arrival: Arrival) {
        self.world.count(Event::Delivered);
        let read = Stream::parse(&arrival.topic)
            .and_then(|stream| Ok((stream, stream::sequence(&arrival.payload)?)));
        let (stream, sequence) = match read {
            Ok(read) => read,
            Err(error) => {
                let what = format!("{}: {error:#}", arrival.topic);
                return self.world.record_violation(Violation::Damaged { subscriber: self.number, what });
            }
        };
        let (subscriber, packet_id) = (self.number, arrival.packet_id);
        let received = self.receiver.handle_publish(&arrival, stream, sequence);
        let mut auditor = self.world.auditor.lock();
        match received {
            Received::New => {
                auditor.record_arrived(Arrived { subscriber, stream, sequence, qos: arrival.qos });
            }
            Received::Repeat => {}
            Received::RepeatWithoutDup => {
                auditor.record_violation(Violation::NotMarkedDup { subscriber, packet_id });
            }
            Received::PacketIdTaken => {
                auditor.record_violation(Violation::PacketIdTaken { subscriber, packet_id });
            }
        }
        let outstanding = self.receiver.outstanding();
        if let Some(maximum) = self.plan.receive_maximum.filter(|maximum| outstanding > (*maximum).into()) {
            auditor.record_violation(Violation::BeyondReceiveMaximum { subscriber, outstanding, maximum });
        }
    }
}
