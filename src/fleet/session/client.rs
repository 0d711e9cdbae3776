//! What the agent has its client do, as far as the session has a word in it: judged like a
//! request, on record before anything happens, and not begun when its turn is over.
//!
//! Must not carry anything out: its channel does that.

use super::SessionState;
use super::approvals::Member;
use super::asks;
use super::outbox::After;
use super::prepare::Prepared;
use crate::fleet::channel::{ChannelMsg, ClientNews, ClientSetup};
use crate::fleet::clock;
use crate::fleet::setup::{PoolShared, Shared};
use crate::model::{
    Ask, AskKey, ClientError, ClientFault, ClientWish, Decision, TurnOutcome, Verdict,
};
use crate::sandbox;

impl Prepared {
    /// What is needed to do something for the agent, if its pool offers anything. What it runs has
    /// the agent's environment without its secrets.
    pub(super) fn client_setup(&self, shared: &Shared, pool: &PoolShared) -> Option<ClientSetup> {
        if !pool.config.client_offers().any() {
            return None;
        }
        let mut env = self.space().environment(shared, pool);
        env.retain(|(name, _)| !pool.config.env.secrets.contains_key(name));
        Some(ClientSetup {
            env,
            limits: sandbox::limits_of(&pool.sandbox),
            workspace: self.place().workspace.to_owned(),
        })
    }
}

impl SessionState {
    /// Judges what the agent wants, and puts it on record.
    pub(super) fn client(&mut self, ask: Ask, wish: &ClientWish) {
        let at = self.asked_at();
        let (decided, place) = asks::decide_client(
            &self.pool,
            self.prepared.as_ref(),
            &self.work,
            (&ask, wish),
            &mut self.asks,
            at,
        );
        if decided.verdict.decision == Decision::Ask {
            let wish = Some((wish.clone(), place));
            return self.ask_a_person(Member {
                wish,
                ..Member::of(ask, decided)
            });
        }
        self.tally.decided(&decided);
        decided.record(&ask, &mut self.outbox);
        self.outbox.after(After::Client {
            key: ask.key,
            place,
            asked: clock::now(),
            deny_turn: decided.deny_turn,
            verdict: decided.verdict,
            class: decided.class,
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
        let is_over = self.ending.is_some() || self.turn.is_some();
        let verdict = match (verdict.decision, place) {
            (Decision::Allow, _) if is_over => Err(ClientError::new(
                ClientFault::Cancelled,
                "the turn was over before this was begun",
            )),
            (Decision::Allow, Some(place)) => Ok(place),
            _ => Err(ClientError::new(ClientFault::Denied, verdict.reason)),
        };
        if let Some(channel) = &self.channel {
            let news = ClientNews::Judged { key, verdict };
            let _ = channel.send_message(ChannelMsg::Client(Box::new(news)));
        }
        if deny_turn {
            let why = "a person had to be asked, and nobody can be".to_owned();
            self.interrupt(TurnOutcome::Cancelled, why);
        }
    }
}
