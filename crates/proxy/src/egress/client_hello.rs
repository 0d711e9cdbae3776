//! Reads the start of TLS: which server a ClientHello names, and whether the server requests a
//! second ClientHello.
//!
//! Every server must read an accepted ClientHello in the same way: handshake records only, one
//! message that ends where its record ends, one name. Formats: RFC 8446 and 5246; the name: RFC
//! 6066.

/// Progress of a parser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParseProgress<T> {
    /// At least this many bytes are needed before another attempt can succeed.
    NeedMore(usize),
    /// The message is complete.
    Done(T),
}

/// A parsed ClientHello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHello {
    /// The server's name, as the client wrote it.
    pub name: String,
    /// Length of its records in bytes.
    pub len: usize,
}

/// Why a ClientHello is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The bytes are not TLS.
    #[error("the connection does not start with TLS")]
    NotTls,
    /// Servers may read the bytes differently.
    #[error("the TLS ClientHello is malformed or ambiguous")]
    Form,
    /// It has no server name.
    #[error("the TLS ClientHello names no server (SNI)")]
    NoName,
    /// The real name is encrypted.
    #[error("the TLS ClientHello hides the server's name (ECH)")]
    Hidden,
    /// It is longer than the limit.
    #[error("the TLS ClientHello is too long")]
    TooLong,
}

/// The start of a server's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerReply {
    /// The handshake continues.
    Continues,
    /// The server requests another ClientHello (HelloRetryRequest).
    Retry,
}

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const ALERT_WARNING: u8 = 1;
const ALERT_FATAL: u8 = 2;
/// Warning alerts that a server may send before its reply.
const MAX_WARNINGS: usize = 4;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
/// Header length of a record, and of a handshake message.
const RECORD_HEAD: usize = 5;
const MESSAGE_HEAD: usize = 4;
const RECORD_MAX: usize = 1 << 14;

const SERVER_NAME: u16 = 0;
/// Extension types of Encrypted ClientHello, earlier drafts included.
const ENCRYPTED_HELLO: [u16; 4] = [0xfe0d, 0xff02, 0xff03, 0xffce];

/// The random of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3).
const HELLO_RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Parses a ClientHello from the start of a client's bytes. With `is_second`, the record that
/// middleboxes expect between the two ClientHellos may precede it. Reads at most `most` bytes and
/// accepts at most `extensions` extensions.
///
/// # Errors
/// [`HelloError`]
pub fn parse_client_hello(
    bytes: &[u8],
    is_second: bool,
    most: usize,
    extensions: usize,
) -> Result<ParseProgress<ClientHello>, HelloError> {
    let mut at = 0;
    if is_second && bytes.first() == Some(&CHANGE_CIPHER_SPEC) {
        const DUMMY: usize = RECORD_HEAD + 1;
        let Some(record) = bytes.get(..DUMMY) else {
            return Ok(ParseProgress::NeedMore(DUMMY));
        };
        if !matches!(record, [_, 3, 0..=4, 0, 1, 1]) {
            return Err(HelloError::Form);
        }
        at = DUMMY;
    }
    let mut message: Vec<u8> = Vec::new();
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        match rest {
            [HANDSHAKE, 3, 0..=4, ..] | [HANDSHAKE, 3] | [HANDSHAKE] | [] => {}
            // Only the very first byte can show that this is another protocol.
            _ if at == 0 => return Err(HelloError::NotTls),
            _ => return Err(HelloError::Form),
        }
        let Some(&[_, _, _, high, low]) = rest.get(..RECORD_HEAD) else {
            return need_more(at + RECORD_HEAD, most);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length == 0 || length > RECORD_MAX {
            return Err(HelloError::Form);
        }
        let end = at + RECORD_HEAD + length;
        let Some(payload) = bytes.get(at + RECORD_HEAD..end) else {
            return need_more(end, most);
        };
        message.extend_from_slice(payload);
        at = end;
        if at > most {
            return Err(HelloError::TooLong);
        }
        if message.first() != Some(&CLIENT_HELLO) {
            return Err(HelloError::Form);
        }
        let Some(&[_, a, b, c]) = message.get(..MESSAGE_HEAD) else {
            continue;
        };
        let whole = MESSAGE_HEAD + u32::from_be_bytes([0, a, b, c]) as usize;
        if whole > most {
            return Err(HelloError::TooLong);
        }
        if message.len() < whole {
            continue;
        }
        if message.len() > whole {
            return Err(HelloError::Form);
        }
        let body = message.get(MESSAGE_HEAD..).unwrap_or_default();
        let name = parse_server_name(body, extensions)?;
        return Ok(ParseProgress::Done(ClientHello { name, len: at }));
    }
}

fn need_more(bytes: usize, most: usize) -> Result<ParseProgress<ClientHello>, HelloError> {
    if bytes > most {
        return Err(HelloError::TooLong);
    }
    Ok(ParseProgress::NeedMore(bytes))
}

/// Unread bytes, consumed from the front.
struct Cursor<'b>(&'b [u8]);

