//! Counts an actor as alive until it is dropped, also by a panic.

use marshal_telemetry::event::process::{ActorEnded, ActorStarted};
pub(crate) use marshal_telemetry::labels::ActorKind;

/// A live actor.
pub(crate) struct LiveActor(ActorKind);

impl LiveActor {
    pub(crate) fn new(kind: ActorKind) -> Self {
        ActorStarted { kind }.emit();
        Self(kind)
    }
}

impl Drop for LiveActor {
    fn drop(&mut self) {
        let (kind, panicked) = (self.0, std::thread::panicking());
        ActorEnded { kind, panicked }.emit();
    }
}
