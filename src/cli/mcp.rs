//! `marshal mcp`: the program that an agent starts as its MCP server, inside its sandbox.
//!
//! It copies bytes between its standard input and output and a socket of the supervisor, which is
//! the server. It has no logic and no secrets: two threads, each with a bounded buffer, and no
//! runtime.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use serde::Deserialize;
use serde_json::value::RawValue;

use marshal_dialect::mcp;
use marshal_model::limits::{LINE_BYTES, READ_CHUNK_BYTES};

/// Runs until either end is closed.
pub(super) fn run(socket: &Path) -> ExitCode {
    let stream = UnixStream::connect(socket);
    let stream = stream.and_then(|stream| Ok((stream.try_clone()?, stream)));
    match stream {
        Ok((from, to)) => carry(from, to),
        Err(error) => {
            let why = format!(
                "cannot reach the supervisor at {}: {error}; this server works only in a session whose pool has engine_tools",
                socket.display()
            );
            let _ = writeln!(io::stderr(), "error: {why}");
            // Also answer the agent's first request with the error: it may not show standard error.
            let _ = refuse(io::stdin().lock(), io::stdout().lock(), &why);
            ExitCode::FAILURE
        }
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream) -> ExitCode {
    // This thread is not joined: the agent may keep the input open forever. The program ends when
    // the supervisor closes the socket.
    std::thread::spawn(move || {
        let _ = copy(&mut io::stdin().lock(), &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    match copy(&mut from, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Copies until the end, and flushes each chunk at once.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut chunk = vec![0; READ_CHUNK_BYTES];
    loop {
        let got = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(chunk.get(..got).unwrap_or_default())?;
        to.flush()?;
    }
}

/// Answers the first request with an error.
fn refuse(from: impl Read, mut to: impl Write, why: &str) -> io::Result<()> {
    #[derive(Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
    }
    let mut from = BufReader::new(from.take(LINE_BYTES as u64));
    let mut line = Vec::new();
    while {
        line.clear();
        from.read_until(b'\n', &mut line)? > 0
    } {
        let request = serde_json::from_slice::<Request<'_>>(&line).ok();
        let Some(id) = request.and_then(|request| request.id.map(RawValue::get)) else {
            continue;
        };
        to.write_all(&mcp::error_line(Some(id), mcp::INTERNAL, why))?;
        return to.flush();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_where_nobody_is_gets_an_error_with_its_id() {
        let came = "\nno JSON\n{\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"initialize\"}\n{\"id\":2}\n";
        let mut reply = Vec::new();
        refuse(came.as_bytes(), &mut reply, "nobody").expect("written");
        let reply: serde_json::Value = serde_json::from_slice(&reply).expect("one line");
        assert_eq!(reply["id"], "a");
        assert_eq!(reply["error"]["code"], -32603);
        assert_eq!(reply["error"]["message"], "nobody");
    }
}
