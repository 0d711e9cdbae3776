//! Inspects a request body for tools that the provider would run, remote servers, and remote files
//! that the provider would fetch.
//!
//! One strict pass over the JSON, without building it. What it cannot understand it refuses: an
//! unknown kind of tool, a duplicate key in one object (two parsers may use different values), a
//! body that is not a JSON object. The rules of all providers apply to every body, because an
//! upstream may understand more than one format.
//!
//! Tools that the agent itself runs are allowed. Data that only looks like a tool (a call's input,
//! a schema) is ignored.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::refusal::Refusal;
use marshal_model::limits::ROUTE_BODY_KEYS;
use marshal_telemetry::labels::RouteRefusal as Why;

/// Types of tools that the agent runs, as OpenAI and Anthropic name them.
const CLIENT_TOOLS: &[&str] = &[
    "function",
    "custom",
    "local_shell",
    "apply_patch",
    "namespace",
];

/// Prefixes of such types, which end with a date.
const CLIENT_TOOL_PREFIXES: &[&str] = &["bash_2", "text_editor_2", "memory_2"];

/// Normalized keys of a tool that make the provider run something (Gemini's names).
const SERVER_KEYS: &[&str] = &[
    "googlesearch",
    "googlesearchretrieval",
    "enterprisewebsearch",
    "googlemaps",
    "urlcontext",
    "codeexecution",
    "computeruse",
    "filesearch",
    "retrieval",
    "mcpservers",
    "serverurl",
    "externalapi",
    "parallelaisearch",
];

/// Normalized keys that, outside of data, name remote servers, hosted containers, searches, or
/// something stored at the provider that may name tools.
const REMOTE_KEYS: &[&str] = &[
    "mcpservers",
    "websearchoptions",
    "searchparameters",
    "container",
    "plugins",
    "datasources",
    "cachedcontent",
    "enablesearch",
    "searchsettings",
    "connectors",
    "webhookurl",
    "callbackurl",
];

/// Normalized keys whose value is the URL of a file.
const LINK_KEYS: &[&str] = &[
    "imageurl",
    "fileurl",
    "videourl",
    "audiourl",
    "fileuri",
    "documenturl",
];

/// Normalized keys of Gemini's and Anthropic's call records: their content is data.
const CALL_KEYS: &[&str] = &["functioncall", "functionresponse"];

/// Inspects a body with this content type.
///
/// # Errors
/// A [`Refusal`] if the body must not be forwarded.
pub fn inspect_body(content_type: Option<&str>, body: &[u8]) -> Result<(), Refusal> {
    if body.is_empty() {
        return Ok(());
    }
    if !content_type.is_some_and(is_json) {
        let what = "the body must be JSON, with the header content-type: application/json";
        return Err(Refusal::new(Why::Body, 415, what));
    }
    let mut findings = Findings::default();
    let mut reader = serde_json::Deserializer::from_slice(body);
    let scan = Scan {
        place: Place::Root,
        findings: &mut findings,
    };
    let kind = scan
        .deserialize(&mut reader)
        .and_then(|kind| reader.end().map(|()| kind));
    match kind {
        // The parser's message may quote the body, but only its sender sees it.
        Err(error) => {
            let what = format!("the body is not valid JSON: {error}");
            Err(Refusal::new(Why::Body, 400, what))
        }
        Ok(kind) if kind != Kind::Object => Err(Refusal::new(
            Why::Body,
            400,
            "the body is not a JSON object",
        )),
        Ok(_) => findings
            .first
            .map_or(Ok(()), |finding| Err(finding.into_refusal())),
    }
}

/// Whether it is `application/json`, with no other charset than UTF-8.
fn is_json(content_type: &str) -> bool {
    let mut parts = content_type
        .split(';')
        .map(|part| part.trim().to_ascii_lowercase());
    parts.next().as_deref() == Some("application/json")
        && parts.all(|part| matches!(part.as_str(), "" | "charset=utf-8" | "charset=\"utf-8\""))
}

/// Something in the body that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Finding {
    /// A tool of this kind.
    Tool(String),
    /// A key that lets the provider connect to or run something.
    Key(String),
    /// A key whose value is a remote URL instead of inline data.
    Link(String),
}

