//! WebSocket from scratch: what an agent's library would never send, a test must.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

pub const CONTINUATION: u8 = 0;
pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;

/// A frame to send. [`Frame::new`] makes a proper one; every field may be changed to make it
/// improper.
#[derive(Debug, Clone)]
pub struct Frame {
    pub opcode: u8,
    pub payload: Vec<u8>,
    pub fin: bool,
    pub masked: bool,
    /// The three reserved bits, 0 to 7.
    pub rsv: u8,
    /// The length the header claims, when it is not the payload's.
    pub declared: Option<u64>,
}

impl Frame {
    pub fn new(opcode: u8, payload: impl Into<Vec<u8>>) -> Self {
        Self { opcode, payload: payload.into(), fin: true, masked: true, rsv: 0, declared: None }
    }

    pub fn text(text: &str) -> Self {
        Self::new(TEXT, text)
    }

    pub fn close(code: u16, reason: &str) -> Self {
        Self::new(CLOSE, [&code.to_be_bytes()[..], reason.as_bytes()].concat())
    }

    pub fn encode(&self) -> Vec<u8> {
        let length = self.declared.unwrap_or(self.payload.len() as u64);
        let mask_bit = if self.masked { 0x80 } else { 0 };
        let mut bytes = vec![if self.fin { 0x80 } else { 0 } | (self.rsv << 4) | self.opcode];
        match length {
            0..=125 => bytes.push(mask_bit | length as u8),
            126..=0xffff => {
                bytes.push(mask_bit | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask_bit | 127);
                bytes.extend(length.to_be_bytes());
            }
        }
        if self.masked {
            let key: [u8; 4] = rand::random();
            bytes.extend(key);
            bytes.extend(self.payload.iter().enumerate().map(|(i, b)| b ^ key[i % 4]));
        } else {
            bytes.extend(&self.payload);
        }
        bytes
    }
}

/// A frame that was received.
#[derive(Debug)]
pub struct Received {
    pub opcode: u8,
    pub fin: bool,
    pub rsv: u8,
    pub masked: bool,
    pub payload: Vec<u8>,
}

/// Reads one frame; `None` when the connection ends.
pub fn read_frame(from: &mut impl Read) -> Option<Received> {
    let mut head = [0; 2];
    from.read_exact(&mut head).ok()?;
    let length = match head[1] & 0x7f {
        126 => {
            let mut bytes = [0; 2];
            from.read_exact(&mut bytes).ok()?;
            u64::from(u16::from_be_bytes(bytes))
        }
        127 => {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes).ok()?;
            u64::from_be_bytes(bytes)
        }
        n => u64::from(n),
    };
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    from.read_exact(&mut payload).ok()?;
    Some(Received {
        opcode: head[0] & 0x0f,
        fin: head[0] & 0x80 != 0,
        rsv: (head[0] >> 4) & 7,
        masked: head[1] & 0x80 != 0,
        payload,
    })
}

/// The request that asks for a WebSocket. `Host` and the path are proper unless `headers` holds a
/// `Host` of its own (an empty one leaves it out).
pub fn upgrade_request(port: u16, headers: &[(&str, &str)]) -> String {
    let mut lines = vec!["GET / HTTP/1.1".to_owned()];
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        lines.push(format!("Host: 127.0.0.1:{port}"));
    }
    lines.push("Upgrade: websocket".to_owned());
    lines.push("Connection: Upgrade".to_owned());
    lines.push("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==".to_owned());
    lines.push("Sec-WebSocket-Version: 13".to_owned());
    for (name, value) in headers {
        if !(name.eq_ignore_ascii_case("host") && value.is_empty()) {
            lines.push(format!("{name}: {value}"));
        }
    }
    lines.join("\r\n") + "\r\n\r\n"
}

/// What the server must answer to the key in [`upgrade_request`] (the example of RFC 6455).
pub const EXPECTED_ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A bare TCP connection to the server.
pub struct Raw {
    pub stream: TcpStream,
}

/// What came over a [`Raw`] connection.
#[derive(Debug)]
pub struct Heard {
    pub bytes: Vec<u8>,
    /// The server closed the connection.
    pub closed: bool,
}

impl Heard {
    /// The status code of an HTTP response.
    pub fn status(&self) -> Option<u16> {
        status(&self.bytes)
    }

    /// The code of the close frame among the frames received, if any.
    pub fn close_code(&self) -> Option<u16> {
        let mut rest = &self.bytes[..];
        while let Some(frame) = read_frame(&mut rest) {
            if let (CLOSE, [a, b, ..]) = (frame.opcode, &frame.payload[..]) {
                return Some(u16::from_be_bytes([*a, *b]));
            }
        }
        None
    }
}

/// The status code of an HTTP response.
pub fn status(response: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(response.get(..12)?).ok()?;
    text.strip_prefix("HTTP/1.1 ")?.parse().ok()
}

impl Raw {
    pub fn connect(port: u16) -> Self {
        Self::connect_with(port, None)
    }

    /// With a small receive buffer the server soon notices that nobody reads.
    pub fn connect_with(port: u16, receive_buffer: Option<usize>) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if let Some(size) = receive_buffer {
            socket.set_recv_buffer_size(size).unwrap();
        }
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        socket
            .connect_timeout(&address.into(), Duration::from_secs(4))
            .unwrap_or_else(|e| panic!("no connection to port {port}: {e}"));
        socket.set_tcp_nodelay(true).unwrap();
        Self { stream: socket.into() }
    }

    /// Sends bytes; false when the server has closed the connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Asks for a WebSocket and returns the head of the response.
    pub fn upgrade(&mut self, headers: &[(&str, &str)]) -> String {
        let port = self.stream.peer_addr().unwrap().port();
        self.send(upgrade_request(port, headers));
        self.head()
    }

    /// The head of an HTTP response, up to and with the empty line, or what there is when the
    /// connection ends.
    pub fn head(&mut self) -> String {
        let mut head = Vec::new();
        self.stream.set_read_timeout(Some(super::PATIENCE)).unwrap();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && matches!(self.stream.read(&mut byte), Ok(1)) {
            head.push(byte[0]);
        }
        String::from_utf8_lossy(&head).into_owned()
    }

    /// Listens until the server closes the connection, for `limit` at most.
    pub fn listen(&mut self, limit: Duration) -> Heard {
        let end = Instant::now() + limit;
        let mut bytes = Vec::new();
        let mut buffer = [0; 1 << 14];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Heard { bytes, closed: false };
            }
            self.stream.set_read_timeout(Some(left)).unwrap();
            match self.stream.read(&mut buffer) {
                Ok(0) => return Heard { bytes, closed: true },
                Ok(n) => bytes.extend(&buffer[..n]),
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                    ) => {}
                Err(_) => return Heard { bytes, closed: true },
            }
        }
    }
}

/// Sends one HTTP request and returns what comes back.
pub fn talk(port: u16, request: impl AsRef<[u8]>, limit: Duration) -> Heard {
    let mut raw = Raw::connect(port);
    raw.send(request);
    raw.listen(limit)
}
