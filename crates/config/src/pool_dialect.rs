//! The dialect of a pool: a built-in one, or a custom one by a definition file.
//!
//! Must not know the keys of a definition, or read files: the command line reads them and sets the
//! definition ([`Pool::set_dialect_definition`]).

use std::path::Path;
use std::sync::Arc;

use toml::Value;
use toml::de::DeValue;

use super::dialect_definition::{CustomDialect, DialectDefinition};
use super::key_types::ValueType;
use super::paths;
use super::pool::TRUST_HELP;
use super::table::{Entry, Keyword, Section, one_of};
use super::types::{DialectName, OnCrash, PermissionCoverage, Pool};

/// Every built-in dialect.
const BUILT_IN_DIALECTS: [DialectName; DialectName::ALL.len() - 1] = {
    let mut named = [DialectName::Scaiflux; DialectName::ALL.len() - 1];
    let (mut from, mut to) = (0, 0);
    while from < DialectName::ALL.len() {
        if !matches!(DialectName::ALL[from], DialectName::Custom) {
            named[to] = DialectName::ALL[from];
            to += 1;
        }
        from += 1;
    }
    named
};

impl Keyword for DialectName {
    const MEMBERS: &'static [Self] = &BUILT_IN_DIALECTS;

    fn as_keyword(self) -> &'static str {
        self.as_str()
    }
}

/// The pattern of a file name in the JSON schema: not empty.
const FILE_PATTERN: &str = ".";

/// A fault found after the check: key, message, help.
type KeyError = (String, String, Option<String>);

impl Pool {
    /// Whether a session is loaded again by an argument of the command, not by a message.
    #[must_use]
    pub fn resumes_by_argument(&self) -> bool {
        match &self.custom_dialect {
            Some(own) => own
                .definition
                .as_ref()
                .is_none_or(|definition| definition.resume.is_empty()),
            None => self.dialect.resumes_by_argument(),
        }
    }

    /// Whether files can belong to a prompt.
    #[must_use]
    pub fn accepts_attachments(&self) -> bool {
        let definition = self.dialect_definition();
        self.dialect == DialectName::Acp
            || definition.is_some_and(|definition| definition.attachment.is_some())
    }

    /// The definition of its dialect, if that is custom and its file was read.
    #[must_use]
    pub fn dialect_definition(&self) -> Option<Arc<DialectDefinition>> {
        self.custom_dialect.as_ref()?.definition.clone()
    }

    /// Sets the definition of its dialect, with what follows from it. Returns the faults where the pool
    /// and the definition disagree.
    #[must_use]
    pub fn set_dialect_definition(&mut self, definition: Arc<DialectDefinition>) -> Vec<KeyError> {
        let mut faults = Vec::new();
        let mut fault = |key: &str, message: String, help: &str| {
            let key = format!("pool.{}.{key}", self.name);
            faults.push((key, message, Some(help.to_owned())));
        };
        let name = &definition.name;
        if !definition.can_request_permission() {
            if self.permission_requests == PermissionCoverage::All {
                let message = format!(
                    "permission_requests = \"all\", but the dialect definition {name} has no [permission]: such an agent never requests permission"
                );
                fault("permission_requests", message, "remove this key");
            }
            self.permission_requests = PermissionCoverage::Never;
        }
        let resumes = self.restart.on_crash == OnCrash::Resume;
        if resumes && definition.resume.is_empty() && self.resume_args.is_empty() {
            let message = format!(
                "on_crash = \"resume\" needs resume_args: the dialect definition {name} has no message that loads a session"
            );
            let help = "for example: resume_args = [\"--resume\", \"{session}\"]";
            fault("restart.on_crash", message, help);
        }
        if let Some(own) = &mut self.custom_dialect {
            own.definition = Some(definition);
        }
        faults
    }

    /// The dialect, for display.
    #[must_use]
    pub fn describe_dialect(&self) -> String {
        let Some(own) = &self.custom_dialect else {
            return self.dialect.to_string();
        };
        let file = marshal_model::untrusted::escape_for_display(&own.file.to_string_lossy(), 200);
        match &own.definition {
            Some(definition) => {
                format!("{} by {file} ({:.12})", definition.name, definition.digest)
            }
            None => format!("by {file}"),
        }
    }

    /// The key as a file writes it.
    pub(super) fn dialect_value(&self) -> Value {
        match &self.custom_dialect {
            None => Value::String(self.dialect.as_str().to_owned()),
            Some(own) => {
                let file = Value::String(own.file.to_string_lossy().into_owned());
                Value::Table(toml::Table::from_iter([("custom".to_owned(), file)]))
            }
        }
    }
}

/// Reads the key `dialect`.
pub(super) fn read(pool: &Section<'_>, dir: &Path) -> Option<(DialectName, Option<CustomDialect>)> {
    let item = pool.get("dialect")?;
    item.record_type(ValueType::Table);
    item.record_type(ValueType::Enum(dialect_names()));
    if item.is_table() {
        return Some((DialectName::Custom, Some(read_custom(&item, dir)?)));
    }
    let word = DialectName::Custom.as_str();
    if matches!(item.value(), DeValue::String(text) if text == word) {
        let message = format!(
            "a custom dialect needs its definition file: expected {} or {{ custom = \"FILE\" }}",
            one_of(&dialect_names())
        );
        let help = "for example: dialect = { custom = \"agent.toml\" }";
        item.report(message, Some(help.to_owned()));
        return None;
    }
    item.keyword(&[]).map(|found| (found.value, None))
}

fn dialect_names() -> Vec<&'static str> {
    BUILT_IN_DIALECTS.iter().map(|name| name.as_str()).collect()
}

fn read_custom(item: &Entry<'_>, dir: &Path) -> Option<CustomDialect> {
    let section = item.section()?;
    let file = section.get("custom");
    let Some(file) = file else {
        let help = "for example: dialect = { custom = \"agent.toml\" }";
        item.report(
            "a custom dialect needs `custom`, the path of its definition file",
            Some(help.to_owned()),
        );
        section.reject_unknown_keys(&[], &[]);
        return None;
    };
    let found = file.text_like(FILE_PATTERN);
    section.reject_unknown_keys(&[], &[]);
    let found = found?;
    if found.value.is_empty() {
        return file.report_unexpected("the path of a dialect definition file");
    }
    Some(CustomDialect {
        file: paths::absolute(dir, &found.value),
        definition: None,
    })
}

/// A discovered file may not have a definition: the definition decides what counts as a permission request
/// and as an answer.
pub(super) fn check_consistency(section: &Section<'_>, pool: &Pool, is_discovered: bool) {
    if let (true, true, Some(item)) = (
        is_discovered,
        pool.custom_dialect.is_some(),
        section.get("dialect"),
    ) {
        let message = "a discovered supervisor.toml may not use a custom dialect";
        item.report(message, Some(TRUST_HELP.to_owned()));
    }
}
