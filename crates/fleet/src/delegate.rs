//! A pool's delegate: an external decider of the site, queried by command or by HTTP.
//!
//! Owns the limit of concurrent queries and their timeout. Every failure is an error with a code,
//! never a decision. Must not know what follows from an answer.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::clock;
use marshal_config::{Delegate as Config, DelegateTarget};
use marshal_launch::{Host, LaunchPlan, ProcessLimits, RunError, SandboxSpec};
use marshal_model::limits::DELEGATE_ANSWER_BYTES;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{DelegateError, ExitStatus, PoolName, ResourceLimits};
use marshal_policy::delegation::{self, DelegateAnswer};
use marshal_proxy::delegate::{DelegateClient, QueryError, SetupError};
use marshal_telemetry::event::permission::DelegateQueried;

/// The resource limits of a delegate's process.
const LIMITS: ProcessLimits = ProcessLimits {
    nofile: 1024,
    fsize: 1 << 20,
    nproc: None,
    group: ResourceLimits::NONE,
};

/// The maximum width of a delegate's output in logs, in columns.
const LOG_COLUMNS: usize = 300;

/// A delegate of one pool.
#[derive(Debug)]
pub(crate) struct Delegate {
    pub(crate) config: Config,
    pool: PoolName,
    transport: Transport,
    permits: Semaphore,
}

#[derive(Debug)]
enum Transport {
    Command(Vec<String>),
    Url(Box<DelegateClient>),
}

impl Delegate {
    pub(crate) fn new(pool: &PoolName, config: &Config) -> Result<Self, SetupError> {
        Ok(Self {
            pool: pool.clone(),
            transport: match &config.target {
                DelegateTarget::Command(argv) => Transport::Command(argv.clone()),
                DelegateTarget::Url(url) => {
                    Transport::Url(Box::new(DelegateClient::new(url, config.token.as_ref())?))
                }
            },
            permits: Semaphore::new(usize::from(config.at_once)),
            config: config.clone(),
        })
    }

    /// Queries the delegate, with the configured timeout. Dropping the future cancels the query.
    pub(crate) async fn ask(
        &self,
        host: Arc<dyn Host>,
        text: String,
    ) -> Result<DelegateAnswer, DelegateError> {
        let began = clock::now();
        let query = tokio::time::timeout(self.config.timeout, self.send(host, text));
        let answer = query.await.unwrap_or_else(|_| {
            let why = format!("no answer within {:?}", self.config.timeout);
            Err(QueryError::new(DelegateError::Timeout, why))
        });
        let answer = answer.and_then(|text| {
            delegation::parse_answer(&text).map_err(|error| {
                let head = text.get(..text.len().min(LOG_COLUMNS)).unwrap_or_default();
                let why = format!(
                    "its answer is {}",
                    escape_for_display(&String::from_utf8_lossy(head), LOG_COLUMNS)
                );
                QueryError::new(error, why)
            })
        });
        DelegateQueried {
            pool: &self.pool,
            delegate: &self.config.name,
            took: clock::since(began),
            error: answer
                .as_ref()
                .err()
                .map(|failure| (failure.error, failure.why.as_str())),
        }
        .emit();
        answer.map_err(|failure| failure.error)
    }

    async fn send(&self, host: Arc<dyn Host>, text: String) -> Result<Vec<u8>, QueryError> {
        let closed = |_| QueryError::new(DelegateError::Internal, "the supervisor is ending");
        let _permit = self.permits.acquire().await.map_err(closed)?;
        match &self.transport {
            Transport::Url(client) => client.query(text, DELEGATE_ANSWER_BYTES).await,
            Transport::Command(argv) => self.run_command(host, argv.clone(), text).await,
        }
    }

    async fn run_command(
        &self,
        host: Arc<dyn Host>,
        argv: Vec<String>,
        text: String,
    ) -> Result<Vec<u8>, QueryError> {
        let plan = LaunchPlan {
            argv,
            env: Vec::new(),
            cwd: "/".to_owned(),
            limits: LIMITS,
            sandbox: SandboxSpec::None,
            preamble: text.into_bytes(),
        };
        let run = host.run_to_end(plan, self.config.timeout, DELEGATE_ANSWER_BYTES);
        let finished = run.await.map_err(|error| {
            let kind = match &error {
                RunError::Spawn(_) => DelegateError::Spawn,
                RunError::TimedOut { .. } => DelegateError::Timeout,
                RunError::Lost(_) => DelegateError::Exit,
            };
            QueryError::new(kind, error.to_string())
        })?;
        if finished.status != ExitStatus::Code(0) {
            let stderr = String::from_utf8_lossy(&finished.stderr);
            let last = stderr.trim_end().rsplit('\n').next().unwrap_or_default();
            let why = format!(
                "its command ended with {}: {}",
                finished.status,
                escape_for_display(last, LOG_COLUMNS)
            );
            return Err(QueryError::new(DelegateError::Exit, why));
        }
        if finished.is_truncated {
            let why = format!("its command wrote more than {DELEGATE_ANSWER_BYTES} bytes");
            return Err(QueryError::new(DelegateError::TooLong, why));
        }
        Ok(finished.stdout)
    }
}
