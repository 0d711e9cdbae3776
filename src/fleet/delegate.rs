//! A pool's delegate: a decider of the site's own, asked by command or by HTTP.
//!
//! Owns that at most so many requests are under way to it, and that it has its time. Whatever goes
//! wrong is an error with a word, never a decision. Must not know what follows from what it says.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::clock;
use crate::config::{Decider, Delegate as Config};
use crate::delegate::{Asker, NoAnswer, SetupError};
use crate::launch::{Host, LaunchPlan, Limits, RunError, Walls};
use crate::limits::DELEGATE_ANSWER_BYTES;
use crate::model::foreign::show;
use crate::model::{DelegateError, ExitStatus, GroupLimits, PoolName};
use crate::policy::delegation::{self, Said};
use crate::telemetry::event::delegate::DelegateAsked;

/// What a decider's process may have.
const LIMITS: Limits = Limits {
    nofile: 1024,
    fsize: 1 << 20,
    nproc: None,
    group: GroupLimits::NONE,
};

/// Columns of what is logged of its last words.
const SHOWN: usize = 300;

/// A decider, as one pool asks it.
#[derive(Debug)]
pub(crate) struct Delegate {
    pub(crate) config: Config,
    pool: PoolName,
    how: How,
    places: Semaphore,
}

#[derive(Debug)]
enum How {
    Command(Vec<String>),
    Url(Box<Asker>),
}

impl Delegate {
    pub(crate) fn new(pool: &PoolName, config: &Config) -> Result<Self, SetupError> {
        Ok(Self {
            pool: pool.clone(),
            how: match &config.how {
                Decider::Command(argv) => How::Command(argv.clone()),
                Decider::Url(url) => How::Url(Box::new(Asker::new(url, config.token.as_ref())?)),
            },
            places: Semaphore::new(usize::from(config.at_once)),
            config: config.clone(),
        })
    }

    /// Asks, and waits for the answer for as long as the configuration says. Dropping the future
    /// ends it.
    pub(crate) async fn ask(
        &self,
        host: Arc<dyn Host>,
        text: String,
    ) -> Result<Said, DelegateError> {
        let began = clock::now();
        let asked = tokio::time::timeout(self.config.timeout, self.reach(host, text));
        let said = asked.await.unwrap_or_else(|_| {
            let why = format!("no answer within {:?}", self.config.timeout);
            Err(NoAnswer::new(DelegateError::Timeout, why))
        });
        let said = said.and_then(|answer| {
            delegation::read(&answer).map_err(|error| {
                let head = answer.get(..answer.len().min(SHOWN)).unwrap_or_default();
                let why = format!("it said {}", show(&String::from_utf8_lossy(head), SHOWN));
                NoAnswer::new(error, why)
            })
        });
        DelegateAsked {
            pool: &self.pool,
            delegate: &self.config.name,
            took: clock::since(began),
            error: said
                .as_ref()
                .err()
                .map(|none| (none.error, none.why.as_str())),
        }
        .emit();
        said.map_err(|none| none.error)
    }

    async fn reach(&self, host: Arc<dyn Host>, text: String) -> Result<Vec<u8>, NoAnswer> {
        let closed = |_| NoAnswer::new(DelegateError::Internal, "the supervisor is ending");
        let _place = self.places.acquire().await.map_err(closed)?;
        match &self.how {
            How::Url(asker) => asker.ask(text, DELEGATE_ANSWER_BYTES).await,
            How::Command(argv) => self.run(host, argv.clone(), text).await,
        }
    }

    async fn run(
        &self,
        host: Arc<dyn Host>,
        argv: Vec<String>,
        text: String,
    ) -> Result<Vec<u8>, NoAnswer> {
        let plan = LaunchPlan {
            argv,
            env: Vec::new(),
            cwd: "/".to_owned(),
            limits: LIMITS,
            walls: Walls::None,
            preamble: text.into_bytes(),
        };
        let ran = host.run_to_end(plan, self.config.timeout, DELEGATE_ANSWER_BYTES);
        let finished = ran.await.map_err(|error| {
            let kind = match &error {
                RunError::Spawn(_) => DelegateError::Spawn,
                RunError::TimedOut { .. } => DelegateError::Timeout,
                RunError::Lost(_) => DelegateError::Exit,
            };
            NoAnswer::new(kind, error.to_string())
        })?;
        if finished.status != ExitStatus::Code(0) {
            let said = String::from_utf8_lossy(&finished.stderr);
            let last = said.trim_end().rsplit('\n').next().unwrap_or_default();
            let why = format!("it ended with {}: {}", finished.status, show(last, SHOWN));
            return Err(NoAnswer::new(DelegateError::Exit, why));
        }
        if finished.is_cut {
            let why = format!("it wrote more than {DELEGATE_ANSWER_BYTES} bytes");
            return Err(NoAnswer::new(DelegateError::TooLong, why));
        }
        Ok(finished.stdout)
    }
}
