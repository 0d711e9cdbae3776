//! The rules between a sandbox and a git server: which requests pass, which pushes, and what a pack
//! has in it. Pure.
//!
//! A push passes if it creates or fast-forwards one ref of the route, and nothing in its pack is
//! known to be secret. Must not know sockets, processes or a clock: `model_proxy` carries requests,
//! and its owner unpacks a pack in a sandbox.

mod advertisement;
mod answer;
mod client;
mod pack;
mod pkt_line;
mod push;
mod request;

pub use advertisement::{Advertised, limit_capabilities};
pub use answer::{error_answer, fatal_answer, push_answer};
pub use client::{PushRejection, ServerRefs, read_push_report, read_server_refs};
pub use pack::{ObjectKind, PackFault, PackReader, PackSearch, pack_objects};
pub use push::{Capabilities, Command, Commands, Malformed, PushRefusal, RefLine, parse_commands};
pub use request::{GitRequest, Service};
