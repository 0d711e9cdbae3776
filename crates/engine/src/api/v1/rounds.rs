//! The JSON of autonomous chats, and the limits that a client sets for one.
//!
//! Must not know how the limits are enforced.

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use marshal_journal::StoredChat;
use marshal_model::budget::{NANOS_PER_DOLLAR, nanos_from_dollars};
use marshal_model::{ChatBounds, ChatMode, ChatPhase, TurnOutcome};

/// The limits of an autonomous chat or a plan.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ChatLimits")]
pub(super) struct Bounds {
    turns: Option<u32>,
    seconds: Option<u64>,
    tokens: Option<u64>,
    #[schemars(range(min = 0))]
    cost_usd: Option<f64>,
}

/// The progress of an autonomous chat.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ChatRounds")]
pub(super) struct Rounds {
    ended: bool,
    outcome: Option<&'static str>,
    reason: Option<String>,
    check: Option<String>,
    plan_id: Option<String>,
    limits: RoundLimits,
}

/// The limits in force; `None` for one that is not set.
#[derive(Serialize, JsonSchema)]
pub(super) struct RoundLimits {
    turns: Option<u32>,
    seconds: Option<u64>,
    tokens: Option<u64>,
    cost_usd: Option<f64>,
}

impl Bounds {
    /// Returns the checked limits.
    pub(super) fn read(self) -> Result<ChatBounds, ApiError> {
        let wrong = || {
            let detail = "\"limits.cost_usd\" must be a number of US dollars above 0";
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        };
        let cost = self
            .cost_usd
            .map(|amount| nanos_from_dollars(amount).ok_or_else(wrong));
        Ok(ChatBounds {
            turns: self.turns,
            seconds: self.seconds,
            tokens: self.tokens,
            cost: cost.transpose()?,
        })
    }
}

/// Returns the progress of such a chat; `None` for an ordinary one.
pub(super) fn view(chat: &StoredChat) -> Option<Rounds> {
    if chat.mode != ChatMode::Autonomous {
        return None;
    }
    let (settings, progress) = (&chat.settings, &chat.progress);
    Some(Rounds {
        ended: chat.phase == Some(ChatPhase::Ended),
        outcome: progress.outcome.map(TurnOutcome::as_str),
        reason: progress.reason.clone(),
        check: settings.check_command.clone(),
        plan_id: settings.plan_path.clone(),
        limits: RoundLimits {
            turns: settings.bounds.turns,
            seconds: settings.bounds.seconds,
            tokens: settings.bounds.tokens,
            cost_usd: settings.bounds.cost.map(in_dollars),
        },
    })
}

#[expect(clippy::cast_precision_loss, reason = "it is shown, not counted with")]
fn in_dollars(nano: u64) -> f64 {
    nano as f64 / NANOS_PER_DOLLAR as f64
}
