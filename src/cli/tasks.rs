//! The tasks of a run: prompts, task files and standard input -> checked tasks.
//!
//! A task file is JSON Lines, one task a line:
//! `{"id","prompt","pool","workspace","attempts","check","files","embed","policy_layer","land","priority"}`.
//! Only `prompt` is required. Owns how a file is read, and the message for every error in it. Must
//! not know the fleet.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use marshal_engine::api::task_rules;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, TaskId, TaskSpec, UntrustedText};

/// The keys of a task.
const KEYS: &[&str] = &[
    "id",
    "prompt",
    "pool",
    "workspace",
    "attempts",
    "check",
    "files",
    "embed",
    "policy_layer",
    "land",
    "priority",
];

/// One error in the tasks. Its text is safe to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `FILE:LINE`, `FILE`, or the argument.
    pub place: String,
    /// The key with the error; `None` for an error of the whole line or file.
    pub key: Option<String>,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if let Some(key) = &self.key {
            write!(f, "key `{key}` ")?;
        }
        f.write_str(&self.message)
    }
}

/// All errors in the tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TasksError {
    /// The first errors, at most [`limits::TASK_ERRORS`].
    pub problems: Vec<Problem>,
    /// The number of further errors.
    pub more: usize,
}

impl fmt::Display for TasksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.problems.iter().enumerate() {
            if place > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for TasksError {}

/// What the tasks are checked against.
pub struct TaskContext<'a> {
    /// The pools of the configuration, in order.
    pub pools: &'a [PoolName],
    /// The pool of the tasks that name none.
    pub pool: Option<&'a PoolName>,
    /// The directory that paths of arguments and of standard input are relative to; absolute.
    pub directory: &'a Path,
    /// Standard input.
    pub stdin: &'a mut dyn Read,
}

impl fmt::Debug for TaskContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskContext").finish_non_exhaustive()
    }
}

/// The extensions of files: an argument that is one word and ends so is meant as a file.
const FILES: &[&str] = &[
    "jsonl", "ndjson", "json", "md", "txt", "toml", "yaml", "yml",
];

/// The error of an argument that is meant as a file of tasks or as a plan, and is neither.
fn not_a_file_of_tasks(argument: &str, directory: &Path) -> Option<&'static str> {
    let path = Path::new(argument);
    let extension = path.extension().and_then(|name| name.to_str())?;
    let is_meant = FILES.contains(&extension) && !argument.contains(char::is_whitespace);
    let exists = directory.join(path).symlink_metadata().is_ok();
    match (is_meant, exists) {
        (false, _) => None,
        (true, false) => Some("there is no such file; a prompt is more than the name of a file"),
        (true, true) => Some(
            "is not a file of tasks: name it FILE.jsonl, with one JSON object per line; a prompt is more than the name of a file",
        ),
    }
}

/// Reads the arguments of `run`: one that names an existing `.jsonl` file is a task file, `-` is
/// standard input, anything else a prompt. Returns at least one task.
///
/// # Errors
/// [`TasksError`] with all errors.
pub fn read(arguments: &[OsString], context: TaskContext<'_>) -> Result<Vec<TaskSpec>, TasksError> {
    let mut reader = Reader {
        pools: context.pools,
        pool: context.pool,
        parsed: Vec::new(),
        problems: Vec::new(),
        more: 0,
    };
    let mut stdin = Some(context.stdin);
    for argument in arguments {
        let path = context.directory.join(argument);
        let names_file = Path::new(argument).extension() == Some("jsonl".as_ref());
        if argument == "-" {
            match stdin.take() {
                Some(stdin) => reader.lines("standard input", stdin, context.directory),
                None => reader.problem("-", None, "is given twice; there is one standard input"),
            }
        } else if names_file && path.is_file() {
            reader.file(&path, &argument.to_string_lossy());
        } else if let Some(prompt) = argument.to_str() {
            match not_a_file_of_tasks(prompt, context.directory) {
                None => reader.prompt(prompt),
                Some(why) => {
                    let shown = escape_for_display(prompt, 100);
                    reader.problem(&shown, None, why);
                }
            }
        } else {
            let shown = escape_for_display(&argument.to_string_lossy(), 60);
            reader.problem(&shown, None, "is not UTF-8, as a prompt must be");
        }
    }
    reader.finish()
}

