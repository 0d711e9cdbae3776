//! A hook's command: it gets the message on its stdin and only the configured environment. After
//! its timeout it is killed with all its descendants.

use std::sync::Arc;
use std::time::Duration;

use super::DeliveryError;
use marshal_config::HookCommand;
use marshal_launch::{Host, LaunchPlan, ProcessLimits, RunError, SandboxSpec};
use marshal_model::limits::HOOK_OUTPUT_BYTES;
use marshal_model::{ExitStatus, ResourceLimits};
use marshal_telemetry::labels::HookResult;

/// How many columns of a command's output are logged.
const MAX_SHOWN: usize = 300;

/// The exit code for a temporary failure, after which the message is sent again (EX_TEMPFAIL of
/// sysexits(3)).
const TEMPFAIL: i32 = 75;

/// The resource limits of a command.
const LIMITS: ProcessLimits = ProcessLimits {
    nofile: 1024,
    fsize: 1 << 30,
    nproc: None,
    group: ResourceLimits::NONE,
};

/// Runs a hook's command.
pub(super) struct Runner {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    timeout: Duration,
    host: Arc<dyn Host>,
}

impl Runner {
    pub(super) fn new(command: &HookCommand, host: Arc<dyn Host>) -> Self {
        let secrets = command.secrets.iter();
        let secrets =
            secrets.filter_map(|(name, secret)| Some((name.clone(), secret.expose()?.to_string())));
        let set = command
            .env
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()));
        Self {
            argv: command.argv.clone(),
            env: set.chain(secrets).collect(),
            timeout: command.timeout,
            host,
        }
    }

    /// Runs the command with a message on its stdin. Dropping the future kills it and all its
    /// descendants.
    pub(super) async fn run(&self, json: &str) -> Result<(), DeliveryError> {
        let plan = LaunchPlan {
            argv: self.argv.clone(),
            env: self.env.clone(),
            cwd: "/".to_owned(),
            limits: LIMITS,
            sandbox: SandboxSpec::None,
            // Written before the command reads: the message fits into a pipe's buffer.
            preamble: format!("{json}\n").into_bytes(),
        };
        let run = self.host.run_to_end(plan, self.timeout, HOOK_OUTPUT_BYTES);
        let error = |why: String, is_retryable| DeliveryError {
            why,
            is_retryable,
            result: HookResult::Failed,
        };
        let finished = match run.await {
            Ok(finished) => finished,
            // No retry after a timeout: the command may have delivered the message already.
            Err(timeout @ RunError::TimedOut { .. }) => {
                return Err(error(timeout.to_string(), false));
            }
            Err(failure) => return Err(error(failure.to_string(), true)),
        };
        let mut output = finished.stdout;
        output.extend_from_slice(&finished.stderr);
        let output = marshal_model::untrusted::escape_for_display(
            String::from_utf8_lossy(&output).trim_end(),
            MAX_SHOWN,
        );
        tracing::debug!(status = %finished.status, said = output, "a hook's command ended");
        match finished.status {
            ExitStatus::Code(0) => Ok(()),
            status => {
                let is_retryable = matches!(status, ExitStatus::Code(TEMPFAIL));
                Err(error(
                    format!("the command ended with {status}: {output}"),
                    is_retryable,
                ))
            }
        }
    }
}
