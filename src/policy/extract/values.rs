//! The values of a call's fields, where several places may say the same thing.
//!
//! Must not know what a value is for.

use super::Trouble;
use super::fields::{Fields, Found, Place};
use crate::limits::CALL_PATHS;

/// A value that must be a text.
pub(super) fn text(found: Found<'_>) -> Result<String, String> {
    found.text()
}

pub(super) fn lacks(places: &[Place]) -> Trouble {
    let first = places.first().map(ToString::to_string).unwrap_or_default();
    Trouble::Unclear(format!("`{first}` is missing"))
}

pub(super) fn required(places: &[Place], found: Option<String>) -> Result<String, Trouble> {
    found.ok_or_else(|| lacks(places))
}

/// The one value of a field, if it is there; all its places must have the same.
pub(super) fn one(
    fields: &Fields,
    places: &[Place],
    read: impl Fn(Found<'_>) -> Result<String, String>,
) -> Result<Option<String>, Trouble> {
    let mut value: Option<String> = None;
    for place in places {
        for found in fields.find(place)? {
            let text = read(found).map_err(|why| format!("`{place}` {why}"))?;
            match &value {
                Some(before) if *before != text => {
                    let why = format!("`{place}` says another thing than a field before it");
                    return Err(Trouble::Unclear(why));
                }
                _ => value = Some(text),
            }
        }
    }
    Ok(value)
}

/// The paths of a call, all of which are judged. Each place that has any must speak of the same
/// files as every other.
pub(super) fn files(fields: &Fields, places: &[Place]) -> Result<Vec<String>, Trouble> {
    let mut all: Vec<String> = Vec::new();
    let mut groups: Vec<Vec<String>> = Vec::new();
    for place in places {
        let mut group = Vec::new();
        for found in fields.find(place)? {
            let text = found.text().map_err(|why| format!("`{place}` {why}"))?;
            if !all.contains(&text) {
                all.push(text.clone());
            }
            if all.len() > CALL_PATHS {
                let why = format!("it names more than {CALL_PATHS} files");
                return Err(Trouble::Malformed(why));
            }
            group.push(text);
        }
        let strangers = groups.first().is_some_and(|first| {
            let speaks = |of: &[String], path: &String| of.iter().any(|p| same_file(p, path));
            !group.iter().all(|path| speaks(first, path))
                || !first.iter().all(|path| speaks(&group, path))
        });
        if !group.is_empty() && strangers {
            let why = format!("`{place}` names other files than a field before it");
            return Err(Trouble::Unclear(why));
        }
        if !group.is_empty() {
            groups.push(group);
        }
    }
    Ok(all)
}

/// Whether two spellings can be of one file: they are the same, or one is the relative end of the
/// other. Both are judged, so this need not be sure.
fn same_file(a: &str, b: &str) -> bool {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let short = short.strip_prefix("./").unwrap_or(short);
    let below = long
        .strip_suffix(short)
        .is_some_and(|dir| dir.ends_with('/'));
    a == b || (below && !short.starts_with('/') && !short.split('/').any(|part| part == ".."))
}
