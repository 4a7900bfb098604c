//! One connection, seen from both sides of the upgrade.
//!
//! hyper and the WebSocket own a `Wire` to read and write; the task that serves the connection
//! keeps another handle to count what goes over it, and to close it properly: the last bytes must
//! be read before the socket is closed, else the system answers unread ones with a reset and the
//! peer loses our Close frame or status.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// What the bytes travel over.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

#[derive(Debug)]
struct Inner {
    socket: Mutex<Socket>,
    /// Bytes so far.
    read: AtomicU64,
    written: AtomicU64,
}

#[derive(Debug, Clone)]
pub(super) struct Wire(Arc<Inner>);

impl Wire {
    pub(super) fn new(socket: Socket) -> Self {
        if let Socket::Tcp(tcp) = &socket {
            let _ = tcp.set_nodelay(true);
        }
        let (read, written) = (AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(Inner { socket: Mutex::new(socket), read, written }))
    }

    /// Bytes read and bytes written so far.
    pub(super) fn traffic(&self) -> (u64, u64) {
        (self.0.read.load(Ordering::Relaxed), self.0.written.load(Ordering::Relaxed))
    }

    /// Ends our side and reads what the peer still has to say, until it ends its own or `patience`
    /// is over.
    pub(super) async fn close(mut self, patience: Duration) {
        let drain = async {
            self.shutdown().await?;
            let mut rest = [0; 4096];
            while self.read(&mut rest).await? > 0 {}
            io::Result::Ok(())
        };
        let _ = tokio::time::timeout(patience, drain).await;
    }

    fn socket(&self) -> MutexGuard<'_, Socket> {
        // Held for one poll at a time; a socket cannot be left half polled.
        self.0.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = match &mut *self.socket() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Socket::Unix(unix) => Pin::new(unix).poll_read(cx, buf),
        };
        let read = (buf.filled().len() - before) as u64;
        self.0.read.fetch_add(read, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = match &mut *self.socket() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Socket::Unix(unix) => Pin::new(unix).poll_write(cx, buf),
        };
        if let Poll::Ready(Ok(written)) = polled {
            self.0.written.fetch_add(written as u64, Ordering::Relaxed);
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.socket() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
            Socket::Unix(unix) => Pin::new(unix).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self.socket() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Socket::Unix(unix) => Pin::new(unix).poll_shutdown(cx),
        }
    }
}