impl<'b> Cursor<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], HelloError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(HelloError::Form)?;
        self.0 = rest;
        Ok(taken)
    }

    fn read_u8(&mut self) -> Result<usize, HelloError> {
        Ok(self.take(1)?.iter().map(|byte| usize::from(*byte)).sum())
    }

    fn read_u16(&mut self) -> Result<u16, HelloError> {
        let bytes = self.take(2)?;
        let word = bytes.first_chunk().ok_or(HelloError::Form)?;
        Ok(u16::from_be_bytes(*word))
    }

    /// Reads a vector with a two-byte length prefix.
    fn read_vector(&mut self) -> Result<&'b [u8], HelloError> {
        let length = self.read_u16()?;
        self.take(usize::from(length))
    }
}

fn parse_server_name(body: &[u8], most: usize) -> Result<String, HelloError> {
    let mut body = Cursor(body);
    body.take(2 + 32)?; // Version and random.
    let session = body.read_u8()?;
    if session > 32 {
        return Err(HelloError::Form);
    }
    body.take(session)?;
    let ciphers = body.read_vector()?;
    let compressions = body.read_u8()?;
    if ciphers.is_empty() || ciphers.len() % 2 != 0 || compressions == 0 {
        return Err(HelloError::Form);
    }
    body.take(compressions)?;
    if body.0.is_empty() {
        return Err(HelloError::NoName); // TLS 1.0 without extensions.
    }
    let mut extensions = Cursor(body.read_vector()?);
    if !body.0.is_empty() {
        return Err(HelloError::Form);
    }
    let mut seen: Vec<u16> = Vec::new();
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.read_u16()?;
        let data = extensions.read_vector()?;
        if seen.contains(&kind) || seen.len() >= most {
            return Err(HelloError::Form);
        }
        seen.push(kind);
        if ENCRYPTED_HELLO.contains(&kind) {
            return Err(HelloError::Hidden);
        }
        if kind == SERVER_NAME {
            name = Some(parse_single_name(data)?);
        }
    }
    name.ok_or(HelloError::NoName)
}

/// The only name of the server name list.
fn parse_single_name(data: &[u8]) -> Result<String, HelloError> {
    let mut data = Cursor(data);
    let mut list = Cursor(data.read_vector()?);
    let kind = list.read_u8()?;
    let name = list.read_vector()?;
    if kind != 0 || !data.0.is_empty() || !list.0.is_empty() {
        return Err(HelloError::Form);
    }
    let is_of_names = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    if name.is_empty() || !name.iter().all(is_of_names) {
        return Err(HelloError::Form);
    }
    String::from_utf8(name.to_vec()).map_err(|_| HelloError::Form)
}

/// Parses the start of a server's reply.
///
/// # Errors
/// [`HelloError`]: it is not a reply to a ClientHello, or clients may read it differently.
pub fn parse_server_reply(bytes: &[u8]) -> Result<ParseProgress<ServerReply>, HelloError> {
    const WHOLE: usize = RECORD_HEAD + MESSAGE_HEAD + 2 + HELLO_RETRY_RANDOM.len();
    const ALERT_WHOLE: usize = RECORD_HEAD + 2;
    let mut at = 0;
    // Warnings do not decide: the handshake message after them does.
    for _ in 0..=MAX_WARNINGS {
        let rest = bytes.get(at..).unwrap_or_default();
        match rest {
            [HANDSHAKE, 3, ..] | [HANDSHAKE] | [] => break,
            [ALERT, 3, ..] | [ALERT] => {}
            _ => return Err(HelloError::NotTls),
        }
        let Some(alert) = rest.get(..ALERT_WHOLE) else {
            return Ok(ParseProgress::NeedMore(at + ALERT_WHOLE));
        };
        match alert[3..] {
            [0, 2, ALERT_FATAL, _] => return Ok(ParseProgress::Done(ServerReply::Continues)),
            [0, 2, ALERT_WARNING, _] => at += ALERT_WHOLE,
            _ => return Err(HelloError::Form),
        }
    }
    let bytes = bytes.get(at..).unwrap_or_default();
    if bytes.first() == Some(&ALERT) {
        return Err(HelloError::Form);
    }
    let Some(head) = bytes.get(..RECORD_HEAD) else {
        return Ok(ParseProgress::NeedMore(at + RECORD_HEAD));
    };
    let length = u16::from_be_bytes([head[3], head[4]]);
    if usize::from(length) < WHOLE - RECORD_HEAD {
        return Err(HelloError::Form);
    }
    let Some(begin) = bytes.get(..WHOLE) else {
        return Ok(ParseProgress::NeedMore(at + WHOLE));
    };
    if begin.get(RECORD_HEAD) != Some(&SERVER_HELLO) {
        return Err(HelloError::Form);
    }
    Ok(ParseProgress::Done(
        if begin.ends_with(&HELLO_RETRY_RANDOM) {
            ServerReply::Retry
        } else {
            ServerReply::Continues
        },
    ))
}

#[cfg(test)]
mod tests;