/// A task that may not have an id yet.
struct ParsedTask {
    place: String,
    id: Option<TaskId>,
    spec: TaskFields,
}

/// All fields of a task except its id.
struct TaskFields {
    prompt: UntrustedText,
    pool: Option<PoolName>,
    workspace: Option<PathBuf>,
    attempts: Option<u32>,
    check: Option<Vec<String>>,
    files: Vec<String>,
    embed: Vec<String>,
    policy_layer: Option<String>,
    land: Option<String>,
    priority: i8,
}

struct Reader<'a> {
    pools: &'a [PoolName],
    pool: Option<&'a PoolName>,
    parsed: Vec<ParsedTask>,
    problems: Vec<Problem>,
    more: usize,
}

impl Reader<'_> {
    fn problem(&mut self, place: &str, key: Option<&str>, message: impl Into<String>) {
        if self.problems.len() >= limits::TASK_ERRORS {
            self.more += 1;
            return;
        }
        self.problems.push(Problem {
            place: place.to_owned(),
            key: key.map(|key| escape_for_display(key, 40)),
            message: message.into(),
        });
    }

    fn prompt(&mut self, prompt: &str) {
        let place = format!("prompt \"{}\"", escape_for_display(prompt, 40));
        if let Err(message) = task_rules::check_prompt(prompt) {
            self.problem(&place, None, message);
            return;
        }
        let spec = TaskFields {
            prompt: prompt.into(),
            pool: None,
            workspace: None,
            attempts: None,
            check: None,
            files: Vec::new(),
            embed: Vec::new(),
            policy_layer: None,
            land: None,
            priority: 0,
        };
        self.take(place, None, spec);
    }

    fn file(&mut self, path: &Path, name: &str) {
        let name = escape_for_display(name, 100);
        match std::fs::File::open(path) {
            Ok(mut file) => {
                let base = path.parent().unwrap_or(path).to_owned();
                self.lines(&name, &mut file, &base);
            }
            Err(error) => self.problem(&name, None, format!("cannot be read: {error}")),
        }
    }

    fn lines(&mut self, name: &str, from: &mut dyn Read, base: &Path) {
        let mut bytes = Vec::new();
        let bound = u64::try_from(limits::TASK_FILE_BYTES).unwrap_or(u64::MAX);
        if let Err(error) = from.take(bound + 1).read_to_end(&mut bytes) {
            self.problem(name, None, format!("cannot be read: {error}"));
            return;
        }
        if bytes.len() > limits::TASK_FILE_BYTES {
            let message = format!("is longer than {} bytes; split it", limits::TASK_FILE_BYTES);
            self.problem(name, None, message);
            return;
        }
        let before = self.parsed.len() + self.problems.len() + self.more;
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            if !line.trim_ascii().is_empty() {
                self.line(&format!("{name}:{}", index + 1), line, base);
            }
        }
        if self.parsed.len() + self.problems.len() + self.more == before {
            self.problem(name, None, "has no tasks; write one JSON object per line");
        }
    }

    fn line(&mut self, place: &str, line: &[u8], base: &Path) {
        let Ok(text) = std::str::from_utf8(line) else {
            self.problem(place, None, "the line is not UTF-8");
            return;
        };
        if !text.trim_start().starts_with('{') {
            let message = "the line is not a JSON object; write {\"prompt\": \"…\"}";
            self.problem(place, None, message);
            return;
        }
        match serde_json::from_str::<Pairs>(text) {
            Ok(pairs) => self.object(place, pairs.0, base),
            Err(error) => {
                let message = format!(
                    "the line is not a JSON object: {}",
                    escape_for_display(&error.to_string(), 160)
                );
                self.problem(place, None, message);
            }
        }
    }

    fn object(&mut self, place: &str, pairs: Vec<(String, Value)>, base: &Path) {
        let known_before = self.problems.len() + self.more;
        let mut id = None;
        let mut prompt = None;
        let mut spec = TaskFields {
            prompt: UntrustedText::default(),
            pool: None,
            workspace: None,
            attempts: None,
            check: None,
            files: Vec::new(),
            embed: Vec::new(),
            policy_layer: None,
            land: None,
            priority: 0,
        };
        let mut seen = HashSet::new();
        for (key, value) in pairs {
            if !seen.insert(key.clone()) {
                self.problem(place, Some(&key), "is given twice");
                continue;
            }
            let read = match key.as_str() {
                "id" => read_id(&value).map(|read| id = Some(read)),
                "prompt" => read_prompt(value).map(|read| prompt = Some(read)),
                "pool" => self.read_pool(&value).map(|read| spec.pool = read),
                "workspace" => read_workspace(&value, base).map(|read| spec.workspace = read),
                "attempts" => read_attempts(&value).map(|read| spec.attempts = read),
                "check" => read_check(&value).map(|read| spec.check = read),
                "files" => read_files(&value).map(|read| spec.files = read),
                "embed" => read_files(&value).map(|read| spec.embed = read),
                "policy_layer" => read_layer(&value).map(|read| spec.policy_layer = read),
                "land" => read_branch(&value).map(|read| spec.land = read),
                "priority" => read_priority(&value).map(|read| spec.priority = read),
                _ => Err(format!("is unknown; the keys are {}", KEYS.join(", "))),
            };
            if let Err(message) = read {
                self.problem(place, Some(&key), message);
            }
        }
        if !seen.contains("prompt") {
            self.problem(place, Some("prompt"), "is missing");
        }
        if self.problems.len() + self.more > known_before {
            return;
        }
        spec.prompt = prompt.unwrap_or_default();
        self.take(place.to_owned(), id, spec);
    }

    fn read_pool(&self, value: &Value) -> Result<Option<PoolName>, String> {
        let Value::String(name) = value else {
            return optional(value, "a pool's name");
        };
        let known = self.pools.iter().find(|pool| pool.as_str() == name);
        known.cloned().map(Some).ok_or_else(|| {
            format!(
                "is not the name of a pool: \"{}\"; {}",
                escape_for_display(name, 40),
                pools_there(self.pools)
            )
        })
    }

    fn take(&mut self, place: String, id: Option<TaskId>, mut spec: TaskFields) {
        spec.pool = spec.pool.or_else(|| self.pool.cloned());
        if spec.pool.is_none() && self.pools.len() != 1 {
            let pools = pools_there(self.pools);
            let message = format!("is needed; {pools}; --pool NAME is for all tasks");
            self.problem(&place, Some("pool"), message);
            return;
        }
        self.parsed.push(ParsedTask { place, id, spec });
    }

    fn finish(mut self) -> Result<Vec<TaskSpec>, TasksError> {
        let mut ids: HashSet<TaskId> = HashSet::new();
        let mut twice = Vec::new();
        for found in &self.parsed {
            if let Some(id) = &found.id
                && !ids.insert(id.clone())
            {
                twice.push((found.place.clone(), id.clone()));
            }
        }
        for (place, id) in twice {
            self.problem(&place, Some("id"), format!("is used twice: {id}"));
        }
        if self.parsed.len() > limits::POOL_QUEUE {
            let message = format!(
                "there are {}; one run has at most {}",
                self.parsed.len(),
                limits::POOL_QUEUE
            );
            self.problem("tasks", None, message);
        }
        if self.parsed.is_empty() && self.problems.is_empty() {
            self.problem(
                "tasks",
                None,
                "there are none; give a prompt or a task file",
            );
        }
        if !self.problems.is_empty() {
            return Err(TasksError {
                problems: self.problems,
                more: self.more,
            });
        }
        Ok(name_all(self.parsed, &ids))
    }
}

