//! The protocol of a command in a sandbox, over a WebSocket.
//!
//! Binary messages of the client are the command's input. Binary messages of the server begin with
//! one byte that names the output, and the rest is what the command wrote. Text messages of both
//! sides are the JSON objects below. Must not know sockets.

use serde::{Deserialize, Serialize};

use marshal_model::limits::EXEC_CHUNK_BYTES;

/// The first byte of a server's binary message: stdout, or the terminal.
pub const STDOUT: u8 = 1;
/// The same for stderr.
pub const STDERR: u8 = 2;

/// The largest message of a client, in bytes.
pub const CLIENT_MESSAGE_BYTES: usize = EXEC_CHUNK_BYTES;

/// A message of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ExecClientMessage {
    /// The terminal has another size.
    Resize {
        /// Its height.
        rows: u16,
        /// Its width.
        columns: u16,
    },
    /// The input has ended.
    Eof {},
}

/// A message of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ExecServerMessage {
    /// The command runs, and is on record; the first message.
    Started {
        /// The session in whose sandbox it runs.
        session: String,
        /// Its id in the events of that session.
        terminal: String,
    },
    /// It has ended, and no process of it is left; the last message.
    Exited {
        /// Its exit code, or 128 plus the number of the signal that ended it.
        code: i32,
    },
    /// It was ended for another reason; the last message.
    Ended {
        /// The reason.
        detail: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_clients_are_read_strictly() {
        let read = |text: &str| serde_json::from_str::<ExecClientMessage>(text).ok();
        let (rows, columns) = (24, 80);
        assert_eq!(
            read(r#"{"type":"resize","rows":24,"columns":80}"#),
            Some(ExecClientMessage::Resize { rows, columns })
        );
        assert_eq!(read(r#"{"type":"eof"}"#), Some(ExecClientMessage::Eof {}));
        for bad in [
            r#"{"type":"resize","rows":24}"#,
            r#"{"type":"resize","rows":70000,"columns":80}"#,
            r#"{"type":"eof","more":1}"#,
            r#"{"type":"input"}"#,
            "{}",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
