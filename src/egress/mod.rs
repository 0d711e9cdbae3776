//! What may pass from a sandbox to hosts outside: the head of a CONNECT, the first words of TLS, and
//! the addresses that a name may lead to.
//!
//! Floor 2: bytes and addresses in, verdicts out. Everything here is strict where others forgive,
//! because whoever asks may be hostile and has read this. Must not know sockets, names' servers or
//! time.

mod address;
mod connect;
mod hello;

pub use address::{Special, is_public};
pub use connect::{Asked, Denied, admit, read_connect};
pub use hello::{Hello, HelloFault, Read, ServerFirst, read_hello, read_server_first};
