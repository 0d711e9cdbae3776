//! Logs and metrics of the supervisor: one struct per event makes both the log line and the metric.
//!
//! Owns names, labels, help texts and buckets of every metric, the page that Prometheus scrapes and
//! the format of the logs. Must not know actors, children, files or clocks: durations and samples
//! are parameters. Foreign text reaches a log only through `escape_for_display`.

pub mod event;
pub mod exporter;
pub mod labels;
pub mod log;
pub mod meters;
pub mod names;
mod open_metrics;
pub mod page;
mod usage;

pub use exporter::{Exporter, InstallError};
pub use meters::PoolMeters;
pub use page::{BuildInfo, PageFormat, PoolSample, ProcessStats, Samples, SlotSample};
pub use usage::{SlotUsage, StallSeconds, UsageSample};
