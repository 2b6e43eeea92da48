//! Writing a mailbox to its socket.

use super::buffer::{Chunk, OutBuffer};
use super::{CloseReason, Inner, Mailbox, wake};
use parking_lot::MutexGuard;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

/// Chunks that one flush writes while others keep adding; then the connection's task goes on.
const CHUNKS_PER_FLUSH: usize = 8;

/// How the bytes of a mailbox leave.
#[derive(Debug, Clone)]
pub enum Flush {
    /// Plain TCP: whoever delivered writes to the socket itself.
    PlainTcp(Arc<OwnedWriteHalf>),
    /// No socket: counts what arrives. The health check subscribes with it.
    Probe(Arc<Probe>),
}

/// Counts the chunks that reached a mailbox without a socket.
#[derive(Debug, Default)]
pub struct Probe {
    arrived: AtomicU64,
    notify: Notify,
}

impl Probe {
    /// Chunks that arrived so far.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
    }

    /// Completes when more than `count` chunks have arrived. Cancel-safe.
    pub async fn beyond(&self, count: u64) {
        loop {
            let notified = self.notify.notified();
            if self.arrived() > count {
                return;
            }
            notified.await;
        }
    }
}

enum Written {
    All,
    /// The socket takes no more now.
    Blocked,
    Failed,
}

impl Mailbox {
    /// Writes what waits, unless another thread is at it or the socket is full. No lock is held while it writes.
    pub fn flush(&self) {
        let mut inner = self.inner.lock();
        inner.is_dirty = false;
        if inner.is_blocked {
            // The task waits for the socket; it must not when the connection is to end.
            if inner.closing.is_some() {
                wake(inner);
            }
            return;
        }
        self.write(inner);
    }

    /// The socket may take bytes again.
    pub fn handle_writable(&self) {
        let mut inner = self.inner.lock();
        inner.is_blocked = false;
        self.write(inner);
    }

    pub(super) fn write(&self, mut inner: MutexGuard<'_, Inner>) {
        // Whoever writes looks again before it stops, so what was added meanwhile leaves too.
        if inner.is_writing {
            return;
        }
        let Some(flush) = inner.flush.clone() else { return };
        for _ in 0..CHUNKS_PER_FLUSH {
            let Some(mut chunk) = inner.buffer.take() else {
                if std::mem::take(&mut inner.is_room_awaited) || inner.closing.is_some() {
                    wake(inner);
                }
                return;
            };
            inner.is_writing = true;
            let before = chunk.len();
            let written = MutexGuard::unlocked(&mut inner, || {
                let written = flush.write(&mut chunk);
                // The packets of a chunk count once all of it is written.
                let packets = if chunk.is_empty() { chunk.packets() } else { 0 };
                self.context.metrics.add_written(packets, before - chunk.len());
                written
            });
            inner.is_writing = false;
            inner.buffer.give_back(chunk);
            match written {
                Written::All => {}
                Written::Blocked => {
                    inner.is_blocked = true;
                    return wake(inner);
                }
                Written::Failed => {
                    inner.flush = None;
                    inner.buffer = OutBuffer::default();
                    inner.closing.get_or_insert(CloseReason::ConnectionLost);
                    return wake(inner);
                }
            }
        }
        // The socket may take more: the connection's task goes on.
        inner.is_left_to_task = true;
        wake(inner);
    }
}

impl Flush {
    fn write(&self, chunk: &mut Chunk) -> Written {
        match self {
            Self::PlainTcp(socket) => write_socket(socket, chunk),
            Self::Probe(probe) => {
                chunk.advance(chunk.len());
                probe.arrived.fetch_add(1, Ordering::AcqRel);
                probe.notify.notify_waiters();
                Written::All
            }
        }
    }
}

