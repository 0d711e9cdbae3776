//! What may leave a sandbox: the head of a CONNECT, the start of TLS, and the addresses that a name
//! may resolve to.
//!
//! Pure: bytes and addresses in, decisions out. Parsing is stricter than the standards, because
//! the client may be hostile and know this code. Must not know sockets, resolvers or time.

mod address;
mod client_hello;
mod connect;

pub use address::{SpecialPurpose, check_public};
pub use client_hello::{
    ClientHello, HelloError, ParseProgress, ServerReply, parse_client_hello, parse_server_reply,
};
pub use connect::{ConnectTarget, Denial, check_allowed, parse_connect};
