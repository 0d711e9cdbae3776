//! What passes between a sandbox and the outside: requests to model providers (`route` decides, `relay` carries),
//! connections to allowed hosts (`egress` decides, `proxy` carries), calls of the supervisor's own tools
//! (`toolserver`), and questions to a delegate over HTTP (`delegate`).
//!
//! `route` and `egress` do no IO and read no clock. The modules that carry know each only its own rules.

pub mod delegate;
pub mod egress;
pub mod egress_proxy;
pub mod model_proxy;
pub mod route;
pub mod tool_server;
