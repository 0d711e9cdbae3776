//! Extractors: which fields of an agent's tool calls hold command, path and directory.
//!
//! Owns the table (TOML, one for each kind of agent) and the strict reading of a call's JSON:
//! what two readers could read differently, such as a key that stands twice, is malformed. Must
//! not know the protocol that carried the call.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::request::{Request, Target, ToolClass};
use crate::model::Foreign;
use crate::model::foreign::show;

/// The table for agents that speak ScaiFlux, the script agent included.
pub const SCAIFLUX: &str = include_str!("builtin/extract-scaiflux.toml");

/// Turns tool calls into requests.
#[derive(Debug, Clone)]
pub struct Extractor {
    tools: BTreeMap<String, Tool>,
}

/// Why a table was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ExtractorError {
    /// A syntax error, an unknown key, a wrong type.
    #[error("extractor, line {line}: {message}")]
    Text {
        /// The line, from 1.
        line: usize,
        /// What the reader says.
        message: String,
    },
    /// A schema of another version.
    #[error("extractor: `schema` is {0}, expected 1")]
    Schema(u32),
    /// A tool's entry is wrong.
    #[error("extractor, tool `{tool}`: {what}")]
    Tool {
        /// The tool.
        tool: String,
        /// What is wrong, naming the key.
        what: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: u32,
    #[serde(default)]
    tool: BTreeMap<String, ToolText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolText {
    class: String,
    command: Option<String>,
    cwd: Option<String>,
    path: Option<String>,
    #[serde(default)]
    path_optional: bool,
    pattern: Option<String>,
    url: Option<String>,
}

#[derive(Debug, Clone)]
enum Tool {
    Shell {
        command: String,
        cwd: Option<String>,
    },
    Read {
        path: String,
        optional: bool,
        pattern: Option<String>,
    },
    Write {
        path: String,
    },
    Fetch {
        url: String,
    },
}

impl Extractor {
    /// Reads a table.
    pub fn parse(text: &str) -> Result<Self, ExtractorError> {
        let document: Document = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            ExtractorError::Text {
                line: before.map_or(1, |t| t.matches('\n').count() + 1),
                message: error.message().to_owned(),
            }
        })?;
        if document.schema != 1 {
            return Err(ExtractorError::Schema(document.schema));
        }
        let mut tools = BTreeMap::new();
        for (name, text) in document.tool {
            let tool = tool(text).map_err(|what| ExtractorError::Tool {
                tool: name.clone(),
                what,
            })?;
            tools.insert(name, tool);
        }
        Ok(Self { tools })
    }

    /// What kind of tool a name stands for, as metrics label it.
    pub fn class(&self, tool: &str) -> ToolClass {
        match self.tools.get(tool) {
            Some(Tool::Shell { .. }) => ToolClass::Shell,
            Some(Tool::Read { .. }) => ToolClass::Read,
            Some(Tool::Write { .. }) => ToolClass::Write,
            Some(Tool::Fetch { .. }) => ToolClass::Fetch,
            None => ToolClass::Unknown,
        }
    }

    /// The request that a tool call makes. `input` is the call's JSON as it came, at most
    /// [`crate::limits::ASK_INPUT_BYTES`] long: the caller refuses longer ones.
    pub fn extract(&self, tool: &str, input: &RawValue) -> Request {
        let Some(entry) = self.tools.get(tool) else {
            return Request::Unknown {
                tool: Foreign::new(tool),
            };
        };
        let fields = match serde_json::from_str::<Fields>(input.get()) {
            Ok(fields) => fields,
            Err(error) => {
                // The message may repeat the input: one line, nothing that acts.
                let why = format!(
                    "its input is no plain JSON object: {}",
                    show(&error.to_string(), 120)
                );
                return Request::Malformed { why };
            }
        };
        entry
            .request(&fields)
            .unwrap_or_else(|why| Request::Malformed { why })
    }
}

