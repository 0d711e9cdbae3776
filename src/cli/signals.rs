//! SIGINT, SIGTERM and SIGHUP as a stream of words.
//!
//! Owns their handlers from the moment of [`Signals::install`]. Must not know what they bring
//! about. Handlers, unlike ignored signals, are not inherited by children.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::exit::Exit;

/// What the terminal, the service manager or a person wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// The terminal went away, or a reload is wanted.
    Hangup,
}

impl Signal {
    /// How the program ends if this is the signal that ends it at once.
    #[must_use]
    pub const fn exit(self) -> Exit {
        match self {
            Self::Interrupt => Exit::Interrupted,
            Self::Terminate | Self::Hangup => Exit::Terminated,
        }
    }
}

/// The signals as they come.
#[derive(Debug)]
pub struct Signals {
    receiver: mpsc::Receiver<Signal>,
    /// Those that want the end.
    ends: u32,
}

/// Signals that wait to be looked at; what a person sends beyond them changes nothing.
const WAITING: usize = 8;

impl Signals {
    /// Takes the three signals over. Must be called inside a runtime.
    ///
    /// # Errors
    /// What the system said.
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

    /// Signals that come from a channel instead of the kernel.
    #[must_use]
    pub fn from_channel(receiver: mpsc::Receiver<Signal>) -> Self {
        Self { receiver, ends: 0 }
    }

    /// Whether a second one wanted the end: then nothing is waited for any more.
    #[must_use]
    pub const fn is_insistent(&self) -> bool {
        self.ends > 1
    }

    /// The next signal. Cancel-safe. Waits for ever when none can come any more.
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
