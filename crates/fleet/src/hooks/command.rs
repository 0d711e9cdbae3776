//! A command that is told: the message on its stdin, an environment of what the file gives it, a
//! time, and nothing of it left afterwards.

use std::sync::Arc;
use std::time::Duration;

use super::DeliveryError;
use marshal_config::HookCommand;
use marshal_launch::{Host, LaunchPlan, ProcessLimits, RunError, SandboxSpec};
use marshal_model::limits::HOOK_OUTPUT_BYTES;
use marshal_model::{ExitStatus, ResourceLimits};
use marshal_telemetry::labels::HookResult;

/// Characters of what a command wrote that are logged.
const SHOWN: usize = 300;

/// The exit code by which a command says that it may work later (EX_TEMPFAIL of sysexits(3)).
const TEMPFAIL: i32 = 75;

/// What a command may use, beside its time.
const LIMITS: ProcessLimits = ProcessLimits {
    nofile: 1024,
    fsize: 1 << 30,
    nproc: None,
    group: ResourceLimits::NONE,
};

/// Runs one command.
pub(super) struct Runner {
    argv: Vec<String>,
    env: Vec<(String, String)>,
    timeout: Duration,
    host: Arc<dyn Host>,
}

impl Runner {
    pub(super) fn new(command: &HookCommand, host: Arc<dyn Host>) -> Self {
        let secrets = command.secrets.iter();
        let secrets = secrets.filter_map(|(name, secret)| Some((name, secret.expose()?)));
        let set = command
            .env
            .iter()
            .map(|(name, value)| (name, value.as_str()));
        let env = set.chain(secrets);
        Self {
            argv: command.argv.clone(),
            env: env
                .map(|(name, value)| (name.clone(), value.to_owned()))
                .collect(),
            timeout: command.timeout,
            host,
        }
    }

    /// Runs it with a message on its stdin. Dropping the future kills it with everything below it.
    pub(super) async fn run(&self, json: &str) -> Result<(), DeliveryError> {
        let plan = LaunchPlan {
            argv: self.argv.clone(),
            env: self.env.clone(),
            cwd: "/".to_owned(),
            limits: LIMITS,
            sandbox: SandboxSpec::None,
            // Written before anybody reads: a pipe takes it whole.
            preamble: format!("{json}\n").into_bytes(),
        };
        let run = self.host.run_to_end(plan, self.timeout, HOOK_OUTPUT_BYTES);
        let failed = |why: String, again| DeliveryError {
            why,
            again,
            result: HookResult::Failed,
        };
        let finished = match run.await {
            Ok(finished) => finished,
            // What ran out of time may have told somebody.
            Err(error @ RunError::TimedOut { .. }) => return Err(failed(error.to_string(), false)),
            Err(error) => return Err(failed(error.to_string(), true)),
        };
        let mut said = finished.stdout;
        said.extend_from_slice(&finished.stderr);
        let said = marshal_model::untrusted::escape_for_display(
            String::from_utf8_lossy(&said).trim_end(),
            SHOWN,
        );
        tracing::debug!(status = %finished.status, said, "a hook's command ended");
        match finished.status {
            ExitStatus::Code(0) => Ok(()),
            status => {
                let again = matches!(status, ExitStatus::Code(TEMPFAIL));
                Err(failed(format!("it ended with {status}: {said}"), again))
            }
        }
    }
}
