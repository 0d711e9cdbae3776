//! `[container]`, as it is shown.

use super::{RenderedTable, texts};
use crate::types::Container;

/// The table.
pub(super) fn table(container: &Container) -> RenderedTable {
    let Container {
        engine,
        runtime,
        image,
        global_options: before,
        run_options: of_run,
    } = container;
    let mut table = RenderedTable::new(&["container"]);
    table.put("engine", engine.as_str());
    table.put_optional("runtime", runtime.as_deref());
    table.put_optional("image", image.as_deref());
    let extra: Vec<String> = before.iter().chain(of_run).cloned().collect();
    table.put("extra", texts(&extra));
    table
}
