//! A publisher of the harness.

use super::auditor::Violation;
use super::plan::{self, Event};
use super::sender::{Again, Message, Outcome, Sender};
use super::world::{RECONNECT_PAUSE, Stage, World, publisher_name};
use crate::connection::{Connection, Hello};
use crate::wire::{RawPacket, kind};
use anyhow::{Result, bail};
use bytes::{Buf, BytesMut};
use std::sync::Arc;

/// Session expiry of an hour.
const KEPT: [u8; 5] = [0x11, 0, 0, 0x0E, 0x10];

/// Publishes its quota of every round until the run is over.
pub(super) async fn run(world: Arc<World>, number: u32) {
    let plan = world.plan.publisher(number);
    let sequences = vec![0; plan.streams.len()];
    let name = publisher_name(number);
    let mut publisher = Publisher {
        world,
        number,
        name,
        plan,
        sender: Sender::default(),
        sequences,
        next_stream: 0,
        round: 0,
        published: 0,
        has_session: false,
    };
    while publisher.world.phase.borrow().stage != Stage::Over {
        if let Err(error) = publisher.serve_one_connection().await {
            publisher.world.record_error(&publisher.name, &error);
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }
}

struct Publisher {
    world: Arc<World>,
    number: u32,
    name: String,
    plan: plan::Publisher,
    sender: Sender,
    /// By stream: the next sequence number.
    sequences: Vec<u64>,
    next_stream: usize,
    round: u32,
    /// Messages published in this round.
    published: u64,
    /// A CONNACK has come once: from then on there is a session.
    has_session: bool,
}

impl Publisher {
    /// Ends without an error when the run is over or the connection shall break.
    async fn serve_one_connection(&mut self) -> Result<()> {
        let properties: &[u8] = if self.plan.level == 5 && self.plan.is_kept { &KEPT } else { &[] };
        let (level, clean) = (self.plan.level, !self.plan.is_kept);
        let hello = Hello { level, client_id: &self.name, clean, properties };
        let (mut connection, session_present) = Connection::open_as(&self.world.endpoint, hello).await?;
        self.world.count(Event::Connected);
        let again = self.judge_session(session_present);
        let is_v5 = level == 5;
        for message in self.sender.resume(again, is_v5, &mut connection.output) {
            self.world.auditor.lock().record_sent(message.stream, message.sequence);
        }

        let mut phase = self.world.phase.subscribe();
        let begun = phase.borrow().round;
        loop {
            // The first ones may have come together with the CONNACK.
            while let Some(packet) = connection.input.next_packet() {
                self.handle_packet(packet, &mut connection.output)?;
            }
            let now = *phase.borrow_and_update();
            if now.stage == Stage::Over || self.world.is_broken(begun) {
                return Ok(());
            }
            if now.round != self.round {
                (self.round, self.published) = (now.round, 0);
            }
            self.put_messages(&mut connection.output);
            connection.flush().await?;
            tokio::select! {
                read = connection.input.read_some(&mut connection.stream) => read?,
                changed = phase.changed() => changed?,
            }
        }
    }

    fn judge_session(&mut self, session_present: bool) -> Again {
        let client = || self.name.clone();
        let had_session = std::mem::replace(&mut self.has_session, true);
        match (self.plan.is_kept, session_present) {
            (true, true) => Again::Yes,
            (true, false) => {
                if had_session {
                    self.world.record_violation(Violation::SessionLost { client: client() });
                }
                Again::No
            }
            (false, true) => {
                self.world.record_violation(Violation::SessionFromNowhere { client: client() });
                Again::No
            }
            (false, false) => Again::No,
        }
    }

    /// As many new messages as window and quota allow.
    fn put_messages(&mut self, output: &mut BytesMut) {
        let quota = self.world.plan.quota(self.number, self.round);
        while self.published < quota && self.sender.len() < self.plan.window {
            let stream = self.plan.streams[self.next_stream];
            let sequence = self.sequences[self.next_stream];
            self.sequences[self.next_stream] += 1;
            self.next_stream = (self.next_stream + 1) % self.plan.streams.len();
            self.published += 1;
            let filling_bytes = self.world.plan.filling_bytes(stream, sequence);
            self.world.auditor.lock().record_sent(stream, sequence);
            self.sender.publish(Message { stream, sequence, filling_bytes }, self.plan.level == 5, output);
        }
        if self.published >= quota && self.sender.len() == 0 {
            self.world.finish_round(self.number, self.round);
        }
    }

    fn handle_packet(&mut self, mut packet: RawPacket, output: &mut BytesMut) -> Result<()> {
        let kind = packet.kind();
        if kind == kind::DISCONNECT || packet.body.len() < 2 {
            bail!("the broker sent {packet:?}");
        }
        let packet_id = packet.body.get_u16();
        // 5.0: a reason code may follow; 0x10 says that nobody is subscribed, 0x92 that the release is known.
        let reason = packet.body.first().copied().unwrap_or(0);
        let outcome = match kind {
            kind::PUBACK => self.sender.handle_puback(packet_id),
            kind::PUBREC => self.sender.handle_pubrec(packet_id, output),
            kind::PUBCOMP => self.sender.handle_pubcomp(packet_id),
            _ => Outcome::Unexpected,
        };
        let is_refused = reason >= 0x80 && kind != kind::PUBCOMP;
        match outcome {
            Outcome::Acknowledged(message) if !is_refused => {
                self.world.auditor.lock().record_acknowledged(message.stream, message.sequence);
                self.world.count(Event::Acknowledged);
            }
            Outcome::Known if !is_refused => self.world.count(Event::Acknowledged),
            Outcome::Acknowledged(_) | Outcome::Known | Outcome::Unexpected => {
                let what = format!("packet of type {kind}, id {packet_id}, reason {reason:#x}: {outcome:?}");
                self.world
                    .record_violation(Violation::WrongAcknowledgement { client: self.name.clone(), what });
            }
        }
        Ok(())
    }
}
