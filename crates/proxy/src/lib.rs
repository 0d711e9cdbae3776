//! Traffic between a sandbox and the outside: requests to model providers and git servers (`route`,
//! `git` and `forge` decide, `model_proxy` forwards), connections to allowed hosts (`egress` decides, `egress_proxy`
//! forwards), calls of the supervisor's own tools (`tool_server`), and queries of a delegate over
//! HTTP (`delegate`).
//!
//! `route`, `git`, `forge` and `egress` do no IO and read no clock. Each forwarding module uses only its own
//! rules.

pub mod delegate;
pub mod egress;
pub mod egress_proxy;
pub mod forge;
pub mod git;
pub mod model_proxy;
pub mod route;
pub mod tool_server;
