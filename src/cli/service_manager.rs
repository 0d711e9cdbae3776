//! The service manager, by the protocol of sd_notify(3): readiness, status, reloads, the stop and
//! the watchdog. Without one, nothing is sent.
//!
//! Must not know how the fleet works. A message that the manager does not take within a second is
//! lost: the manager then acts as if it had not been sent.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram as StdDatagram};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::net::UnixDatagram;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use marshal_config::Config;
use marshal_fleet::{FleetEvent, FleetHandle, Readiness};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;

/// How long one message may wait for the manager.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// The shortest time between two statuses.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);
/// The longest reason in a status.
const REASON_CHARS: usize = 200;
/// How long hooks and the rest of a stop may take, beyond what is configured or has a limit.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// The service manager, if there is one. Clones send to the same one.
#[derive(Debug, Clone)]
pub struct ServiceManager {
    socket: Option<Arc<UnixDatagram>>,
    /// The time without a message after which its watchdog ends this process.
    watchdog: Option<Duration>,
    /// How long a stop may take.
    stop_time: Duration,
}

impl ServiceManager {
    /// The manager that the environment names; none if it names none. Must be called inside a
    /// runtime.
    ///
    /// # Errors
    /// A variable of the protocol that cannot be used: the manager would wait in vain.
    pub fn from_env(
        config: &Config,
        env: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, String> {
        let stop_time = stop_time(config);
        let Some(name) = env("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            let (socket, watchdog) = (None, None);
            return Ok(Self {
                socket,
                watchdog,
                stop_time,
            });
        };
        let socket = connect(&name).map_err(|error| {
            let name = escape_for_display(&name.to_string_lossy(), REASON_CHARS);
            format!("cannot reach the service manager at NOTIFY_SOCKET={name}: {error}")
        })?;
        let watchdog = watchdog_time(env)?;
        Ok(Self {
            socket: Some(Arc::new(socket)),
            watchdog,
            stop_time,
        })
    }

    /// No manager.
    #[cfg(test)]
    pub(super) const fn nobody() -> Self {
        Self {
            socket: None,
            watchdog: None,
            stop_time: Duration::ZERO,
        }
    }

    /// The listeners answer, and the pools stand; or they do again after [`Self::reloading`].
    pub async fn ready(&self) {
        self.send("READY=1").await;
    }

    /// A reload begins; [`Self::ready`] ends it.
    pub async fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(
            now.tv_sec.unsigned_abs(),
            u32::try_from(now.tv_nsec).unwrap_or(0),
        );
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()))
            .await;
    }

    /// The stop begins. It may take as long as the configuration says, also where that is longer
    /// than the manager would wait by itself.
    pub async fn stopping(&self) {
        let micros = self.stop_time.as_micros();
        let status = "stopping: running turns may end, and no further task begins";
        self.send(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS={status}"
        ))
        .await;
    }

    /// Keeps the manager's status of this fleet up to date, and its watchdog quiet as long as the
    /// journal and the pools move. In the background, until the process ends.
    pub fn attend(&self, fleet: &FleetHandle) {
        if self.socket.is_none() {
            return;
        }
        tokio::spawn(self.clone().send_statuses(fleet.clone()));
        if let Some(time) = self.watchdog {
            tokio::spawn(self.clone().feed_watchdog(fleet.clone(), time));
        }
    }

    /// Looks four times within the watchdog's time, so that one late answer is no end.
    async fn feed_watchdog(self, fleet: FleetHandle, time: Duration) {
        let step = time / 4;
        let mut looks = interval(step);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let stuck = fleet.stuck_parts(step).await;
            if stuck.is_empty() {
                self.send("WATCHDOG=1").await;
            } else {
                let what = stuck.join("; ");
                tracing::error!(what, "the watchdog of the service manager is not fed");
            }
        }
    }

    /// Reads every event, also while a status waits for its time: unread ones count against what
    /// other subscribers may read.
    async fn send_statuses(self, fleet: FleetHandle) {
        let (mut events, mut outages) = (fleet.subscribe(), fleet.outages());
        let mut sent = String::new();
        let mut due = Some(Instant::now());
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                Ok(()) = outages.changed() => {
                    due = due.or(Some(Instant::now() + STATUS_INTERVAL));
                    continue;
                }
                () = async { sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {
                    let now = status(&fleet);
                    if now != sent {
                        self.send(&format!("STATUS={now}")).await;
                        sent = now;
                    }
                    due = None;
                    continue;
                }
            };
            let changes = match event {
                Ok(FleetEvent::SessionEvents { .. } | FleetEvent::EventsSkipped { .. }) => false,
                Ok(_) | Err(RecvError::Lagged(_)) => true,
                Err(RecvError::Closed) => return,
            };
            if changes && due.is_none() {
                due = Some(Instant::now() + STATUS_INTERVAL);
            }
        }
    }

    async fn send(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        let error = match timeout(SEND_TIMEOUT, socket.send(message.as_bytes())).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not read".to_owned(),
        };
        let what = message.split('=').next().unwrap_or_default();
        tracing::warn!(error, what, "the service manager cannot be told");
    }
}

