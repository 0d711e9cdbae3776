//! Hooks: notifications to people through webhooks and commands.
//!
//! ```text
//! actor -- notify() --> PendingNotifications, one a hook: the newest of each kind of each pool
//!                         `- a task of each hook: one message at a time, to its address or its
//!                            command, with a bounded number of retries
//! ```
//!
//! Owns which hook gets which notification, how often, and how long the end of the supervisor waits
//! for delivery. No actor waits for a hook, and the configuration bounds the pending notifications.
//! Must not know what an event means.

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
    workers: Vec<Arc<HookWorker>>,
    /// Cancelled when the supervisor ends: pending messages are sent at once, without the interval.
    closing: CancellationToken,
    /// Cancelled to abandon all deliveries.
    abandoned: CancellationToken,
    tasks: TaskTracker,
}

/// One hook with its pending notifications.
#[derive(Debug)]
struct HookWorker {
    hook: Hook,
    pending: Mutex<PendingNotifications>,
    bell: Notify,
}

/// How a hook delivers a message.
enum HookTransport {
    Post(Box<WebhookClient>),
    Run(command::Runner),
}

/// Why a message was not delivered.
#[derive(Debug)]
struct DeliveryError {
    why: String,
    result: HookResult,
    /// Whether a retry may succeed.
    is_retryable: bool,
}

impl Hooks {
    /// Starts a task for each configured hook. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`WebhookSetupError`] for an address that cannot be used.
    pub(super) fn start(
        config: &Config,
        host: &Arc<dyn Host>,
        ambient: &Ambient,
    ) -> Result<Self, WebhookSetupError> {
        let hooks = Self {
            workers: config.hooks.iter().map(HookWorker::of).collect(),
            closing: CancellationToken::new(),
            abandoned: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        for worker in &hooks.workers {
            initialise_hook(&worker.hook.name);
            let transport = match &worker.hook.target {
                HookTarget::Address(to) => {
                    HookTransport::Post(Box::new(WebhookClient::new(&worker.hook.name, to)?))
                }
                HookTarget::Command(command) => {
                    HookTransport::Run(command::Runner::new(command, Arc::clone(host)))
                }
            };
            let (worker, ambient) = (Arc::clone(worker), ambient.clone());
            let (closing, abandoned) = (hooks.closing.clone(), hooks.abandoned.clone());
            hooks.tasks.spawn(async move {
                tokio::select! {
                    () = worker.run(&transport, &ambient, &closing) => {}
                    () = abandoned.cancelled() => {}
                }
            });
        }
        hooks.tasks.close();
        Ok(hooks)
    }

    /// Queues a durable notification for the hooks that select it. Never waits.
    pub(crate) fn notify(&self, notification: &Notification) {
        for worker in &self.workers {
            let hook = &worker.hook;
            let is_selected = hook.events.contains(&notification.kind())
                && notification.concerns_any_of(&hook.pools);
            if !is_selected {
                continue;
            }
            let mut pending = worker
                .pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if pending.insert(clock::now_us(), notification.clone()) {
                HookMessageSuppressed { hook: &hook.name }.emit();
            }
            drop(pending);
            worker.bell.notify_one();
        }
    }

    /// Sends the pending messages for at most [`HOOK_FLUSH_TIMEOUT`] and ends. After
    /// [`Self::abandon`] it returns at once.
    pub(crate) async fn finish(&self) {
        self.closing.cancel();
        if tokio::time::timeout(HOOK_FLUSH_TIMEOUT, self.tasks.wait())
            .await
            .is_err()
        {
            self.abandon();
            // The time for the killed commands to end.
            let kill_timeout = Duration::from_secs(5);
            let _ = tokio::time::timeout(kill_timeout, self.tasks.wait()).await;
        }
        for worker in &self.workers {
            let pending = worker
                .pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            for _ in 0..pending.undelivered_count() {
                worker.log_result(HookResult::Lost, "the supervisor ended first");
            }
        }
    }

    /// Sends nothing more: abandons messages in delivery and kills their commands.
    pub(crate) fn abandon(&self) {
        self.closing.cancel();
        self.abandoned.cancel();
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

    /// Sends messages as they become due. While closing, sends the pending ones and returns.
    async fn run(&self, transport: &HookTransport, ambient: &Ambient, closing: &CancellationToken) {
        loop {
            let is_closing = closing.is_cancelled();
            let now = clock::now();
            let (message, next) = {
                let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
                (pending.take_due(now, is_closing), pending.next_due(now))
            };
            if let Some(message) = message {
                let encoded = message::encode_message(
                    &self.hook.name,
                    &message,
                    ambient.new_id(),
                    clock::now_us(),
                );
                self.deliver(transport, &encoded).await;
                continue;
            }
            if is_closing {
                return;
            }
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.bell.notified() => {}
                () = due => {}
                () = closing.cancelled() => {}
            }
        }
    }

    /// Sends one message, with retries after [`HOOK_RETRY_DELAYS`] if the error may be temporary.
    async fn deliver(&self, transport: &HookTransport, encoded: &EncodedMessage) {
        let mut delays = HOOK_RETRY_DELAYS.iter();
        loop {
            let result = match transport {
                HookTransport::Post(poster) => {
                    let at = clock::now_us() / 1_000_000;
                    let post = poster.post(&encoded.json, &encoded.id, encoded.event, at);
                    post.await.map_err(DeliveryError::from)
                }
                HookTransport::Run(runner) => runner.run(&encoded.json).await,
            };
            let error = match result {
                Ok(()) => return self.log_result(HookResult::Delivered, ""),
                Err(error) => error,
            };
            match delays.next().filter(|_| error.is_retryable) {
                Some(delay) => {
                    tracing::info!(hook = self.hook.name, why = error.why, again_in = ?delay, "a hook's message was not delivered: it is sent again");
                    tokio::time::sleep(*delay).await;
                }
                None => return self.log_result(error.result, &error.why),
            }
        }
    }
}

impl From<WebhookError> for DeliveryError {
    fn from(error: WebhookError) -> Self {
        Self {
            why: error.to_string(),
            is_retryable: error.is_retryable(),
            result: match error {
                WebhookError::Refused(_) | WebhookError::Redirect(_) => HookResult::Refused,
                _ => HookResult::Failed,
            },
        }
    }
}
