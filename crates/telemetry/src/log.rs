//! The format of the logs: plain lines or JSON objects, always to the caller's writer.
//!
//! Owns the subscriber. Must not know configuration files or the environment: both are
//! parameters. Messages are constants; foreign text was escaped where the event was made.

use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use marshal_model::{SessionId, SlotId};

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStyle {
    /// Plain lines, in colours.
    Coloured,
    /// Plain lines.
    Plain,
    /// One JSON object a line.
    Json,
}

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be read.
    #[error("log filter: {0}; write for example `info` or `marshal=debug`")]
    Filter(#[from] ParseError),
    /// The process already has a logger.
    #[error("the process logs already: {0}")]
    AlreadyInitialised(#[from] TryInitError),
}

/// Starts logging. `filter` is a level (`info`) or directives (`marshal=debug,warn`).
///
/// # Errors
/// [`LogError`]
pub fn init<W>(form: LogStyle, filter: &str, writer: W) -> Result<(), LogError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(filter)?;
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_target(false);
    match form {
        LogStyle::Json => registry
            .with(
                layer
                    .json()
                    .flatten_event(true)
                    .with_current_span(true)
                    .with_span_list(false),
            )
            .try_init()?,
        LogStyle::Coloured => registry.with(layer.with_ansi(true)).try_init()?,
        LogStyle::Plain => registry.with(layer.with_ansi(false)).try_init()?,
    }
    Ok(())
}

/// The span of one session: everything that is logged in it carries its id and its slot.
#[must_use]
pub fn session_span(session: &SessionId, slot: &SlotId) -> tracing::Span {
    tracing::info_span!("session", %session, %slot)
}
