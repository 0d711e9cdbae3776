//! Messages to the agent, as JSON with placeholders.
//!
//! A template is parsed once into a tree, and filled as a tree. The value of a placeholder is a
//! whole JSON value or part of one string, so text of a user or an agent cannot change the
//! structure.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::nearest::nearest;
use marshal_model::string_enum;

/// The limit of one template, in bytes.
pub(super) const BYTES: usize = 16 << 10;
/// The limit of nested objects and lists.
const DEPTH: usize = 16;

string_enum!(
    /// A placeholder of a template.
    Placeholder {
        /// The user's text.
        Prompt = "prompt",
        /// The files that belong to it, each by a template of its own.
        Attached = "attached",
        /// A file's path.
        Path = "path",
        /// A file's text.
        Text = "text",
        /// The agent's own id of the answered request.
        Id = "id",
        /// The input of the allowed call, unchanged.
        Input = "input",
        /// The reason of a denial.
        Reason = "reason",
        /// The agent's own id of its session.
        Session = "session",
        /// The directory that it works in.
        Workspace = "workspace",
        /// The name of a slash command.
        Command = "command",
        /// The rest of its line.
        Args = "args",
    }
);

impl Placeholder {
    /// Whether it is a whole value and cannot be part of a text.
    const fn is_whole(self) -> bool {
        matches!(self, Self::Attached | Self::Input)
    }
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Literal text.
    Literal(String),
    /// A placeholder inside a text.
    Placeholder(Placeholder),
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// `null`, a number or a truth value, as JSON.
    Plain(String),
    /// A text.
    Text(Vec<Piece>),
    /// A placeholder that is the whole value.
    Whole(Placeholder),
    /// A list.
    List(Vec<Node>),
    /// An object: name, whether the member is omitted when its placeholder is empty or missing, and
    /// value.
    Object(Vec<(String, bool, Node)>),
}

/// A message with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Node);

impl Template {
    /// Its outermost value, an object.
    #[must_use]
    pub const fn root(&self) -> &Node {
        &self.0
    }

    /// Whether it has this placeholder anywhere.
    #[must_use]
    pub fn contains(&self, hole: Placeholder) -> bool {
        contains_placeholder(&self.0, hole)
    }

    /// Parses a template in which only the placeholders in `allowed` may be used. The error says
    /// what is wrong, with help.
    pub(super) fn parse(
        text: &str,
        allowed: &[Placeholder],
    ) -> Result<Self, (String, Option<String>)> {
        if text.len() > BYTES {
            let message = format!(
                "the template has {} bytes, at most {BYTES} are allowed",
                text.len()
            );
            return Err((message, None));
        }
        let raw: Raw = serde_json::from_str(text).map_err(|error| {
            let help = "for example: '{\"type\": \"prompt\", \"text\": \"{prompt}\"}'";
            (
                format!("the template is not JSON: {error}"),
                Some(help.to_owned()),
            )
        })?;
        if !matches!(raw, Raw::Object(_)) {
            return Err(("the template must be a JSON object".to_owned(), None));
        }
        build_node(raw, allowed, 0).map(Self)
    }
}

fn contains_placeholder(node: &Node, hole: Placeholder) -> bool {
    match node {
        Node::Plain(_) => false,
        Node::Whole(own) => *own == hole,
        Node::Text(pieces) => pieces.contains(&Piece::Placeholder(hole)),
        Node::List(items) => items.iter().any(|item| contains_placeholder(item, hole)),
        Node::Object(members) => members
            .iter()
            .any(|(_, _, value)| contains_placeholder(value, hole)),
    }
}

type TemplateError = (String, Option<String>);

fn build_node(raw: Raw, allowed: &[Placeholder], depth: usize) -> Result<Node, TemplateError> {
    if depth > DEPTH {
        return Err((format!("the template is deeper than {DEPTH}"), None));
    }
    Ok(match raw {
        Raw::Plain(text) => Node::Plain(text),
        Raw::Text(text) => self::parse_text(&text, allowed)?,
        Raw::List(items) => {
            let items = items
                .into_iter()
                .map(|item| build_node(item, allowed, depth + 1));
            Node::List(items.collect::<Result<_, _>>()?)
        }
        Raw::Object(members) => {
            let mut out: Vec<(String, bool, Node)> = Vec::with_capacity(members.len());
            for (name, value) in members {
                let (name, may_miss) = match name.strip_suffix('?') {
                    Some(name) => (name.to_owned(), true),
                    None => (name, false),
                };
                if out.iter().any(|(other, _, _)| *other == name) {
                    return Err((format!("the template has the member {name:?} twice"), None));
                }
                let value = build_node(value, allowed, depth + 1)?;
                let is_filled = match &value {
                    Node::Whole(_) => true,
                    Node::Text(pieces) => pieces
                        .iter()
                        .any(|piece| matches!(piece, Piece::Placeholder(_))),
                    _ => false,
                };
                if may_miss && !is_filled {
                    let message =
                        format!("the member \"{name}?\" is never left out: it has no placeholder");
                    return Err((message, Some("remove the question mark".to_owned())));
                }
                out.push((name, may_miss, value));
            }
            Node::Object(out)
        }
    })
}

