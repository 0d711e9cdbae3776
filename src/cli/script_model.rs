//! `marshal script-model`: serves the rehearsal model until a signal.

use marshal_rehearsal::script_model::{Args, ScriptModel, StartError};

use super::exit::Exit;
use super::signals::{Signal, Signals};
use super::streams::Streams;

/// Prints the address, and serves until a signal.
pub(super) async fn run(args: Args, json: bool, quiet: bool, mut streams: Streams) -> Exit {
    let Ok(mut signals) = Signals::install() else {
        streams.err.line("error: cannot install signal handlers");
        return Exit::CannotStart;
    };
    let model = match ScriptModel::bind(args, !quiet).await {
        Ok(model) => model,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            return match error {
                StartError::Listen { .. } => Exit::CannotStart,
                StartError::BeyondLoopback(_) | StartError::Scripts { .. } => Exit::Usage,
            };
        }
    };
    let url = format!("http://{}", model.address());
    if json {
        let line = serde_json::json!({ "address": url });
        streams.out.json(&line.to_string());
    } else {
        streams.out.line(&url);
    }
    let ended = async { while signals.next().await == Signal::Hangup {} };
    tokio::select! {
        () = model.serve() => Exit::Done,
        () = ended => Exit::Done,
    }
}
