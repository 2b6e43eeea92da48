//! The connections of the admin port: anybody can open them, so they are few and short.

use crate::admission::{Admission, AdmissionLimits, Admitted};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep, sleep};

/// Connections at a time; more are closed at once.
const CONNECTIONS: AdmissionLimits = AdmissionLimits { total: 64, per_source: 16 };
/// A connection that says nothing for so long is closed. Shorter than the interval of most scrapes.
const IDLE: Duration = Duration::from_secs(10);
/// Pause when the system has no descriptor left, or the like.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The admin port's socket.
#[derive(Debug)]
pub(super) struct AdminListener {
    socket: TcpListener,
    admission: Arc<Admission>,
    idle: Duration,
}

impl AdminListener {
    pub(super) fn new(socket: TcpListener) -> Self {
        Self { socket, admission: Admission::new(CONNECTIONS), idle: IDLE }
    }
}

impl axum::serve::Listener for AdminListener {
    type Io = AdminStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (AdminStream, SocketAddr) {
        loop {
            match self.socket.accept().await {
                Ok((socket, address)) => {
                    if let Some(admitted) = self.admission.admit(address.ip()) {
                        return (AdminStream::new(socket, self.idle, admitted), address);
                    }
                    tracing::debug!(%address, "too many connections to the admin port");
                }
                Err(error) => {
                    tracing::warn!(%error, "admin port cannot accept");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// One connection to the admin port.
#[derive(Debug)]
pub(super) struct AdminStream {
    socket: TcpStream,
    idle: Duration,
    deadline: Pin<Box<Sleep>>,
    _admitted: Admitted,
}

impl AdminStream {
    fn new(socket: TcpStream, idle: Duration, admitted: Admitted) -> Self {
        Self { socket, idle, deadline: Box::pin(sleep(idle)), _admitted: admitted }
    }
}

impl AsyncRead for AdminStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if read.is_pending() {
            ready!(self.deadline.as_mut().poll(context));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let until = Instant::now() + self.idle;
        self.deadline.as_mut().reset(until);
        read
    }
}

impl AsyncWrite for AdminStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_secs(30);

    async fn serve(idle: Duration) -> SocketAddr {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let listener = AdminListener { idle, ..AdminListener::new(socket) };
        let routes = axum::Router::new().route("/", get(|| async { "here" }));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        address
    }

    async fn closed(socket: &mut TcpStream) -> bool {
        let read = timeout(PATIENCE, socket.read(&mut [0; 1])).await.expect("it is closed in time");
        read.is_err() || read.is_ok_and(|bytes| bytes == 0)
    }

    #[tokio::test]
    async fn idle_connections_of_one_source_leave_room_for_others() {
        let address = serve(PATIENCE).await;
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS.total {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(closed(idle.last_mut().unwrap()).await, "beyond what one source may have");

        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut other = socket.connect(address).await.unwrap();
        other.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, other.read_to_string(&mut answer)).await.unwrap().unwrap();

        assert!(answer.ends_with("here"), "{answer}");
    }

    #[tokio::test]
    async fn a_connection_that_says_nothing_is_closed_and_its_place_is_free() {
        let address = serve(Duration::from_millis(20)).await;

        for _ in 0..2 * CONNECTIONS.per_source {
            assert!(closed(&mut TcpStream::connect(address).await.unwrap()).await);
        }
    }
}
