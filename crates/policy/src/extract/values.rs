//! The values of a call's fields, where several places may have the same value.
//!
//! Must not know what a value is for.

use super::ExtractError;
use super::fields::{FieldPath, FieldRef, Fields, ValueError};
use marshal_model::limits::CALL_PATHS;

/// A value that must be text.
pub(super) fn text_value(found: FieldRef<'_>) -> Result<String, ValueError> {
    found.to_text()
}

pub(super) fn missing_field(places: &[FieldPath]) -> ExtractError {
    let first = places.first().map(ToString::to_string).unwrap_or_default();
    ExtractError::Unclear(format!("`{first}` is missing"))
}

pub(super) fn required(
    places: &[FieldPath],
    found: Option<String>,
) -> Result<String, ExtractError> {
    found.ok_or_else(|| missing_field(places))
}

/// The value of a field, if it is present; all its places must have the same.
pub(super) fn single_value(
    fields: &Fields,
    places: &[FieldPath],
    read: impl Fn(FieldRef<'_>) -> Result<String, ValueError>,
) -> Result<Option<String>, ExtractError> {
    let mut value: Option<String> = None;
    for place in places {
        for found in fields.find(place)? {
            let text = read(found).map_err(|why| why.at(place))?;
            match &value {
                Some(before) if *before != text => {
                    let why = format!("`{place}` differs from an earlier field");
                    return Err(ExtractError::Unclear(why));
                }
                _ => value = Some(text),
            }
        }
    }
    Ok(value)
}

/// The paths of a call, all of which are evaluated. Every place that has paths must name the same
/// files.
pub(super) fn files(fields: &Fields, places: &[FieldPath]) -> Result<Vec<String>, ExtractError> {
    let mut all: Vec<String> = Vec::new();
    let mut groups: Vec<Vec<String>> = Vec::new();
    for place in places {
        let mut group = Vec::new();
        for found in fields.find(place)? {
            let text = found.to_text().map_err(|why| why.at(place))?;
            if !all.contains(&text) {
                all.push(text.clone());
            }
            if all.len() > CALL_PATHS {
                let why = format!("it names more than {CALL_PATHS} files");
                return Err(ExtractError::Malformed(why));
            }
            group.push(text);
        }
        let strangers = groups.first().is_some_and(|first| {
            let speaks =
                |of: &[String], path: &String| of.iter().any(|p| may_be_same_file(p, path));
            !group.iter().all(|path| speaks(first, path))
                || !first.iter().all(|path| speaks(&group, path))
        });
        if !group.is_empty() && strangers {
            let why = format!("`{place}` names other files than an earlier field");
            return Err(ExtractError::Unclear(why));
        }
        if !group.is_empty() {
            groups.push(group);
        }
    }
    Ok(all)
}

/// Whether two spellings can be of one file: they are equal, or one is the relative end of the
/// other. Both are evaluated, so this need not be certain.
fn may_be_same_file(a: &str, b: &str) -> bool {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let short = short.strip_prefix("./").unwrap_or(short);
    let below = long
        .strip_suffix(short)
        .is_some_and(|dir| dir.ends_with('/'));
    a == b || (below && !short.starts_with('/') && !short.split('/').any(|part| part == ".."))
}