fn tool(text: ToolText) -> Result<Tool, String> {
    let needs = |key: &str| format!("`{key}` is missing, expected the name of the field");
    let class = ToolClass::from_word(&text.class);
    let spare = [
        (
            "command",
            text.command.is_some(),
            class == Some(ToolClass::Shell),
        ),
        ("cwd", text.cwd.is_some(), class == Some(ToolClass::Shell)),
        (
            "path",
            text.path.is_some(),
            matches!(class, Some(ToolClass::Read | ToolClass::Write)),
        ),
        (
            "path_optional",
            text.path_optional,
            class == Some(ToolClass::Read),
        ),
        (
            "pattern",
            text.pattern.is_some(),
            class == Some(ToolClass::Read),
        ),
        ("url", text.url.is_some(), class == Some(ToolClass::Fetch)),
    ];
    if let Some((key, ..)) = spare.iter().find(|(_, given, fits)| *given && !*fits) {
        return Err(format!(
            "`{key}` does nothing for the class `{}`",
            text.class
        ));
    }
    match class {
        Some(ToolClass::Shell) => Ok(Tool::Shell {
            command: text.command.ok_or_else(|| needs("command"))?,
            cwd: text.cwd,
        }),
        Some(ToolClass::Read) => Ok(Tool::Read {
            path: text.path.ok_or_else(|| needs("path"))?,
            optional: text.path_optional,
            pattern: text.pattern,
        }),
        Some(ToolClass::Write) => Ok(Tool::Write {
            path: text.path.ok_or_else(|| needs("path"))?,
        }),
        Some(ToolClass::Fetch) => Ok(Tool::Fetch {
            url: text.url.ok_or_else(|| needs("url"))?,
        }),
        Some(ToolClass::Unknown) | None => Err(format!(
            "`class` is `{}`, expected `shell`, `read`, `write` or `fetch`",
            text.class
        )),
    }
}

impl Tool {
    fn request(&self, fields: &Fields) -> Result<Request, String> {
        match self {
            Self::Shell { command, cwd } => Ok(Request::Shell {
                command: fields.required(command)?,
                cwd: match cwd {
                    Some(key) => fields.optional(key)?,
                    None => None,
                },
            }),
            Self::Read {
                path,
                optional,
                pattern,
            } => {
                let named = if *optional {
                    fields.optional(path)?
                } else {
                    Some(fields.required(path)?)
                };
                let mut targets = Vec::new();
                if let Some(key) = pattern {
                    let pattern = fields.required(key)?;
                    targets.push(leading(named.as_deref(), &pattern));
                }
                targets.push(named.map_or(Target::Workspace, Target::Path));
                Ok(Request::Read { targets })
            }
            Self::Write { path } => Ok(Request::Write {
                path: fields.required(path)?,
            }),
            Self::Fetch { url } => Ok(Request::Fetch {
                url: fields.required(url)?,
            }),
        }
    }
}

/// What a search pattern reads: the directory before its first wildcard, or anything if it goes
/// up behind one.
fn leading(path: Option<&str>, pattern: &str) -> Target {
    let magic = pattern
        .find(['*', '?', '[', '{', '(', '!', '\\'])
        .unwrap_or(pattern.len());
    let (fixed, rest) = pattern.split_at(magic);
    let joined = |tail: &str| match path {
        Some(path) if !tail.starts_with(['/', '~']) => format!("{path}/{tail}"),
        _ => tail.to_owned(),
    };
    if rest.contains("..") {
        return Target::Anywhere(joined(pattern));
    }
    if rest.is_empty() {
        return Target::Path(joined(pattern));
    }
    // Its last name is judged, too: a pattern for a secret's name is a search for secrets.
    match fixed.rfind('/') {
        Some(slash) => Target::Path(joined(&fixed[..=slash])),
        None => path.map_or(Target::Workspace, |path| Target::Path(path.to_owned())),
    }
}

/// The fields of one call. Values other than strings are only known to be there.
struct Fields(HashMap<String, Field>);

enum Field {
    Text(String),
    Null,
    Other,
}

impl Fields {
    fn required(&self, key: &str) -> Result<String, String> {
        self.optional(key)?
            .ok_or_else(|| format!("`{key}` is missing"))
    }