/// Gives ids to the tasks that have none: `task-1`, `task-2` and so on, in order, without ids that
/// are in use.
fn name_all(found: Vec<ParsedTask>, given: &HashSet<TaskId>) -> Vec<TaskSpec> {
    let mut number = 0_usize;
    let mut next = || loop {
        number += 1;
        match TaskId::new(&format!("task-{number}")) {
            Ok(id) if !given.contains(&id) => return id,
            _ => {}
        }
    };
    let specs = found.into_iter().map(|found| TaskSpec {
        id: found.id.unwrap_or_else(&mut next),
        prompt: found.spec.prompt,
        pool: found.spec.pool,
        workspace: found.spec.workspace,
        attempts: found.spec.attempts,
        check: found.spec.check,
        files: found.spec.files,
        embedded_files: found.spec.embed,
        policy_layer: found.spec.policy_layer,
        land: found.spec.land,
        priority: found.spec.priority,
        depends_on: Vec::new(),
    });
    specs.collect()
}

fn pools_there(pools: &[PoolName]) -> String {
    let names: Vec<&str> = pools.iter().map(PoolName::as_str).collect();
    format!("the pools are {}", names.join(", "))
}

/// The result for a value of another type: `null` counts as not set, anything else is an error.
fn optional<T>(value: &Value, wanted: &str) -> Result<Option<T>, String> {
    if value.is_null() {
        Ok(None)
    } else {
        Err(format!("is {}; give {wanted}", kind(value)))
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn read_id(value: &Value) -> Result<TaskId, String> {
    let Value::String(text) = value else {
        return Err(format!("is {}; give a string", kind(value)));
    };
    TaskId::new(text).map_err(|_| {
        format!(
            "is \"{}\"; give letters, digits, '.', '_' and '-', at most 128, beginning with a letter or digit, and not \"latest\"",
            escape_for_display(text, 40)
        )
    })
}

fn read_prompt(value: Value) -> Result<UntrustedText, String> {
    let Value::String(text) = value else {
        return Err(format!("is {}; give a string", kind(&value)));
    };
    task_rules::check_prompt(&text)?;
    Ok(UntrustedText::new(text))
}

fn read_workspace(value: &Value, base: &Path) -> Result<Option<PathBuf>, String> {
    let Value::String(text) = value else {
        return optional(value, "a directory");
    };
    if text.is_empty() {
        return Err("is empty; give a directory".to_owned());
    }
    let path = base.join(text);
    task_rules::check_workspace(&path)?;
    if path.is_dir() {
        Ok(Some(path))
    } else {
        let shown = escape_for_display(&path.to_string_lossy(), 200);
        Err(format!("is not a directory: {shown}"))
    }
}

fn read_attempts(value: &Value) -> Result<Option<u32>, String> {
    match value.as_u64() {
        Some(number) => Ok(Some(task_rules::check_attempts(number)?)),
        None => optional(value, "a whole number from 1"),
    }
}

fn read_check(value: &Value) -> Result<Option<Vec<String>>, String> {
    let Value::Array(words) = value else {
        return optional(value, "an array of strings: the program and its arguments");
    };
    let argv: Option<Vec<String>> = words
        .iter()
        .map(|word| word.as_str().map(str::to_owned))
        .collect();
    let argv = argv.ok_or("has an item that is not a string")?;
    task_rules::check_argv(&argv)?;
    Ok(Some(argv))
}

fn read_files(value: &Value) -> Result<Vec<String>, String> {
    let wanted = "an array of paths from the top of the workspace";
    let Value::Array(paths) = value else {
        return optional::<()>(value, wanted).map(|_| Vec::new());
    };
    let paths: Option<Vec<String>> = paths
        .iter()
        .map(|path| path.as_str().map(str::to_owned))
        .collect();
    let paths = paths.ok_or("has an item that is not a string")?;
    task_rules::check_files(&paths)?;
    Ok(paths)
}

fn read_priority(value: &Value) -> Result<i8, String> {
    match value {
        Value::Null => Ok(0),
        value => Ok(task_rules::check_priority(value.as_i64())?),
    }
}

fn read_layer(value: &Value) -> Result<Option<String>, String> {
    let Value::String(name) = value else {
        return optional(value, "the name of a policy");
    };
    task_rules::check_policy_layer(name)?;
    Ok(Some(name.clone()))
}

fn read_branch(value: &Value) -> Result<Option<String>, String> {
    let Value::String(name) = value else {
        return optional(value, "the name of a branch");
    };
    task_rules::check_branch(name)?;
    Ok(Some(name.clone()))
}

/// An object with all its keys in order, so that a duplicate key is detected.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
#[path = "tasks_tests.rs"]
mod tests;
