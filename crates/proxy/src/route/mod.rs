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
mod model_request;
mod refusal;
mod usage;

pub use answer::{
    announced_wait, announced_wait_in_body, is_limited, is_redirect, passes_response_header,
};
pub use body::inspect_body;
pub use head::{AllowedRequest, check_head, match_allow_list};
pub use headers::{filter_request_headers, is_credential};
pub use model_request::{ModelRequest, is_free};
pub use refusal::Refusal;
pub use usage::{Tokens, UsageReader};
