//! An actor for tests that does nothing but pass its messages on.

use ractor::{Actor, ActorProcessingErr, ActorRef, Message};
use tokio::sync::mpsc;

/// Unread messages; more are lost.
const MESSAGES: usize = 1024;

struct Probe<M>(mpsc::Sender<M>);

impl<M: Message> Actor for Probe<M> {
    type Msg = M;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<M>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<M>,
        message: M,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let _ = self.0.try_send(message);
        Ok(())
    }
}

/// An address, and what is sent there.
pub(crate) fn probe<M: Message>() -> (ActorRef<M>, mpsc::Receiver<M>) {
    let (sender, messages) = mpsc::channel(MESSAGES);
    let (address, _) = ractor::ActorRuntime::spawn_instant(None, Probe(sender), ())
        .expect("an actor without a name");
    (address, messages)
}