/// The slots by state, the open tasks, and why no work may begin, in one line.
fn status(fleet: &FleetHandle) -> String {
    let slots = fleet.slots();
    let mut states = BTreeMap::new();
    for view in &slots {
        *states.entry(view.state.as_str()).or_insert(0_usize) += 1;
    }
    let states: Vec<_> = states
        .iter()
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    let tasks: usize = fleet.pool_views().iter().map(|pool| pool.tasks).sum();
    let mut text = format!(
        "{} slots: {}; {tasks} open tasks",
        slots.len(),
        states.join(", ")
    );
    if let Readiness::NotReady(reasons) = fleet.readiness() {
        for reason in reasons.iter().take(3) {
            let _ = write!(text, "; {}", escape_for_display(reason, REASON_CHARS));
        }
    }
    text
}

/// The most time that a stop takes: of the slowest pool, and then of what is closed after it.
fn stop_time(config: &Config) -> Duration {
    let pools = config.pools.iter().map(|pool| {
        let ladder = pool.stop.goodbye + pool.stop.eof + pool.stop.int + pool.stop.term;
        pool.drain + pool.timeouts.cancel + ladder
    });
    pools.max().unwrap_or_default() + limits::HTTP_DRAIN + limits::JOURNAL_CLOSE + STOP_MARGIN
}

fn connect(name: &OsStr) -> std::io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => {
            let why = "expected an absolute path, or \"@\" and the name of an abstract socket";
            return Err(std::io::Error::other(why));
        }
    };
    let socket = StdDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

/// The watchdog's time, if it is set and for this process.
fn watchdog_time(env: impl Fn(&str) -> Option<OsString>) -> Result<Option<Duration>, String> {
    let number = |name: &str| match env(name).filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(value) => value
            .to_str()
            .and_then(|text| text.parse::<u64>().ok())
            .map(Some)
            .ok_or_else(|| {
                format!(
                    "{name} of the service manager is not a number: {}",
                    escape_for_display(&value.to_string_lossy(), 40)
                )
            }),
    };
    let is_ours = number("WATCHDOG_PID")?.is_none_or(|pid| pid == u64::from(std::process::id()));
    match number("WATCHDOG_USEC")?.filter(|_| is_ours) {
        Some(0) => Err("WATCHDOG_USEC of the service manager is 0".to_owned()),
        time => Ok(time.map(Duration::from_micros)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_config::Origin;

    fn config(text: &str) -> Config {
        Config::parse(text, &Origin::built_in("/".into())).expect("good")
    }

    fn of(variables: &[(&str, &str)]) -> Result<ServiceManager, String> {
        let config = config("[pool.p]\nagent = \"script\"\n");
        ServiceManager::from_env(&config, |name| {
            let found = variables.iter().find(|(own, _)| *own == name);
            found.map(|(_, value)| value.into())
        })
    }

    #[tokio::test]
    async fn a_manager_is_told_by_its_abstract_socket() {
        let name = format!("marshal-test-{}", uuid::Uuid::new_v4());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let end = StdDatagram::bind_addr(&address).expect("bound");
        let name = format!("@{name}");
        let manager = of(&[("NOTIFY_SOCKET", &name), ("WATCHDOG_USEC", "8000000")]).expect("good");
        assert_eq!(manager.watchdog, Some(Duration::from_secs(8)));
        manager.reloading().await;
        manager.stopping().await;
        let mut buffer = [0; 256];
        let mut next = || {
            let length = end.recv(&mut buffer).expect("received");
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        let reload = next();
        let time = reload
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .expect("a reload");
        assert!(time.parse::<u64>().expect("a number") > 0);
        // 30 s of drain, 15 s of cancel, 15 s of ladder, and the rest.
        assert!(next().starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=82000000\nSTATUS=stopping: "));
    }

    #[tokio::test]
    async fn what_a_manager_cannot_mean_is_refused() {
        for (variables, expect) in [
            (
                &[("NOTIFY_SOCKET", "vsock:2:1")][..],
                "NOTIFY_SOCKET=vsock:2:1: expected an absolute",
            ),
            (&[("NOTIFY_SOCKET", "/nowhere/notify")], "No such file"),
        ] {
            let error = of(variables).expect_err("refused");
            assert!(error.contains(expect), "{error}");
        }
        let time = |usec: &str, pid: &str| {
            watchdog_time(|name| Some(if name == "WATCHDOG_PID" { pid } else { usec }.into()))
        };
        let own = std::process::id().to_string();
        assert_eq!(time("5000", &own), Ok(Some(Duration::from_millis(5))));
        assert_eq!(time("5000", "1"), Ok(None), "of another process");
        assert!(time("0", &own).is_err() && time("soon", &own).is_err());
        // Nobody is there: nothing is sent, and nothing fails.
        of(&[]).expect("good").ready().await;
    }
}
