//! What the agent has its client do, as far as the session has a word in it: judged like a
//! request, on record before anything happens, and not begun when its turn is over.
//!
//! Must not carry anything out: its channel does that.

use std::sync::Arc;

use super::SessionState;
use super::approvals::Member;
use super::asks;
use super::masking;
use super::prepare::Prepared;
use crate::fleet::channel::{ChannelMsg, ClientNews, ClientSetup};
use crate::fleet::setup::{PoolShared, Shared};
use crate::model::{Ask, AskKey, ClientError, ClientFault, ClientWish, Decision, Verdict};
use crate::sandbox;

impl Prepared {
    /// What is needed to do something for the agent, if its pool offers anything. What it runs has
    /// the agent's environment without its secrets.
    pub(super) fn client_setup(
        &self,
        shared: &Arc<Shared>,
        pool: &PoolShared,
    ) -> Option<ClientSetup> {
        if !pool.config.has_door() {
            return None;
        }
        let mut env = self.space().environment(shared, pool);
        env.retain(|(name, _)| !pool.config.env.secrets.contains_key(name));
        Some(ClientSetup {
            env,
            limits: sandbox::limits_of(&pool.sandbox),
            workspace: self.place().workspace.to_owned(),
            versions: self.versioning(shared, pool),
            tools: self.tool_setup(shared, pool),
        })
    }
}

impl SessionState {
    /// Judges what the agent wants, and puts it on record.
    pub(super) fn client(&mut self, mut ask: Ask, wish: &ClientWish) {
        self.tool_called(&ask.key, wish);
        // Its tool's name is ours.
        let _ = ask.bound(asks::BOUNDS);
        let mode = self.mode();
        let at = self.asked_at(mode.as_deref());
        let (ask, came) = masking::ask(&self.pool.mask, ask);
        let (decided, place) = asks::decide_client(
            &self.pool,
            self.prepared.as_ref(),
            &self.work,
            (&ask, came, wish),
            &mut self.asks,
            at,
        );
        let wish = Some((wish.clone(), place));
        self.judged(Member {
            wish,
            ..Member::of(ask, decided)
        });
    }

    /// The verdict is durable: the channel is told.
    pub(super) fn client_durable(
        &mut self,
        key: AskKey,
        place: Option<String>,
        verdict: Verdict,
        deny_turn: bool,
    ) {
        if !self.asks.answered(&verdict.ask) {
            return;
        }
        let denied = deny_turn.then(|| verdict.clone());
        let is_over = self.ending.is_some() || self.turn.is_some();
        let verdict = match (verdict.decision, place) {
            (Decision::Allow, _) if is_over => Err(ClientError::new(
                ClientFault::Cancelled,
                "the turn was over before this was begun",
            )),
            (Decision::Allow, Some(place)) => {
                self.tool_allowed(&key);
                Ok(place)
            }
            _ => Err(ClientError::new(ClientFault::Denied, verdict.reason)),
        };
        if let Some(channel) = &self.channel {
            let task = self.work.task.clone();
            let news = ClientNews::Judged { key, verdict, task };
            let _ = channel.send_message(ChannelMsg::Client(Box::new(news)));
        }
        if let Some(denied) = denied {
            self.deny_turn(&denied);
        }
    }
}
