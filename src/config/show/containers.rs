//! `[container]` as it is in force.

use super::{Shown, texts};
use crate::config::types::Container;

/// The table.
pub(super) fn table(container: &Container) -> Shown {
    let Container {
        engine,
        runtime,
        image,
        before,
        of_run,
    } = container;
    let mut table = Shown::new(&["container"]);
    table.put("engine", engine.word());
    table.put_some("runtime", runtime.as_deref());
    table.put_some("image", image.as_deref());
    let extra: Vec<String> = before.iter().chain(of_run).cloned().collect();
    table.put("extra", texts(&extra));
    table
}