fn write_socket(socket: &OwnedWriteHalf, chunk: &mut Chunk) -> Written {
    while !chunk.is_empty() {
        let outcome = match chunk.contiguous() {
            Some(bytes) => socket.try_write(bytes),
            None => socket.try_write_vectored(&chunk.slices()),
        };
        match outcome {
            Ok(0) => return Written::Failed,
            Ok(count) => chunk.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Written::Blocked,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Written::Failed,
        }
    }
    Written::All
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::{Kept, LiveDelivery, MailboxContext, MailboxLimits, OpenedClient, Turn};
    use crate::metrics::Metrics;
    use std::num::NonZeroU16;
    use tidemill_codec::Encoder;
    use tidemill_core::message::Message;
    use tidemill_core::packet::{QoS, Version};
    use tidemill_core::session::timers::KeepAlive;
    use tidemill_core::topic::TopicName;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    const THREADS: u8 = 4;
    const MESSAGES: u32 = 5_000;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (client, server) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (client.unwrap(), server.unwrap().0)
    }

    fn message(thread: u8, number: u32) -> Arc<Message> {
        // Some are large enough to stay shared.
        let mut payload = vec![thread; if number.is_multiple_of(97) { 6_000 } else { 20 }];
        payload[1..5].copy_from_slice(&number.to_be_bytes());
        Arc::new(Message {
            topic: TopicName::parse("t").unwrap(),
            payload: payload.into(),
            qos: QoS::AtMostOnce,
            retain: false,
            properties: None,
            publisher: "p".into(),
            publish_time_ms: 0,
        })
    }

    fn deliver_all(mailbox: &Arc<Mailbox>, metrics: &Metrics, thread: u8) {
        for first in (0..MESSAGES).step_by(10) {
            let mut turn = Turn::begin(metrics);
            for number in first..first + 10 {
                let message = message(thread, number);
                let (qos, retain) = (QoS::AtMostOnce, false);
                mailbox
                    .deliver(LiveDelivery { message: &message, qos, retain, identifiers: None }, &mut turn);
            }
            turn.finish();
        }
    }

    /// What is about to be written by another thread does not wait for the client.
    #[test]
    fn threads_that_deliver_at_once_never_take_each_others_batches_for_a_full_mailbox() {
        let metrics = Metrics::new().unwrap();
        let context = Arc::new(MailboxContext {
            limits: MailboxLimits { messages: 20, bytes: usize::MAX },
            metrics: metrics.clone(),
            may_acknowledge: Box::new(|| true),
        });
        let mailbox = Mailbox::new(context, Flush::Probe(Arc::default()));

        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (mailbox, metrics) = (&mailbox, &metrics);
                scope.spawn(move || deliver_all(mailbox, metrics, thread));
            }
        });

        let dropped = metrics.drops(crate::metrics::DropReason::MailboxFull);
        assert_eq!((dropped, mailbox.is_drained()), (0, true));
    }

    /// The end of a connection waits for what is not written: what comes after the socket failed never will be, and the
    /// wait would keep its thread for ever.
    #[tokio::test]
    async fn nothing_waits_for_a_socket_that_has_failed_whatever_is_queued_after_it() {
        let (client, server) = pair().await;
        let (_reader, writer) = server.into_split();
        let metrics = Metrics::new().unwrap();
        let context = Arc::new(MailboxContext {
            limits: MailboxLimits { messages: usize::MAX, bytes: usize::MAX },
            metrics: metrics.clone(),
            may_acknowledge: Box::new(|| true),
        });
        let mailbox = Mailbox::new(context, Flush::PlainTcp(Arc::new(writer)));
        drop(client);
        let queue = || {
            let mut turn = Turn::begin(&metrics);
            mailbox.send(&tidemill_core::packet::Packet::PingResp, &mut turn);
            turn.finish();
        };
        while mailbox.closing().is_none() {
            queue();
            tokio::task::yield_now().await;
        }

        queue();

        assert!(mailbox.is_drained());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_threads_deliver_at_once_and_every_packet_arrives_whole_and_in_its_threads_order() {
        let (mut client, server) = pair().await;
        let (_reader, writer) = server.into_split();
        let writer = Arc::new(writer);
        let metrics = Metrics::new().unwrap();
        let context = Arc::new(MailboxContext {
            limits: MailboxLimits { messages: usize::MAX, bytes: usize::MAX },
            metrics: metrics.clone(),
            may_acknowledge: Box::new(|| true),
        });
        let mailbox = Mailbox::new(context, Flush::PlainTcp(Arc::clone(&writer)));
        mailbox.open(OpenedClient {
            client_id: "c".into(),
            encoder: Encoder::new(Version::V3_1_1, None),
            window: NonZeroU16::MIN,
            receive_maximum: 1,
            keep_alive: KeepAlive::of_connect(0, 0),
            kept: Kept::Nothing,
            topic_alias_maximum: 0,
        });
        let owner = tokio::spawn({
            let (mailbox, writer) = (Arc::clone(&mailbox), Arc::clone(&writer));
            std::future::poll_fn(move |context| -> std::task::Poll<()> {
                while mailbox.poll_state(context).is_blocked {
                    let socket: &TcpStream = (*writer).as_ref();
                    match socket.poll_write_ready(context) {
                        std::task::Poll::Ready(_) => mailbox.handle_writable(),
                        std::task::Poll::Pending => break,
                    }
                }
                std::task::Poll::Pending
            })
        });

        let deliverers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (mailbox, metrics) = (Arc::clone(&mailbox), metrics.clone());
                tokio::task::spawn_blocking(move || deliver_all(&mailbox, &metrics, thread))
            })
            .collect();

        let mut next = [0_u32; THREADS as usize];
        for _ in 0..u32::from(THREADS) * MESSAGES {
            assert_eq!(client.read_u8().await.unwrap(), 0x30);
            let (mut len, mut shift) = (0_usize, 0);
            loop {
                let byte = client.read_u8().await.unwrap();
                len |= usize::from(byte & 0x7F) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    break;
                }
            }
            let mut body = vec![0; len];
            client.read_exact(&mut body).await.unwrap();
            let (thread, number) = (body[3], u32::from_be_bytes(body[4..8].try_into().unwrap()));
            assert_eq!(number, next[usize::from(thread)], "thread {thread}");
            assert_eq!(body[3..], message(thread, number).payload[..]);
            next[usize::from(thread)] += 1;
        }
        for deliverer in deliverers {
            deliverer.await.unwrap();
        }
        assert!(mailbox.is_drained());
        owner.abort();
    }
}
