//! Hooks: people are told what happened while they do not look.
//!
//! ```text
//! whoever sees it -- tell() --> Waiting, one of each hook: the newest of each kind of each pool
//!                                 `- a task of each hook: one message at a time, to its address or
//!                                    its command, again a bounded number of times
//! ```
//!
//! Owns which hook hears what, how often, and what the end of the supervisor waits for. Nobody waits
//! for a hook, and what waits for one is bounded by the configuration. Must not know what an event
//! means.

mod command;
mod message;
mod pending_notifications;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::ambient::Ambient;
use super::clock;
use super::notification::Notification;
use marshal_config::{Config, Hook, HookTarget};
use marshal_launch::Host;
use marshal_model::limits::{HOOK_FLUSH_TIMEOUT, HOOK_RETRY_DELAYS};
use marshal_proxy::model_proxy::{WebhookClient, WebhookError, WebhookSetupError};
use marshal_telemetry::event::hook::{HookMessageFinished, HookMessageSuppressed};
use marshal_telemetry::exporter::initialise_hook;
use marshal_telemetry::labels::HookResult;
use message::EncodedMessage;
use pending_notifications::PendingNotifications;

/// The hooks of a fleet.
#[derive(Debug)]
pub(crate) struct Hooks {
    each: Vec<Arc<HookWorker>>,
    /// Nothing waits for its minute any more.
    closing: CancellationToken,
    /// Nothing is sent any more.
    over: CancellationToken,
    tasks: TaskTracker,
}

/// One hook.
#[derive(Debug)]
struct HookWorker {
    hook: Hook,
    pending: Mutex<PendingNotifications>,
    bell: Notify,
}

/// How a hook reaches people.
enum HookTransport {
    Post(Box<WebhookClient>),
    Run(command::Runner),
}

/// Why a message was not taken.
#[derive(Debug)]
struct DeliveryError {
    why: String,
    result: HookResult,
    /// It may be taken the next time.
    again: bool,
}

impl Hooks {
    /// Makes the hooks of a configuration ready, each with its task. Needs a runtime around it.
    ///
    /// # Errors
    /// An address that cannot be posted to.
    pub(super) fn start(
        config: &Config,
        host: &Arc<dyn Host>,
        ambient: &Ambient,
    ) -> Result<Self, WebhookSetupError> {
        let hooks = Self {
            each: config.hooks.iter().map(HookWorker::of).collect(),
            closing: CancellationToken::new(),
            over: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        for one in &hooks.each {
            initialise_hook(&one.hook.name);
            let way = match &one.hook.target {
                HookTarget::Address(to) => {
                    HookTransport::Post(Box::new(WebhookClient::new(&one.hook.name, to)?))
                }
                HookTarget::Command(command) => {
                    HookTransport::Run(command::Runner::new(command, Arc::clone(host)))
                }
            };
            let (one, ambient) = (Arc::clone(one), ambient.clone());
            let (closing, over) = (hooks.closing.clone(), hooks.over.clone());
            hooks.tasks.spawn(async move {
                tokio::select! {
                    () = one.run(&way, &ambient, &closing) => {}
                    () = over.cancelled() => {}
                }
            });
        }
        hooks.tasks.close();
        Ok(hooks)
    }

    /// Something happened that is durable. Never waits.
    pub(crate) fn notify(&self, told: &Notification) {
        for one in &self.each {
            let hook = &one.hook;
            if !hook.events.contains(&told.kind()) || !told.concerns_any_of(&hook.pools) {
                continue;
            }
            let mut waiting = one.pending.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.insert(clock::now_us(), told.clone()) {
                HookMessageSuppressed { hook: &hook.name }.emit();
            }
            drop(waiting);
            one.bell.notify_one();
        }
    }

    /// Tells what waits, for a bounded time, and ends. After [`Self::abandon`] it returns at once.
    pub(crate) async fn finish(&self) {
        self.closing.cancel();
        if tokio::time::timeout(HOOK_FLUSH_TIMEOUT, self.tasks.wait())
            .await
            .is_err()
        {
            self.abandon();
            let killed = Duration::from_secs(5);
            let _ = tokio::time::timeout(killed, self.tasks.wait()).await;
        }
        for one in &self.each {
            let waiting = one.pending.lock().unwrap_or_else(PoisonError::into_inner);
            for _ in 0..waiting.undelivered_count() {
                one.log_result(HookResult::Lost, "the supervisor ended first");
            }
        }
    }

    /// Sends nothing more: what is under way is given up, and its commands are killed.
    pub(crate) fn abandon(&self) {
        self.closing.cancel();
        self.over.cancel();
    }
}

impl HookWorker {
    fn of(hook: &Hook) -> Arc<Self> {
        Arc::new(Self {
            hook: hook.clone(),
            pending: Mutex::default(),
            bell: Notify::new(),
        })
    }

    fn log_result(&self, result: HookResult, why: &str) {
        HookMessageFinished {
            hook: &self.hook.name,
            result,
            why,
        }
        .emit();
    }

    /// Tells what happens, until nothing will happen any more and everything is told.
    async fn run(&self, way: &HookTransport, ambient: &Ambient, closing: &CancellationToken) {
        loop {
            let is_closing = closing.is_cancelled();
            let now = clock::now();
            let (message, next) = {
                let mut waiting = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
                (waiting.take_due(now, is_closing), waiting.next_due(now))
            };
            if let Some(message) = message {
                let written = message::encode_message(
                    &self.hook.name,
                    &message,
                    ambient.new_id(),
                    clock::now_us(),
                );
                self.deliver(way, &written).await;
                continue;
            }
            if is_closing {
                return;
            }
            let minute = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.bell.notified() => {}
                () = minute => {}
                () = closing.cancelled() => {}
            }
        }
    }

    /// Sends one message, again where that may help.
    async fn deliver(&self, way: &HookTransport, written: &EncodedMessage) {
        let mut waits = HOOK_RETRY_DELAYS.iter();
        loop {
            let sent = match way {
                HookTransport::Post(poster) => {
                    let at = clock::now_us() / 1_000_000;
                    let sent = poster.post(&written.json, &written.id, written.event, at);
                    sent.await.map_err(DeliveryError::from)
                }
                HookTransport::Run(runner) => runner.run(&written.json).await,
            };
            let failed = match sent {
                Ok(()) => return self.log_result(HookResult::Delivered, ""),
                Err(failed) => failed,
            };
            match waits.next().filter(|_| failed.again) {
                Some(wait) => {
                    tracing::info!(hook = self.hook.name, why = failed.why, again_in = ?wait, "a hook did not take a message");
                    tokio::time::sleep(*wait).await;
                }
                None => return self.log_result(failed.result, &failed.why),
            }
        }
    }
}

impl From<WebhookError> for DeliveryError {
    fn from(error: WebhookError) -> Self {
        Self {
            why: error.to_string(),
            again: error.is_retryable(),
            result: match error {
                WebhookError::Refused(_) | WebhookError::Redirect(_) => HookResult::Refused,
                _ => HookResult::Failed,
            },
        }
    }
}
