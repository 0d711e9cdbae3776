//! The head of a request from inside: only `CONNECT host:port`, read strictly, and held against the
//! allow-list.

use marshal_config::{Egress, check_host_name};
use marshal_model::EgressResult as Why;
use marshal_model::limits::EGRESS_HEADERS;
use marshal_wire::http;

/// Where somebody inside wants to go: the host in lower case, as it is compared, looked up and
/// expected in TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectTarget {
    /// The host.
    pub host: String,
    /// The port, not 0.
    pub port: u16,
}

/// A connection that does not pass, and what its opener is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The word for metrics and journal.
    pub result: Why,
    /// The HTTP status.
    pub status: u16,
    /// One sentence in printable ASCII, with no text of the request in it but a checked host.
    pub message: String,
}

impl Denial {
    /// One.
    #[must_use]
    pub fn new(result: Why, status: u16, message: impl Into<String>) -> Self {
        Self {
            result,
            status,
            message: message.into(),
        }
    }

    /// The whole answer. The sentence stands in its first line, too: most clients show only that.
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

/// Reads the bytes of a head, the empty line at its end included.
///
/// # Errors
/// What is wrong with it.
pub fn parse_connect(head: &[u8]) -> Result<ConnectTarget, Denial> {
    let text = head
        .strip_suffix(b"\r\n\r\n")
        .ok_or_else(|| malformed("the head has no end"))?;
    if text.contains(&0) {
        return Err(malformed("the head holds a NUL"));
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
        .ok_or_else(|| malformed("the head is empty"))?;
    let (asked, is_old) = parse_request_line(request)?;
    check_headers(headers, &asked, is_old)?;
    Ok(asked)
}

/// Where it leads; `true` for HTTP/1.0.
fn parse_request_line(line: &[u8]) -> Result<(ConnectTarget, bool), Denial> {
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        let what = "the request line is not a method, a target and a version";
        return Err(malformed(what));
    };
    if !http::is_token(method) {
        return Err(malformed("the method is none"));
    }
    let is_old = match version {
        b"HTTP/1.1" => false,
        b"HTTP/1.0" => true,
        _ => return Err(malformed("the version is not HTTP/1.1")),
    };
    if method != b"CONNECT" {
        let what = "this proxy takes only CONNECT, for TLS: plain HTTP does not leave the sandbox, use https://";
        return Err(Denial::new(Why::Method, 405, what));
    }
    Ok((parse_target(target)?, is_old))
}

/// Reads `host:port`.
fn parse_target(target: &[u8]) -> Result<ConnectTarget, Denial> {
    let wrong = |what: &str| Err(Denial::new(Why::Target, 400, what));
    let Ok(text) = std::str::from_utf8(target) else {
        return wrong("the target is not ASCII");
    };
    if text.contains('@') {
        return wrong("the target holds a user");
    }
    if text.starts_with('[') {
        return wrong("the target is an address: only names of the allow-list are taken");
    }
    let Some((host, port)) = text.split_once(':') else {
        return wrong("the target has no port");
    };
    let is_port = (1..=5).contains(&port.len())
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && !port.starts_with('0');
    let port = port.parse::<u16>().ok().filter(|_| is_port);
    let Some(port) = port else {
        return wrong("the port is no number from 1 to 65535");
    };
    let host = host.to_ascii_lowercase();
    if let Err(fault) = check_host_name(&host) {
        return wrong(fault.message());
    }
    Ok(ConnectTarget { host, port })
}

fn check_headers(lines: &[&[u8]], asked: &ConnectTarget, is_old: bool) -> Result<(), Denial> {
    let mut hosts = 0;
    for line in lines {
        let (name, value) = http::parse_header(line).map_err(malformed)?;
        match name.to_ascii_lowercase().as_slice() {
            b"host" => {
                hosts += 1;
                let value = value.to_ascii_lowercase();
                let (host, port) = (asked.host.as_bytes(), asked.port.to_string());
                let with_port = [host, b":", port.as_bytes()].concat();
                if value != with_port && value != host {
                    return Err(malformed("the header Host names another host than CONNECT"));
                }
            }
            b"content-length" | b"transfer-encoding" | b"trailer" => {
                return Err(malformed("a CONNECT has no body"));
            }
            b"upgrade" | b"expect" => {
                return Err(malformed("a CONNECT has no Upgrade and no Expect"));
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

/// Holds a target against the allow-list.
///
/// # Errors
/// It is not on it.
pub fn check_allowed(rules: &Egress, asked: &ConnectTarget) -> Result<(), Denial> {
    let ConnectTarget { host, port } = asked;
    if rules
        .allow
        .iter()
        .any(|allowed| allowed.allows(host, *port))
    {
        return Ok(());
    }
    let what = if rules.allow.is_empty() {
        "the allow-list of this sandbox is empty: no host is reached from here".to_owned()
    } else {
        format!("{host}:{port} is not on the allow-list of this sandbox")
    };
    Err(Denial::new(Why::NotAllowed, 403, what))
}

#[cfg(test)]
mod tests;