impl Finding {
    fn into_refusal(self) -> Refusal {
        const HOW: &str = "to allow this, set server_tools = true in the route's configuration";
        match self {
            Self::Tool(kind) => {
                let what =
                    format!("the body names a tool that may run at the provider, {kind}; {HOW}");
                Refusal::new(Why::ServerTool, 403, what)
            }
            Self::Key(key) => {
                let what = format!(
                    "the body has the key {key}, which lets the provider connect to or run something; {HOW}"
                );
                Refusal::new(Why::ServerTool, 403, what)
            }
            Self::Link(key) => {
                let what = format!(
                    "the body has a URL that the provider would fetch, in {key}: send the data itself; {HOW}"
                );
                Refusal::new(Why::RemoteContent, 403, what)
            }
        }
    }
}

#[derive(Debug, Default)]
struct Findings {
    first: Option<Finding>,
}

impl Findings {
    fn add(&mut self, finding: Finding) {
        self.first.get_or_insert(finding);
    }
}

/// The context in which a value appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The body itself.
    Root,
    /// Anywhere without a special meaning.
    Plain,
    /// The value of `tools`.
    Tools,
    /// An element of `tools`.
    Tool,
    /// The value of a key that contains a URL.
    Link,
    /// The value of `source`.
    Source,
    /// A call record.
    Call,
    /// Pure data: a call's input, a schema.
    Data,
}

/// The kind of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Null,
    /// `false`.
    Off,
    /// A text's first characters.
    Text(String),
    Object,
    Array,
    Other,
}

/// Characters stored of a text: the names of tool types are short.
const TEXT_CHARS: usize = 64;

struct Scan<'f> {
    place: Place,
    findings: &'f mut Findings,
}

