//! A session's link to its agent: the child that runs now, and what outlives it for the next one.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::channel::ChannelHandle;
use crate::session::StoredSession;
use crate::session::turn::commands::CommandState;
use crate::session::turn::settings::SessionSettings;
use crate::session::turn::transcript::TranscriptRecall;
use crate::session::workspace::disk_usage::MeasuredSession;
use marshal_dialect::PendingDenials;
use marshal_model::UntrustedText;
use marshal_proxy::model_proxy::RateLimitWatch;

/// The link to the agent.
#[derive(Default)]
pub(crate) struct AgentLink {
    /// The running child.
    pub(crate) channel: Option<ChannelHandle>,
    pub(crate) resumption: Resumption,
    /// For a session that started without a task: told when its child is ready, dropped if that
    /// ends.
    pub(crate) ready: Option<oneshot::Sender<()>>,
    /// The settings that the agent offers, and those that were chosen.
    pub(crate) settings: SessionSettings,
    /// The agent's own commands.
    pub(crate) commands: CommandState,
    /// How many commands of clients were recorded.
    pub(crate) execs: u64,
    /// Denials that the last child was not told of; the next child is.
    pub(crate) denials: PendingDenials,
    /// Watches the model proxy's responses for rate limits.
    pub(crate) rate_limit_watch: Arc<RateLimitWatch>,
    /// Home and copy, while they are measured.
    pub(crate) measured: Option<Arc<MeasuredSession>>,
    /// Why the child is being killed: the session exceeded its journal quota.
    pub(crate) over_quota: Option<String>,
}

/// How the next child continues the session: by the agent's own id, or with the transcript.
pub(crate) struct Resumption {
    /// The agent's own id of the session.
    pub(crate) agent_session: Option<UntrustedText>,
    /// Whether the child was started to load the session again.
    pub(crate) loading: bool,
    /// Consecutive children that ended before they had loaded it.
    pub(crate) loads_failed: u8,
    /// False once the agent reported that it cannot load it.
    pub(crate) loadable: bool,
    /// Why the session could not be loaded again.
    pub(crate) not_loaded: Option<String>,
    /// Whether the agent has had a prompt in this session.
    pub(crate) prompted: bool,
    /// The transcript for an agent that has lost its memory.
    pub(crate) transcript: TranscriptRecall,
}

impl Default for Resumption {
    fn default() -> Self {
        Self {
            agent_session: None,
            loading: false,
            loads_failed: 0,
            loadable: true,
            not_loaded: None,
            prompted: false,
            transcript: TranscriptRecall::default(),
        }
    }
}

impl Resumption {
    /// Continues a stored session. One that lost its memory begins anew, and gets the transcript.
    pub(crate) fn from_stored(stored: &StoredSession) -> Self {
        let known = stored.agent_session.clone();
        Self {
            agent_session: known.filter(|_| !stored.forgot),
            prompted: stored.prompted,
            ..Self::default()
        }
    }
}
