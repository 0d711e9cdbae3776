//! What passes between a sandbox and a model provider: which requests, which headers, which bodies,
//! and what an answer says of tokens and limits. Pure.
//!
//! Floor 2. Must not know sockets, a runtime or a clock: bytes and header maps come in, verdicts
//! and numbers go out. Nothing here keeps, logs or shows what a body or header holds, but for the
//! sentence that goes back to whoever sent it.

mod answer;
mod body;
mod head;
mod headers;
mod refusal;
mod usage;
mod wants;

pub use answer::{announced, announced_in_body, is_limited, is_redirect, keep_answer_header};
pub use body::inspect;
pub use head::{Asked, asked, check_head};
pub use headers::{is_credential, pass_headers};
pub use refusal::Refusal;
pub use usage::{Tokens, UsageReader};
pub use wants::{Wants, is_free};
