//! A task in the body of a request, alone or as one of a run.
//!
//! Owns its format, for both sides, and that every task is checked by the same rules. Must not know
//! which workspaces the configuration names.

use std::borrow::Cow;
use std::path::Path;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::task_rules::{self, TaskRuleError};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, TaskId, TaskRef, TaskSpec, UntrustedText};

/// The maximum number of tasks in `after`.
const TASK_AFTER: usize = 64;

/// What is wrong with a task: the key, and why.
pub type TaskFault = (&'static str, String);

/// A task of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RunTask")]
pub struct TaskBody {
    /// Its id in its run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(required, regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"))]
    pub id: Option<String>,
    /// The prompt; must not be blank.
    #[schemars(length(min = 1, max = 65_536))]
    pub prompt: String,
    /// Its pool; required if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,31}$"))]
    pub pool: Option<String>,
    /// A workspace of the configuration to use instead of the pool's. A run over the Unix socket may
    /// also name an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// A program and its arguments; it runs in the session's sandbox and must exit with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    pub check: Option<Vec<String>>,
    /// How often it may be tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub attempts: Option<u64>,
    /// The files that its prompt names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::TASK_FILES), inner(length(min = 1)))]
    pub files: Vec<String>,
    /// The files whose content goes into its prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = limits::TASK_FILES), inner(length(min = 1)))]
    pub embed: Vec<String>,
    /// The layer of the pool's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_layer: Option<String>,
    /// The branch that its work lands on; only with the workspace mode "worktree".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub land: Option<String>,
    /// Tasks with a higher priority start first in their pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -100, max = 100))]
    pub priority: Option<i64>,
    /// Tasks that must be done before this one starts, `RUN:TASK` each; if one of them ends
    /// otherwise, this one is skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = TASK_AFTER), inner(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}:[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")))]
    pub after: Vec<String>,
}

/// A task that is a run of its own; it has no id.
pub(super) struct NewTask;

impl JsonSchema for NewTask {
    fn schema_name() -> Cow<'static, str> {
        "NewTask".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = TaskBody::json_schema(generator);
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.remove("id");
        }
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|key| key != "id");
        }
        let example = json!({"prompt": "Read README.md and say what this project is."});
        schema.insert("description".to_owned(), json!("A task."));
        schema.insert("examples".to_owned(), json!([example]));
        schema
    }
}

impl TaskBody {
    /// Creates the body of a task of a run.
    ///
    /// # Errors
    /// A workspace whose path is not UTF-8: JSON cannot carry it.
    pub fn from_spec(task: &TaskSpec) -> Result<Self, TaskFault> {
        let text = |path: &Path| {
            let fault = || ("workspace", "is not UTF-8: rename the directory".to_owned());
            path.to_str().map(str::to_owned).ok_or_else(fault)
        };
        Ok(Self {
            id: Some(task.id.to_string()),
            prompt: task.prompt.raw().to_owned(),
            pool: task.pool.as_ref().map(ToString::to_string),
            workspace: task.workspace.as_deref().map(text).transpose()?,
            check: task.check.clone(),
            attempts: task.attempts.map(u64::from),
            files: task.files.clone(),
            embed: task.embedded_files.clone(),
            policy_layer: task.policy_layer.clone(),
            land: task.land.clone(),
            priority: Some(task.priority.into()).filter(|number| *number != 0),
            after: task.depends_on.iter().map(ToString::to_string).collect(),
        })
    }

    /// Checks the task; its workspace is left to the caller.
    ///
    /// # Errors
    /// [`TaskFault`]
    pub fn into_spec(self, id: TaskId) -> Result<TaskSpec, TaskFault> {
        let shown = |error: marshal_model::IdError| escape_for_display(&error.to_string(), 200);
        let fault = |key| move |error: TaskRuleError| (key, error.to_string());
        task_rules::check_prompt(&self.prompt).map_err(fault("prompt"))?;
        let pool = self.pool.as_deref().map(PoolName::new).transpose();
        let pool = pool.map_err(|error| ("pool", shown(error)))?;
        let attempts = self.attempts.map(task_rules::check_attempts).transpose();
        task_rules::check_files(&self.files).map_err(fault("files"))?;
        task_rules::check_files(&self.embed).map_err(fault("embed"))?;
        if let Some(name) = &self.policy_layer {
            task_rules::check_policy_layer(name).map_err(fault("policy_layer"))?;
        }
        if let Some(branch) = &self.land {
            task_rules::check_branch(branch).map_err(fault("land"))?;
        }
        if let Some(check) = &self.check {
            task_rules::check_argv(check).map_err(fault("check"))?;
        }
        let priority = task_rules::check_priority(Some(self.priority.unwrap_or(0)));
        if self.after.len() > TASK_AFTER {
            let why = format!(
                "names {} tasks; the limit is {TASK_AFTER}",
                self.after.len()
            );
            return Err(("after", why));
        }
        let after = self.after.iter().map(|item| TaskRef::parse(item));
        let after: Result<Vec<_>, _> = after.collect();
        let bad = |_| {
            let why = "contains an invalid task id; give RUN:TASK";
            ("after", why.to_owned())
        };
        Ok(TaskSpec {
            id,
            prompt: UntrustedText::new(self.prompt),
            pool,
            workspace: None,
            attempts: attempts.map_err(fault("attempts"))?,
            check: self.check,
            files: self.files,
            embedded_files: self.embed,
            policy_layer: self.policy_layer,
            land: self.land,
            priority: priority.map_err(fault("priority"))?,
            depends_on: after.map_err(bad)?,
        })
    }
}