    fn optional(&self, key: &str) -> Result<Option<String>, String> {
        match self.0.get(key) {
            None | Some(Field::Null) => Ok(None),
            Some(Field::Other) => Err(format!("`{key}` is no string")),
            Some(Field::Text(text)) if text.contains('\0') => {
                Err(format!("`{key}` has a NUL in it"))
            }
            Some(Field::Text(text)) if text.trim().is_empty() => Err(format!("`{key}` is blank")),
            Some(Field::Text(text)) => Ok(Some(text.clone())),
        }
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = HashMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let value = map.next_value::<Field>()?;
                    if fields.insert(key, value).is_some() {
                        return Err(A::Error::custom("a key stands twice"));
                    }
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Field;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_str<E>(self, text: &str) -> Result<Field, E> {
                Ok(Field::Text(text.to_owned()))
            }

            fn visit_unit<E>(self) -> Result<Field, E> {
                Ok(Field::Null)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_u64<E>(self, _: u64) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Field, E> {
                Ok(Field::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Field, A::Error> {
                while seq.next_element::<Field>()?.is_some() {}
                Ok(Field::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Field, A::Error> {
                // Duplicates inside are refused as well.
                Fields::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(Field::Other)
            }
        }

        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extract(tool: &str, json: &str) -> Request {
        let input = RawValue::from_string(json.to_owned()).expect("valid JSON");
        Extractor::parse(SCAIFLUX)
            .expect("the table")
            .extract(tool, &input)
    }

    #[track_caller]
    fn reads(tool: &str, json: &str, expect: &[Target]) {
        assert_eq!(
            extract(tool, json),
            Request::Read {
                targets: expect.to_vec()
            },
            "{tool} {json}"
        );
    }

    fn path(path: &str) -> Target {
        Target::Path(path.to_owned())
    }

    #[test]
    fn the_fields_of_the_table_are_what_is_judged() {
        assert_eq!(
            extract("bash", r#"{"command":"ls -l","timeout":5}"#),
            Request::Shell {
                command: "ls -l".to_owned(),
                cwd: None
            }
        );
        assert_eq!(
            extract("write_file", r#"{"path":"a","content":"b"}"#),
            Request::Write {
                path: "a".to_owned()
            }
        );
        reads("read_file", r#"{"path":"a"}"#, &[path("a")]);
        reads("list_dir", r#"{"path":"a"}"#, &[path("a")]);
        reads("list_dir", "{}", &[Target::Workspace]);
        reads(
            "grep_search",
            r#"{"pattern":"/etc","path":null}"#,
            &[Target::Workspace],
        );
        assert!(matches!(
            extract("format_disk", "{}"),
            Request::Unknown { .. }
        ));
    }

    #[test]
    fn a_search_pattern_reads_its_leading_directory() {
        reads(
            "glob_search",
            r#"{"pattern":"**/*.py"}"#,
            &[Target::Workspace, Target::Workspace],
        );
        reads(
            "glob_search",
            r#"{"pattern":"/etc/*"}"#,
            &[path("/etc/"), Target::Workspace],
        );
        reads(
            "glob_search",
            r#"{"pattern":"../x/*","path":"src"}"#,
            &[path("src/../x/"), path("src")],
        );
        reads(
            "glob_search",
            r#"{"pattern":".env"}"#,
            &[path(".env"), Target::Workspace],
        );
        let anywhere = Target::Anywhere("*/../../x".to_owned());
        reads(
            "glob_search",
            r#"{"pattern":"*/../../x"}"#,
            &[anywhere, Target::Workspace],
        );
        let braces = Target::Anywhere("{a,../../etc}/x".to_owned());
        reads(
            "glob_search",
            r#"{"pattern":"{a,../../etc}/x"}"#,
            &[braces, Target::Workspace],
        );
    }

    #[test]
    fn what_two_readers_could_read_differently_is_malformed() {
        for (tool, json) in [
            ("bash", "{}"),
            ("bash", "null"),
            ("bash", "[]"),
            ("bash", "\"ls\""),
            ("bash", r#"{"command":7}"#),
            ("bash", r#"{"command":["ls"]}"#),
            ("bash", r#"{"command":""}"#),
            ("bash", r#"{"command":" \n"}"#),
            ("bash", r#"{"command":"a\u0000b"}"#),
            ("bash", r#"{"command":"ls","command":"rm"}"#),
            ("bash", r#"{"command":"ls","comm\u0061nd":"rm"}"#),
            ("bash", r#"{"command":"ls","env":{"a":1,"a":2}}"#),
            ("read_file", r#"{"file":"a"}"#),
            ("write_file", r#"{"path":null}"#),
            ("glob_search", r#"{"path":"a"}"#),
        ] {
            assert!(
                matches!(extract(tool, json), Request::Malformed { .. }),
                "{tool} {json}"
            );
        }
    }

    #[test]
    fn a_table_that_says_nothing_useful_is_refused() {
        let base = "schema = 1\n[tool.x]\n";
        for text in [
            "schema = 2",
            &format!("{base}class = \"shell\""),
            &format!("{base}class = \"other\""),
            &format!("{base}class = \"write\"\npath = \"p\"\nurl = \"u\""),
            &format!("{base}class = \"write\"\npath = \"p\"\nnope = 1"),
        ] {
            assert!(Extractor::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_tool_has_a_class_for_metrics() {
        let table = Extractor::parse(SCAIFLUX).expect("the table");
        assert_eq!(table.class("bash").word(), "shell");
        assert_eq!(table.class("glob_search").word(), "read");
        assert_eq!(table.class("what").word(), "unknown");
    }
}
