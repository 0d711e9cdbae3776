//! The recorder behind `/metrics`: buckets, help texts, zeros, and the page as a whole.
//!
//! No listener of its own and no thread: the caller serves [`Exporter::render`] and calls
//! [`Exporter::upkeep`] every few seconds, so that observations do not pile up between scrapes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use super::meters::{counter, gauge, histogram};
use super::names::{self, CATALOGUE, LabelValues, Metric, MetricKind, Source};
use super::open_metrics;
use super::page::{self, BuildInfo, PageFormat, Samples};
use marshal_model::PoolName;

/// Why the exporter cannot be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A histogram has no buckets.
    #[error("the metrics recorder cannot be built: {0}")]
    Build(#[from] BuildError),
    /// The process already has a recorder.
    #[error("the process has a metrics recorder already")]
    AlreadyInstalled,
}

/// The page's source. Clones share it.
#[derive(Clone)]
pub struct Exporter {
    handle: PrometheusHandle,
    build: BuildInfo,
    /// The number of series on the last page.
    series: Arc<AtomicU64>,
}

impl Exporter {
    /// Makes the recorder of the whole process.
    ///
    /// # Errors
    /// [`InstallError`]
    pub fn install(build: BuildInfo) -> Result<Self, InstallError> {
        let (recorder, exporter) = Self::build(build)?;
        metrics::set_global_recorder(recorder).map_err(|_| InstallError::AlreadyInstalled)?;
        describe_all();
        initialise();
        Ok(exporter)
    }

    /// Makes a recorder without installing it, for tests (`metrics::with_local_recorder`).
    ///
    /// # Errors
    /// [`InstallError::BuildInfo`]
    pub fn build(build: BuildInfo) -> Result<(PrometheusRecorder, Self), InstallError> {
        let mut builder = PrometheusBuilder::new();
        for metric in CATALOGUE {
            if let MetricKind::Histogram(buckets) = metric.kind {
                builder = builder
                    .set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)?;
            }
        }
        let recorder = builder.build_recorder();
        let exporter = Self {
            handle: recorder.handle(),
            build,
            series: Arc::new(AtomicU64::new(0)),
        };
        Ok((recorder, exporter))
    }

    /// Folds observations into their buckets. To be called every few seconds.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// Renders the page: the recorder's series, then those of [`super::page`].
    #[must_use]
    pub fn render(&self, format: PageFormat, samples: &Samples<'_>) -> String {
        let mut out = self.handle.render();
        page::write(&mut out, &self.build, samples);
        page::write_series(&mut out, self.series.load(Ordering::Relaxed));
        let series = out.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        self.series.store(series.count() as u64, Ordering::Relaxed);
        match format {
            PageFormat::Prometheus => out,
            PageFormat::OpenMetrics => open_metrics::from_prometheus(&out),
        }
    }
}

/// Gives every metric of the recorder its help text.
pub fn describe_all() {
    metrics::with_recorder(|recorder| {
        for metric in CATALOGUE {
            if metric.source == Source::Page {
                continue;
            }
            let (name, help) = (metric.name.into(), metric.help.into());
            match metric.kind {
                MetricKind::Counter => recorder.describe_counter(name, None, help),
                MetricKind::Gauge => recorder.describe_gauge(name, None, help),
                MetricKind::Histogram(_) => recorder.describe_histogram(name, None, help),
            }
        }
    });
}

/// Makes the series of [`Source::FromStart`] that belong to no pool.
pub fn initialise() {
    for metric in CATALOGUE {
        if metric
            .labels
            .iter()
            .all(|l| matches!(l.values, LabelValues::Words(_)))
        {
            register_series(metric, None);
        }
    }
}

/// Makes a pool's series of [`Source::FromStart`], and says how many slots it should have.
pub fn initialise_pool(pool: &PoolName, slots: u16) {
    for metric in CATALOGUE {
        if metric
            .labels
            .iter()
            .any(|l| matches!(l.values, LabelValues::Pools))
        {
            register_series(metric, Some(pool.as_str()));
        }
    }
    gauge(&names::POOL_SLOTS_DESIRED, &[pool.as_str()]).set(f64::from(slots));
}

/// Makes the series of [`Source::FromStart`] of a pool's routes.
pub fn initialise_routes(pool: &PoolName, routes: &[&str]) {
    for metric in CATALOGUE {
        let mut labels = metric.labels.iter();
        if labels.any(|label| matches!(label.values, LabelValues::Routes)) {
            for route in routes {
                register_series_for(metric, Some(pool.as_str()), Some(route), None);
            }
        }
    }
}

/// Makes every series of a hook, at 0.
pub fn initialise_hook(hook: &str) {
    for metric in [&names::HOOK_MESSAGES, &names::HOOK_HELD_BACK] {
        register_series_for(metric, None, None, Some(hook));
    }
}

/// Makes a metric's series for every combination of its closed labels.
fn register_series(metric: &Metric, pool: Option<&str>) {
    register_series_for(metric, pool, None, None);
}

fn register_series_for(
    metric: &Metric,
    pool: Option<&str>,
    route: Option<&str>,
    fixed: Option<&str>,
) {
    if metric.source != Source::FromStart {
        return;
    }
    let mut combinations: Vec<Vec<&str>> = vec![Vec::new()];
    for label in metric.labels {
        let values: Vec<&str> = match (label.values, pool, route) {
            (LabelValues::Words(words), ..) => words(),
            (LabelValues::Pools, Some(pool), _) => vec![pool],
            (LabelValues::Routes, _, Some(route)) => vec![route],
            (LabelValues::SingleValue, ..) if fixed.is_some() => fixed.into_iter().collect(),
            _ => return,
        };
        combinations = combinations
            .iter()
            .flat_map(|before| {
                values.iter().map(|value| {
                    let mut next = before.clone();
                    next.push(value);
                    next
                })
            })
            .collect();
    }
    for values in &combinations {
        match metric.kind {
            MetricKind::Counter => counter(metric, values).increment(0),
            MetricKind::Gauge => gauge(metric, values).increment(0.0),
            MetricKind::Histogram(_) => drop(histogram(metric, values)),
        }
    }
}

#[cfg(test)]
mod tests;
