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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use marshal_telemetry::{BuildInfo, Exporter, PageFormat, Samples};

    #[test]
    fn an_actor_that_panics_is_counted_and_no_longer_alive() {
        let (recorder, exporter) = Exporter::build(BuildInfo::default()).expect("a recorder");
        metrics::with_local_recorder(&recorder, || {
            let _kept = LiveActor::new(ActorKind::Pool);
            drop(LiveActor::new(ActorKind::Pool));
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _actor = LiveActor::new(ActorKind::Session);
                panic!("wanted by the test");
            }));
            assert!(panicked.is_err());
            let page = exporter.render(PageFormat::Prometheus, &Samples::default());
            for series in [
                "marshal_actors{kind=\"pool\"} 1\n",
                "marshal_actors{kind=\"session\"} 0\n",
                "marshal_actor_panics_total{kind=\"session\"} 1\n",
            ] {
                assert!(page.contains(series), "{series}: {page}");
            }
            assert!(!page.contains("marshal_actor_panics_total{kind=\"pool\"} 1"));
        });
    }
}
