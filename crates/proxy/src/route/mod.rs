//! The rules between a sandbox and an upstream, a model provider or a package registry: which
//! requests, headers and bodies are forwarded, and what a response says about tokens and limits.
//! Pure.
//!
//! Must not know sockets, a runtime or a clock: bytes and header maps in, decisions and numbers
//! out. Nothing here stores, logs or shows the content of a body or header, except for the message
//! that goes back to its sender.

mod answer;
mod body;
mod head;
mod headers;
mod key_guard;
mod model_request;
mod refusal;
mod registry;
mod usage;

pub use answer::{
    announced_wait, announced_wait_in_body, is_limited, is_redirect, passes_response_header,
};
pub use body::inspect_body;
pub use head::{AllowedRequest, check_head, match_allow_list};
pub use headers::{filter_request_headers, is_credential};
pub use key_guard::{KeyForms, KeyFound, KeyGuard};
pub use model_request::{ModelRequest, is_free};
pub use refusal::Refusal;
pub use registry::{
    PageRewriter, REGISTRY_CONTENTS, RegistryContent, RegistryTarget, check_registry_request,
    describes_bytes, follow_redirect, registry_headers,
};
pub use usage::{Tokens, UsageReader};
