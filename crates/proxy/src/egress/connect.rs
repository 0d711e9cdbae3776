//! The head of a request to the egress proxy: only `CONNECT host:port`, parsed strictly, then
//! compared with the allow-list.

use marshal_config::{Egress, check_host_name};
use marshal_model::EgressResult as Why;
use marshal_model::limits::EGRESS_HEADERS;
use marshal_wire::http;

/// The target of a CONNECT. The host is in lower case: the same form is compared, resolved and
/// expected in TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTarget {
    /// The host name.
    pub host: String,
    /// The port, not 0.
    pub port: u16,
}

/// A refused connection, and what the client is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The result for metrics and the journal.
    pub result: Why,
    /// The HTTP status.
    pub status: u16,
    /// One sentence in printable ASCII. Of the request it contains only a checked host.
    pub message: String,
}

impl Denial {
    /// A refusal with this result, status and message.
    #[must_use]
    pub fn new(result: Why, status: u16, message: impl Into<String>) -> Self {
        Self {
            result,
            status,
            message: message.into(),
        }
    }

    /// The complete HTTP response. The message is also in the status line, because most clients
    /// show only that.
    #[must_use]
    pub fn to_http(&self) -> Vec<u8> {
        let Self {
            status, message, ..
        } = self;
        let allow = if *status == 405 {
            "allow: CONNECT\r\n"
        } else {
            ""
        };
        format!(
            "HTTP/1.1 {status} marshal: {message}\r\n{allow}content-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\nmarshal: {message}\n",
            message.len() + "marshal: \n".len()
        )
        .into_bytes()
    }
}

fn malformed(what: &str) -> Denial {
    Denial::new(Why::Head, 400, what)
}

/// Parses the bytes of a head, up to and including the empty line at its end.
///
/// # Errors
/// A [`Denial`] that says what is malformed.
pub fn parse_connect(head: &[u8]) -> Result<ConnectTarget, Denial> {
    let text = head
        .strip_suffix(b"\r\n\r\n")
        .ok_or_else(|| malformed("the request head is incomplete"))?;
    if text.contains(&0) {
        return Err(malformed("the request head contains a NUL byte"));
    }
    let mut lines = Vec::new();
    let mut rest = text;
    loop {
        let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
        let Some(end) = end else {
            lines.push(rest);
            break;
        };
        let (line, after) = rest.split_at(end);
        lines.push(line);
        rest = after
            .strip_prefix(b"\r\n")
            .ok_or_else(|| malformed("a line ends with a bare line feed or carriage return"))?;
        if lines.len() > EGRESS_HEADERS + 1 {
            let what = format!("the request has more than {EGRESS_HEADERS} headers");
            return Err(Denial::new(Why::Head, 431, what));
        }
    }
    let (request, headers) = lines
        .split_first()
        .ok_or_else(|| malformed("the request head is empty"))?;
    let (target, is_old) = parse_request_line(request)?;
    check_headers(headers, &target, is_old)?;
    Ok(target)
}

/// The target; `true` for HTTP/1.0.
fn parse_request_line(line: &[u8]) -> Result<(ConnectTarget, bool), Denial> {
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        let what = "the request line is not a method, a target and a version";
        return Err(malformed(what));
    };
    if !http::is_token(method) {
        return Err(malformed("the method is not a valid token"));
    }
    let is_old = match version {
        b"HTTP/1.1" => false,
        b"HTTP/1.0" => true,
        _ => return Err(malformed("the version is not HTTP/1.1")),
    };
    if method != b"CONNECT" {
        let what = "this proxy accepts only CONNECT for TLS: use https:// instead of plain HTTP";
        return Err(Denial::new(Why::Method, 405, what));
    }
    Ok((parse_target(target)?, is_old))
}

/// Parses `host:port`.
fn parse_target(target: &[u8]) -> Result<ConnectTarget, Denial> {
    let wrong = |what: &str| Err(Denial::new(Why::Target, 400, what));
    let Ok(text) = std::str::from_utf8(target) else {
        return wrong("the target is not ASCII");
    };
    if text.contains('@') {
        return wrong("the target contains a user name");
    }
    if text.starts_with('[') {
        return wrong("the target is an IP address: use a host name of the allow-list");
    }
    let Some((host, port)) = text.split_once(':') else {
        return wrong("the target has no port");
    };
    let is_port = (1..=5).contains(&port.len())
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && !port.starts_with('0');
    let port = port.parse::<u16>().ok().filter(|_| is_port);
    let Some(port) = port else {
        return wrong("the port is not a number from 1 to 65535");
    };
    let host = host.to_ascii_lowercase();
    if let Err(fault) = check_host_name(&host) {
        return wrong(fault.message());
    }
    Ok(ConnectTarget { host, port })
}

fn check_headers(lines: &[&[u8]], target: &ConnectTarget, is_old: bool) -> Result<(), Denial> {
    let mut hosts = 0;
    for line in lines {
        let (name, value) =
            http::parse_header(line).map_err(|error| malformed(&error.to_string()))?;
        match name.to_ascii_lowercase().as_slice() {
            b"host" => {
                hosts += 1;
                let value = value.to_ascii_lowercase();
                let (host, port) = (target.host.as_bytes(), target.port.to_string());
                let with_port = [host, b":", port.as_bytes()].concat();
                if value != with_port && value != host {
                    return Err(malformed(
                        "the header Host and the CONNECT target name different hosts",
                    ));
                }
            }
            b"content-length" | b"transfer-encoding" | b"trailer" => {
                return Err(malformed("a CONNECT request must not have a body"));
            }
            b"upgrade" | b"expect" => {
                return Err(malformed(
                    "a CONNECT request must not have the headers Upgrade or Expect",
                ));
            }
            _ => {}
        }
    }
    if hosts > 1 || (hosts == 0 && !is_old) {
        return Err(malformed(
            "the request has no header Host, or more than one",
        ));
    }
    Ok(())
}

/// Checks a target against the allow-list.
///
/// # Errors
/// A [`Denial`] if the target is not on the list.
pub fn check_allowed(rules: &Egress, target: &ConnectTarget) -> Result<(), Denial> {
    let ConnectTarget { host, port } = target;
    if rules
        .allow
        .iter()
        .any(|allowed| allowed.allows(host, *port))
    {
        return Ok(());
    }
    let what = if rules.allow.is_empty() {
        "the allow-list of this sandbox is empty: it may connect to no host".to_owned()
    } else {
        format!("{host}:{port} is not on the allow-list of this sandbox")
    };
    Err(Denial::new(Why::NotAllowed, 403, what))
}

#[cfg(test)]
mod tests;
