//! SIGINT, SIGTERM and SIGHUP as a stream.
//!
//! Owns their handlers from [`Signals::install`] on. Must not know their effects. Handlers, unlike
//! ignored signals, are not inherited by children.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::exit::Exit;

/// A signal from the terminal, the service manager or a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, as from Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal was closed, or a reload is requested.
    Hangup,
}

impl Signal {
    /// The exit code if this signal ends the program at once.
    #[must_use]
    pub const fn exit(self) -> Exit {
        match self {
            Self::Interrupt => Exit::Interrupted,
            Self::Terminate | Self::Hangup => Exit::Terminated,
        }
    }
}

/// The stream of received signals.
#[derive(Debug)]
pub struct Signals {
    receiver: mpsc::Receiver<Signal>,
    /// The number of signals so far that stop the program.
    ends: u32,
}

/// Signals that wait to be handled; further ones have no effect.
const WAITING: usize = 8;

impl Signals {
    /// Installs the handlers of the three signals. Must be called inside a runtime.
    ///
    /// # Errors
    /// The error of the system.
    pub fn install() -> io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            loop {
                let signal = tokio::select! {
                    Some(()) = interrupt.recv() => Signal::Interrupt,
                    Some(()) = terminate.recv() => Signal::Terminate,
                    Some(()) = hangup.recv() => Signal::Hangup,
                    () = sender.closed() => return,
                    else => return,
                };
                let _ = sender.try_send(signal);
            }
        });
        Ok(Self::from_channel(receiver))
    }

    /// Signals from a channel instead of the kernel, for tests.
    #[must_use]
    pub fn from_channel(receiver: mpsc::Receiver<Signal>) -> Self {
        Self { receiver, ends: 0 }
    }

    /// Whether a second signal to stop has arrived: then nothing is waited for any more.
    #[must_use]
    pub const fn is_insistent(&self) -> bool {
        self.ends > 1
    }

    /// The next signal. Cancel-safe. Waits forever if no signal can arrive any more.
    pub async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Some(signal) => {
                self.ends += u32::from(signal != Signal::Hangup);
                signal
            }
            None => std::future::pending().await,
        }
    }
}