/// A text with its placeholders; `{{` and `}}` are literal braces.
fn parse_text(text: &str, allowed: &[Placeholder]) -> Result<Node, TemplateError> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        literal.push_str(before);
        if let Some(after) = from.strip_prefix("{{") {
            literal.push('{');
            rest = after;
        } else if let Some(after) = from.strip_prefix("}}") {
            literal.push('}');
            rest = after;
        } else {
            let inner = from.strip_prefix('{').and_then(|from| from.split_once('}'));
            let Some((name, after)) = inner else {
                let message = format!("a brace stands alone in {text:?}");
                let help = "write {{ and }} for literal braces";
                return Err((message, Some(help.to_owned())));
            };
            let hole = parse_placeholder(name, allowed)?;
            if !literal.is_empty() {
                pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            }
            pieces.push(Piece::Placeholder(hole));
            rest = after;
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    if let [Piece::Placeholder(hole)] = pieces[..] {
        return Ok(Node::Whole(hole));
    }
    let whole = pieces.iter().find_map(|piece| match piece {
        Piece::Placeholder(hole) if hole.is_whole() => Some(hole),
        _ => None,
    });
    match whole {
        Some(hole) => Err((
            format!("{{{hole}}} is a value of its own and cannot be part of a text"),
            Some(format!("write \"{{{hole}}}\" alone between the quotes")),
        )),
        None => Ok(Node::Text(pieces)),
    }
}

fn parse_placeholder(name: &str, allowed: &[Placeholder]) -> Result<Placeholder, TemplateError> {
    if let Some(hole) = Placeholder::parse(name).filter(|hole| allowed.contains(hole)) {
        return Ok(hole);
    }
    let words = || allowed.iter().map(|hole| hole.as_str());
    let help = if let Some(near) = nearest(name, words()) {
        format!("did you mean {{{near}}}?")
    } else {
        let all: Vec<String> = words().map(|word| format!("{{{word}}}")).collect();
        let known = if all.is_empty() {
            "no placeholder is allowed here".to_owned()
        } else {
            format!("known here: {}", all.join(", "))
        };
        format!("{known}; write {{{{ and }}}} for literal braces")
    };
    Err((format!("unknown placeholder {{{name}}}"), Some(help)))
}

/// JSON with its members in the order of the text.
#[derive(Debug)]
enum Raw {
    Plain(String),
    Text(String),
    List(Vec<Raw>),
    Object(Vec<(String, Raw)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Plain("null".to_owned()))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
                Ok(Raw::Plain(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
                Ok(Raw::Plain(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
                Ok(Raw::Plain(value.to_string()))
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Raw, E> {
                let text = serde_json::to_string(&value).map_err(E::custom)?;
                Ok(Raw::Plain(text))
            }

            fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
                Ok(Raw::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Raw, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Raw::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut members: Vec<(String, Raw)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Raw>()? {
                    if members.iter().any(|(other, _)| *other == name) {
                        let message = format!("the object has the member {name:?} twice");
                        return Err(A::Error::custom(message));
                    }
                    members.push((name, value));
                }
                Ok(Raw::Object(members))
            }
        }
        reader.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Template, TemplateError> {
        Template::parse(
            text,
            &[Placeholder::Prompt, Placeholder::Id, Placeholder::Input],
        )
    }

    #[test]
    fn holes_are_values_or_parts_of_a_text() {
        let template = read(
            r#"{"z": "{prompt}", "a": ["x {prompt} y", {"n": 1.5, "id?": "{id}"}], "b": "{{not}}", "c": null}"#,
        )
        .expect("a template");
        let Node::Object(members) = template.root() else {
            panic!("no object");
        };
        let names: Vec<_> = members.iter().map(|(name, _, _)| name.as_str()).collect();
        assert_eq!(names, ["z", "a", "b", "c"]);
        assert_eq!(members[0].2, Node::Whole(Placeholder::Prompt));
        assert_eq!(
            members[2].2,
            Node::Text(vec![Piece::Literal("{not}".to_owned())])
        );
        assert!(template.contains(Placeholder::Id) && !template.contains(Placeholder::Input));
    }

    #[test]
    fn what_is_no_template_says_why() {
        for (text, why, helps) in [
            ("{", "not JSON", "for example"),
            ("[]", "must be a JSON object", ""),
            (
                r#"{"a": "{promt}"}"#,
                "unknown placeholder {promt}",
                "did you mean {prompt}?",
            ),
            (
                r#"{"a": "{reason}"}"#,
                "unknown placeholder",
                "known here: {prompt}, {id}, {input}",
            ),
            (r#"{"a": "{prompt"}"#, "a brace stands alone", "{{ and }}"),
            (r#"{"a": "}"}"#, "a brace stands alone", "{{ and }}"),
            (
                r#"{"a": "x{input}"}"#,
                "cannot be part of a text",
                "alone between the quotes",
            ),
            (r#"{"a": 1, "a": 2}"#, "twice", ""),
            (r#"{"a": 1, "a?": "{id}"}"#, "twice", ""),
            (r#"{"a?": 1}"#, "never left out", "question mark"),
        ] {
            let (message, help) = read(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
            assert!(help.unwrap_or_default().contains(helps), "{text}");
        }
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(20), "]".repeat(20));
        assert!(read(&deep).expect_err("deep").0.contains("deeper than 16"));
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(BYTES));
        assert!(read(&long).expect_err("long").0.contains("at most 16384"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in r#"[{}a-z"\[\]:,?]{0,40}"#) {
            let _ = read(&text);
        }
    }
}
