//! A task's options beside its id and prompt: the `spec` column of its row.

use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::CodecError;
use marshal_model::{PoolName, TaskId, TaskRef, TaskSpec, UntrustedText};

/// The column. A field that has its default is not written.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Spec<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Cow<'a, [String]>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    files: Cow<'a, [String]>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    embed: Cow<'a, [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_layer: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    land: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "is_usual")]
    priority: i8,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    after: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_usual(priority: &i8) -> bool {
    *priority == 0
}

/// Serializes the column.
pub(crate) fn spec_json(spec: &TaskSpec) -> String {
    let column = Spec {
        pool: spec.pool.as_ref().map(|pool| pool.as_str().into()),
        workspace: spec.workspace.as_ref().map(|path| path.to_string_lossy()),
        attempts: spec.attempts,
        check: spec.check.as_deref().map(Cow::Borrowed),
        files: Cow::Borrowed(&spec.files),
        embed: Cow::Borrowed(&spec.embedded_files),
        policy_layer: spec.policy_layer.as_deref().map(Cow::Borrowed),
        land: spec.land.as_deref().map(Cow::Borrowed),
        priority: spec.priority,
        after: spec.depends_on.iter().map(TaskRef::to_string).collect(),
    };
    serde_json::to_string(&column).unwrap_or_default()
}

/// Decodes a task's specification from the `id`, `prompt` and `spec` of its row.
///
/// # Errors
/// [`CodecError::Spec`]
pub fn read_spec(id: &str, prompt: &UntrustedText, spec: &str) -> Result<TaskSpec, CodecError> {
    let damaged = |error: &dyn std::error::Error| CodecError::Spec {
        task: marshal_model::untrusted::escape_for_display(id, 128),
        detail: error.to_string(),
    };
    let column: Spec<'_> = serde_json::from_str(spec).map_err(|error| damaged(&error))?;
    let pool = column.pool.map(|pool| PoolName::new(&pool)).transpose();
    let after: Result<Vec<_>, _> = column.after.iter().map(|of| TaskRef::parse(of)).collect();
    Ok(TaskSpec {
        id: TaskId::new(id).map_err(|error| damaged(&error))?,
        prompt: prompt.clone(),
        pool: pool.map_err(|error| damaged(&error))?,
        workspace: column.workspace.map(|path| PathBuf::from(&*path)),
        attempts: column.attempts,
        check: column.check.map(Cow::into_owned),
        files: column.files.into_owned(),
        embedded_files: column.embed.into_owned(),
        policy_layer: column.policy_layer.map(Cow::into_owned),
        land: column.land.map(Cow::into_owned),
        priority: column.priority,
        depends_on: after.map_err(|error| damaged(&error))?,
    })
}
