//! What may pass from a sandbox to hosts outside: the head of a CONNECT, the first words of TLS, and
//! the addresses that a name may lead to.
//!
//! Floor 2: bytes and addresses in, verdicts out. Everything here is strict where others forgive,
//! because whoever asks may be hostile and has read this. Must not know sockets, names' servers or
//! time.

mod address;
mod client_hello;
mod connect;

pub use address::{SpecialPurpose, check_public};
pub use client_hello::{
    ClientHello, HelloError, ParseProgress, ServerReply, parse_client_hello, parse_server_reply,
};
pub use connect::{ConnectTarget, Denial, check_allowed, parse_connect};
