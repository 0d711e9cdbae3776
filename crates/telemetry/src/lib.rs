//! What the supervisor tells about itself: one struct per event makes log line and metric.
//!
//! Floor 1. Owns names, labels, help texts and buckets of every metric, the page that Prometheus
//! reads and the form of the logs. Must not know actors, children, files or clocks: durations and
//! samples are parameters. Text from outside reaches a log only through `Foreign::show`.

pub mod event;
pub mod exporter;
pub mod labels;
pub mod log;
pub mod meters;
pub mod names;
pub mod page;
mod usage;

pub use exporter::{Exporter, InstallError};
pub use meters::PoolMeters;
pub use page::{BuildInfo, ProcessStats, SlotSample};
pub use usage::{SlotUsage, StallSeconds, UsageSample};
