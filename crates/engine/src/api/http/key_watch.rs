//! Ends connections whose certificate or token was replaced by a reload.
//!
//! Owns what a connection rests on. A request is checked when it comes, but a stream lives for an
//! hour, and a connection under a former certificate for as long as its client uses it. Must not
//! know how files are read.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use crate::api::guard::Digest;
use crate::api::tokens::{Caller, Tokens};

/// What one connection rests on.
#[derive(Clone)]
pub(in crate::api) struct KeyWatch {
    /// Changes with the certificate; `None` without TLS.
    certificate: Option<watch::Receiver<()>>,
    /// Changes when tokens must be looked at again, with the tokens; `None` if there are none.
    tokens: Option<(watch::Receiver<()>, Tokens)>,
    /// The token of the last request, and whom it identified.
    caller: Arc<Mutex<Option<(Digest, Caller)>>>,
}

/// Why a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outdated {
    /// It shows a former certificate.
    Certificate,
    /// The token of its last request no longer identifies the same caller.
    Token,
}

impl KeyWatch {
    /// Watches from now on: before the handshake, and before any token is looked at.
    pub(super) fn new(certificate: Option<watch::Receiver<()>>, tokens: Option<&Tokens>) -> Self {
        Self {
            certificate,
            tokens: tokens.map(|tokens| (tokens.changes(), tokens.clone())),
            caller: Arc::default(),
        }
    }

    /// Remembers by which token the present request came.
    pub(in crate::api) fn set_caller(&self, token: Digest, caller: Caller) {
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some((token, caller));
    }

    /// Returns when the connection must end.
    pub(super) async fn outdated(&self) -> Outdated {
        let mut certificate = self.certificate.clone();
        let mut tokens = self.tokens.clone();
        loop {
            tokio::select! {
                () = changed(certificate.as_mut()) => return Outdated::Certificate,
                () = changed(tokens.as_mut().map(|(changes, _)| changes)) => {
                    if !self.identifies_same_caller().await {
                        return Outdated::Token;
                    }
                }
            }
        }
    }

    async fn identifies_same_caller(&self) -> bool {
        let known = self
            .caller
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let (Some((token, caller)), Some((_, tokens))) = (known, &self.tokens) else {
            return true;
        };
        let tokens = tokens.clone();
        let found = tokio::task::spawn_blocking(move || tokens.find_caller(&token)).await;
        found.is_ok_and(|found| found == Some(caller))
    }
}

/// Waits for a change; for ever, if there is nothing that changes.
async fn changed(of: Option<&mut watch::Receiver<()>>) {
    if let Some(of) = of
        && of.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}