impl<'de> DeserializeSeed<'de> for Scan<'_> {
    type Value = Kind;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Kind, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scan<'_> {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_bool<E>(self, on: bool) -> Result<Kind, E> {
        Ok(if on { Kind::Other } else { Kind::Off })
    }

    fn visit_i64<E>(self, _: i64) -> Result<Kind, E> {
        Ok(Kind::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Kind, E> {
        Ok(Kind::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Kind, E> {
        Ok(Kind::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Kind, E> {
        if matches!(self.place, Place::Link) && !is_inline(text) {
            self.findings
                .add(Finding::Link("an image or file".to_owned()));
        }
        Ok(Kind::Text(text.chars().take(TEXT_CHARS).collect()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Kind, A::Error> {
        let place = match self.place {
            Place::Tools => Place::Tool,
            Place::Data => Place::Data,
            Place::Link => Place::Link,
            Place::Source => Place::Source,
            _ => Place::Plain,
        };
        loop {
            let scan = Scan {
                place,
                findings: self.findings,
            };
            match seq.next_element_seed(scan)? {
                None => return Ok(Kind::Array),
                Some(kind) if place == Place::Tool && kind != Kind::Object => {
                    let finding = Finding::Tool("which is not an object".to_owned());
                    self.findings.add(finding);
                }
                Some(_) => {}
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Kind, A::Error> {
        let mut seen: HashSet<String> = HashSet::new();
        let mut object = Object::default();
        while let Some(key) = map.next_key::<String>()? {
            let plain = normalize_key(&key);
            let place = self.child_place(&plain);
            // The input of a call is data, but only the end of its object shows that it is a call.
            let is_input = place == Place::Plain && plain == "input" && self.place != Place::Root;
            let mut later = Findings::default();
            let findings = if is_input {
                &mut later
            } else {
                &mut *self.findings
            };
            let kind = map.next_value_seed(Scan { place, findings })?;
            if is_input {
                // Two spellings of the key may be in one object.
                object.input = object.input.take().or(later.first);
            }
            self.check_key(&plain, &key, &kind);
            object.record_key(&plain, &kind);
            if !seen.insert(key) {
                return Err(A::Error::custom("a key appears twice in one object"));
            }
            if seen.len() > ROUTE_BODY_KEYS {
                return Err(A::Error::custom("an object has too many keys"));
            }
        }
        self.check_object(object);
        Ok(Kind::Object)
    }
}

impl Scan<'_> {
    /// The context of a key's value.
    fn child_place(&self, plain: &str) -> Place {
        // Names, descriptions and schemas of tools that the agent runs.
        let is_data = match self.place {
            Place::Data => true,
            Place::Call => matches!(plain, "args" | "response"),
            Place::Tool => plain != "tools",
            _ => false,
        };
        match (self.place, plain) {
            _ if is_data => Place::Data,
            (Place::Link, "url" | "uri" | "fileuri") => Place::Link,
            (_, "tools") => Place::Tools,
            (_, "source") => Place::Source,
            (_, plain) if LINK_KEYS.contains(&plain) => Place::Link,
            (_, plain) if CALL_KEYS.contains(&plain) => Place::Call,
            _ => Place::Plain,
        }
    }

    fn check_key(&mut self, plain: &str, key: &str, kind: &Kind) {
        let shown = || key.chars().take(TEXT_CHARS).collect::<String>();
        if *kind == Kind::Null || matches!(self.place, Place::Data | Place::Tool) {
            return;
        }
        let is_stored_prompt =
            self.place == Place::Root && plain == "prompt" && *kind == Kind::Object;
        let is_remote = REMOTE_KEYS.contains(&plain) && *kind != Kind::Off;
        if is_remote || is_stored_prompt {
            self.findings.add(Finding::Key(shown()));
        }
        if self.place == Place::Root && plain == "tools" && *kind != Kind::Array {
            self.findings.add(Finding::Tool(
                "in \"tools\", which is not an array".to_owned(),
            ));
        }
    }

    fn check_object(&mut self, object: Object) {
        match self.place {
            Place::Tool => {
                if let Some(kind) = object.server_tool() {
                    self.findings.add(Finding::Tool(kind));
                }
            }
            Place::Source if object.kind() == Some("url") || object.has_remote_url => {
                self.findings.add(Finding::Link("source".to_owned()));
            }
            _ => {}
        }
        let is_call = matches!(
            object.kind(),
            Some("tool_use" | "server_tool_use" | "mcp_tool_use")
        );
        if let Some(finding) = object.input.filter(|_| !is_call) {
            self.findings.add(finding);
        }
    }
}

/// What is known of an object at its end.
#[derive(Debug, Default)]
struct Object {
    /// The value of `type`, if present.
    kind: Option<Kind>,
    has_name: bool,
    has_functions: bool,
    has_others: bool,
    has_remote_url: bool,
    server_key: Option<String>,
    /// A finding in its `input`, if any.
    input: Option<Finding>,
}

impl Object {
    fn record_key(&mut self, plain: &str, kind: &Kind) {
        match plain {
            "type" => self.kind = Some(kind.clone()),
            "functiondeclarations" => self.has_functions = true,
            _ => self.has_others = true,
        }
        self.has_name |= plain == "name";
        let is_server = SERVER_KEYS.contains(&plain) || plain.ends_with("search");
        if is_server && *kind != Kind::Null {
            self.server_key.get_or_insert_with(|| plain.to_owned());
        }
        if let ("url", Kind::Text(text)) = (plain, kind) {
            self.has_remote_url |= !is_inline(text);
        }
    }

    fn kind(&self) -> Option<&str> {
        match &self.kind {
            Some(Kind::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Checks it as a tool: returns its kind unless the agent runs it.
    fn server_tool(&self) -> Option<String> {
        if let Some(key) = &self.server_key {
            return Some(key.clone());
        }
        let is_client = |kind: &str| {
            CLIENT_TOOLS.contains(&kind)
                || CLIENT_TOOL_PREFIXES
                    .iter()
                    .any(|prefix| kind.starts_with(prefix))
        };
        match &self.kind {
            Some(Kind::Text(kind)) if is_client(kind) => None,
            Some(Kind::Text(kind)) => Some(kind.clone()),
            None | Some(Kind::Null) if self.has_functions && !self.has_others => None,
            None | Some(Kind::Null) if self.has_name => None,
            _ => Some("of unknown form".to_owned()),
        }
    }
}

/// Whether a URL contains its data itself.
fn is_inline(text: &str) -> bool {
    text.get(..5)
        .is_some_and(|begin| begin.eq_ignore_ascii_case("data:"))
}

/// Normalizes a key: `mcpServers` and `mcp_servers` are equal. Case-insensitive parsers may treat
/// the long s and the Kelvin sign as letters, so this does too.
fn normalize_key(key: &str) -> String {
    key.chars()
        .filter(|c| c.is_alphanumeric())
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests;
