//! `[sandbox.NAME.limits]`: the resource limits of a child together with its descendants.
//!
//! Must not know what enforces such a limit.

use std::ops::RangeInclusive;

use toml::de::DeValue;

use super::key_types::ValueType;
use super::table::{Entry, Section, keywords};
use marshal_model::{LimitBackend, ResourceLimits};

keywords!(LimitBackend);

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Fewer would be too few for the helpers and one agent with its threads.
const PIDS: RangeInclusive<u32> = 16..=4_194_304;
/// Less would not start any agent.
const MEMORY: RangeInclusive<u64> = 16 * MIB..=64 * TIB;
const SWAP: RangeInclusive<u64> = 0..=64 * TIB;
/// In thousandths of a CPU: the kernel's minimum is a hundredth.
const CPU_MILLIS: RangeInclusive<u32> = 10..=1_024_000;
const CPU: &str = "a number from 0.01 to 1024, or \"none\"";

/// The value of the file: a limit, or `none`.
#[derive(Clone, Copy)]
struct Limit<T>(Option<T>);

/// The limits of the profile `standard`.
pub(super) const STANDARD: ResourceLimits = ResourceLimits {
    pids: Some(1024),
    memory: Some(4 * GIB),
    swap: Some(0),
    cpu_millis: None,
    backend: LimitBackend::Auto,
};

/// The limits of the profile `strict`.
pub(super) const STRICT: ResourceLimits = ResourceLimits {
    pids: Some(256),
    memory: Some(2 * GIB),
    swap: Some(0),
    cpu_millis: Some(1000),
    backend: LimitBackend::Auto,
};

/// Reads these keys of `limits`; `base` has the defaults.
pub(super) fn read(section: &Section<'_>, base: ResourceLimits) -> ResourceLimits {
    let pids = section.get("pids").and_then(|item| read_pids(&item));
    let memory = section.get("memory").and_then(|item| read_memory(&item));
    let swap = section.get("swap");
    let wants_swap = swap.as_ref().and_then(read_swap);
    let cpu = section.get("cpu").and_then(|item| read_cpu(&item));
    let backend = section.keyword("backend", &[]).map(|found| found.value);
    let memory = memory.map_or(base.memory, |limit| limit.0);
    let limits = ResourceLimits {
        pids: pids.map_or(base.pids, |limit| limit.0),
        memory,
        // Swap is limited only together with memory.
        swap: wants_swap
            .map_or(base.swap, |limit| limit.0)
            .filter(|_| memory.is_some()),
        cpu_millis: cpu.map_or(base.cpu_millis, |limit| limit.0),
        backend: backend.unwrap_or(base.backend),
    };
    if let (Some(item), Some(Limit(Some(_))), None) = (swap, wants_swap, limits.memory) {
        let help = "give limits.memory a size, or leave limits.swap out".to_owned();
        item.report("swap is limited only together with memory", Some(help));
    }
    limits
}

/// Whether the value is `none`.
fn is_none(item: &Entry<'_>) -> bool {
    item.record_type(ValueType::Enum(vec!["none"]));
    matches!(item.value(), DeValue::String(text) if text == "none")
}

fn read_pids(item: &Entry<'_>) -> Option<Limit<u32>> {
    if is_none(item) {
        return Some(Limit(None));
    }
    item.record_type(ValueType::Integer {
        least: PIDS.start().to_string(),
        most: PIDS.end().to_string(),
    });
    if !matches!(item.value(), DeValue::Integer(_)) {
        let (least, most) = (PIDS.start(), PIDS.end());
        return item.report_unexpected(&format!("an integer from {least} to {most}, or \"none\""));
    }
    item.integer(&PIDS).map(|found| Limit(Some(found.value)))
}

fn read_memory(item: &Entry<'_>) -> Option<Limit<u64>> {
    if is_none(item) {
        return Some(Limit(None));
    }
    item.record_type(ValueType::Size(MEMORY));
    if !matches!(item.value(), DeValue::String(_)) {
        return item.report_unexpected("a size or \"none\"");
    }
    item.size(&MEMORY).map(|found| Limit(Some(found.value)))
}

fn read_swap(item: &Entry<'_>) -> Option<Limit<u64>> {
    item.record_type(ValueType::Enum(vec!["none", "0"]));
    item.record_type(ValueType::Size(SWAP));
    match item.value() {
        DeValue::String(text) if text == "none" => Some(Limit(None)),
        DeValue::String(text) if text == "0" => Some(Limit(Some(0))),
        DeValue::String(_) => item.size(&SWAP).map(|found| Limit(Some(found.value))),
        _ => item.report_unexpected("a size or \"none\""),
    }
}

fn read_cpu(item: &Entry<'_>) -> Option<Limit<u32>> {
    if is_none(item) {
        return Some(Limit(None));
    }
    item.record_type(ValueType::Number {
        least: "0.01",
        most: "1024",
    });
    let millis = match item.value() {
        DeValue::Integer(whole) => i64::from_str_radix(whole.as_str(), whole.radix())
            .ok()
            .map(|whole| whole as f64),
        DeValue::Float(text) => text.as_str().parse::<f64>().ok(),
        _ => None,
    };
    // NaN and infinities are outside of all bounds.
    let millis = millis.map(|cpus| (cpus * 1000.0).round());
    let bounds = f64::from(*CPU_MILLIS.start())..=f64::from(*CPU_MILLIS.end());
    match millis.filter(|millis| bounds.contains(millis)) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number within the bounds above"
        )]
        Some(millis) => Some(Limit(Some(millis as u32))),
        None => item.report_unexpected(CPU),
    }
}
