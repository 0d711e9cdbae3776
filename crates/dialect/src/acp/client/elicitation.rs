//! A question of the agent to a person (`elicitation/create`): a form with fields, or a web page that
//! the person is to open.
//!
//! Owns how a form becomes one question, and one answer the content of a form. Must not know who
//! answers. Source: Agent Client Protocol, schema version 1.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::lenient::parse_object;
use marshal_model::ClientCall;
use marshal_model::limits::{FORM_FIELDS, TOOL_OPTION_BYTES, TOOL_OPTIONS, TOOL_TEXT_BYTES};

/// What an answer must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Form {
    fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: String,
    kind: FieldKind,
    is_required: bool,
    /// The only values; empty if there are others.
    choices: Vec<String>,
    default: Option<Value>,
    /// Its title and description.
    about: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FieldKind {
    String,
    Number,
    Integer,
    Boolean,
    Array,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    session_id: Option<String>,
    #[serde(default)]
    mode: Option<String>,
    message: String,
    requested_schema: Option<Schema>,
    url: Option<String>,
}

#[derive(Deserialize)]
struct Schema {
    #[serde(default)]
    properties: Map<String, Value>,
    #[serde(default)]
    required: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Property {
    #[serde(rename = "type")]
    kind: FieldKind,
    title: Option<String>,
    description: Option<String>,
    default: Option<Value>,
    #[serde(flatten)]
    choices: Choices,
    items: Option<Choices>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Choices {
    #[serde(rename = "enum")]
    values: Option<Vec<String>>,
    #[serde(alias = "anyOf")]
    one_of: Option<Vec<Choice>>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(rename = "const")]
    value: String,
}

impl Choices {
    fn into_values(self) -> Vec<String> {
        let titled = self.one_of.unwrap_or_default().into_iter();
        let values = self.values.unwrap_or_default().into_iter();
        values.chain(titled.map(|choice| choice.value)).collect()
    }
}

/// A question that was read.
#[derive(Debug)]
pub(super) struct Elicitation {
    /// The session; `None` if the question is about a request outside of one.
    pub(super) session: Option<String>,
    pub(super) call: ClientCall,
    pub(super) form: Form,
}

/// Reads the parameters.
///
/// # Errors
/// What is wrong with them, for the agent.
pub(super) fn read(raw: &RawValue) -> Result<Elicitation, String> {
    let params: Params = parse_object(raw).ok_or("a parameter is missing or has the wrong type")?;
    let mut question = params.message.trim().to_owned();
    let form = match (
        params.mode.as_deref().unwrap_or("form"),
        params.requested_schema,
    ) {
        ("form", Some(schema)) => Form::read(schema)?,
        ("url", _) => {
            let url = params.url.ok_or("url is missing")?;
            if !url.starts_with("https://") && !url.starts_with("http://") {
                return Err("url must begin with https:// or http://".to_owned());
            }
            question.push_str("\nOpen: ");
            question.push_str(&url);
            Form::default()
        }
        ("form", None) => return Err("requestedSchema is missing".to_owned()),
        _ => return Err("mode must be form or url".to_owned()),
    };
    question.push_str(&form.describe());
    if question.trim().is_empty() {
        return Err("message is empty".to_owned());
    }
    if question.len() > TOOL_TEXT_BYTES {
        return Err(format!(
            "the message with its fields is longer than {TOOL_TEXT_BYTES} bytes"
        ));
    }
    let options = form.options();
    Ok(Elicitation {
        session: params.session_id,
        call: ClientCall::Ask { question, options },
        form,
    })
}

impl Form {
    fn read(schema: Schema) -> Result<Self, String> {
        if schema.properties.len() > FORM_FIELDS {
            return Err(format!("at most {FORM_FIELDS} fields are allowed"));
        }
        let mut fields = Vec::new();
        for (name, property) in schema.properties {
            let property: Property = serde_json::from_value(property)
                .map_err(|error| format!("field {name:?} cannot be read: {error}"))?;
            let texts = property.title.into_iter().chain(property.description);
            let mut choices = property.choices.into_values();
            if let Some(items) = property.items {
                choices.extend(items.into_values());
            }
            fields.push(Field {
                is_required: schema.required.contains(&name),
                kind: property.kind,
                choices,
                default: property.default,
                about: texts.collect::<Vec<_>>().join(": "),
                name,
            });
        }
        Ok(Self { fields })
    }

    /// A line for each field.
    fn describe(&self) -> String {
        let line = |field: &Field| {
            let kind = match field.kind {
                FieldKind::String => "text",
                FieldKind::Number => "number",
                FieldKind::Integer => "integer",
                FieldKind::Boolean => "true or false",
                FieldKind::Array => "list",
            };
            let optional = if field.is_required { "" } else { ", optional" };
            let choices = match field.choices.as_slice() {
                [] => String::new(),
                some => format!(" [{}]", some.join(", ")),
            };
            let about = match field.about.as_str() {
                "" => String::new(),
                about => format!(": {about}"),
            };
            format!("\n{} ({kind}{optional}){about}{choices}", field.name)
        };
        self.fields.iter().map(line).collect()
    }

    /// The answers that a person can choose from, if there is one field.
    fn options(&self) -> Vec<String> {
        let [field] = self.fields.as_slice() else {
            return Vec::new();
        };
        let is_long = |choice: &String| choice.len() > TOOL_OPTION_BYTES;
        match field.kind {
            FieldKind::Boolean => vec!["true".to_owned(), "false".to_owned()],
            FieldKind::Array => Vec::new(),
            _ if field.choices.len() > TOOL_OPTIONS || field.choices.iter().any(is_long) => {
                Vec::new()
            }
            _ => field.choices.clone(),
        }
    }

    /// The content of the form: a JSON object with its fields, or the value of its only field.
    ///
    /// # Errors
    /// Why the answer does not fit.
    pub(super) fn content(&self, answer: Option<&str>) -> Result<Value, String> {
        let answer = answer.map(str::trim);
        let given = answer.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
        let mut given = match (given, answer, self.fields.as_slice()) {
            (Some(given), ..) => given,
            (None, Some(text), [field]) => {
                Map::from_iter([(field.name.clone(), field.parse(text)?)])
            }
            (None, Some(_), [_, _, ..]) => {
                return Err("it must be a JSON object with the form's fields".to_owned());
            }
            (None, ..) => Map::new(),
        };
        let mut content = Map::new();
        for field in &self.fields {
            match given.remove(&field.name).or_else(|| field.default.clone()) {
                Some(value) => {
                    field.check(&value)?;
                    content.insert(field.name.clone(), value);
                }
                None if field.is_required => return Err(format!("it lacks {:?}", field.name)),
                None => {}
            }
        }
        match given.keys().next() {
            Some(name) => Err(format!("the form has no field {name:?}")),
            None => Ok(Value::Object(content)),
        }
    }
}

impl Field {
    /// A value from plain text.
    fn parse(&self, text: &str) -> Result<Value, String> {
        match self.kind {
            FieldKind::String => Ok(json!(text)),
            FieldKind::Array if !text.starts_with('[') => {
                let parts = text.split(',').map(str::trim);
                Ok(parts.filter(|part| !part.is_empty()).collect())
            }
            _ => serde_json::from_str(text).map_err(|_| self.wrong()),
        }
    }

    fn check(&self, value: &Value) -> Result<(), String> {
        let allows = |text: &str| {
            self.choices.is_empty() || self.choices.iter().any(|choice| choice == text)
        };
        let fits = match self.kind {
            FieldKind::String => value.as_str().is_some_and(allows),
            FieldKind::Number => value.is_number(),
            FieldKind::Integer => value.is_i64() || value.is_u64(),
            FieldKind::Boolean => value.is_boolean(),
            FieldKind::Array => value.as_array().is_some_and(|items| {
                let mut items = items.iter();
                items.all(|item| item.as_str().is_some_and(allows))
            }),
        };
        if fits { Ok(()) } else { Err(self.wrong()) }
    }

    fn wrong(&self) -> String {
        let form = self.clone();
        let line = Form { fields: vec![form] }.describe();
        format!("it does not fit the field{}", line.replace('\n', " "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(params: &Value) -> Result<Elicitation, String> {
        super::read(&serde_json::value::to_raw_value(params).expect("JSON"))
    }

    fn form(properties: &Value, required: &Value) -> Elicitation {
        let schema = json!({"type": "object", "properties": properties, "required": required});
        read(&json!({"sessionId": "s", "mode": "form", "message": "Which?", "requestedSchema": schema}))
            .expect("a form")
    }

    fn question_of(elicitation: &Elicitation) -> (&str, &[String]) {
        match &elicitation.call {
            ClientCall::Ask { question, options } => (question, options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_field_is_answered_by_its_value() {
        let of = form(
            &json!({"color": {"type": "string", "title": "Color", "enum": ["red", "blue"]}}),
            &json!(["color"]),
        );
        let (question, options) = question_of(&of);
        assert_eq!(question, "Which?\ncolor (text): Color [red, blue]");
        assert_eq!(options, ["red", "blue"]);
        assert_eq!(
            of.form.content(Some(" blue ")),
            Ok(json!({"color": "blue"}))
        );
        let object = of.form.content(Some("{\"color\":\"red\"}"));
        assert_eq!(object, Ok(json!({"color": "red"})));
        for bad in [
            Some("green"),
            None,
            Some("{\"color\":1}"),
            Some("{\"colour\":\"red\"}"),
        ] {
            assert!(of.form.content(bad).is_err(), "{bad:?}");
        }
        let number = form(&json!({"n": {"type": "integer"}}), &json!([]));
        assert_eq!(number.form.content(Some("7")), Ok(json!({"n": 7})));
        assert_eq!(number.form.content(None), Ok(json!({})));
        assert!(number.form.content(Some("7.5")).is_err());
        let list = form(
            &json!({"l": {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}}}),
            &json!(["l"]),
        );
        assert_eq!(
            list.form.content(Some("a, b")),
            Ok(json!({"l": ["a", "b"]}))
        );
        assert!(list.form.content(Some("c")).is_err());
        let switch = form(&json!({"on": {"type": "boolean"}}), &json!(["on"]));
        assert_eq!(question_of(&switch).1, ["true", "false"]);
        assert_eq!(switch.form.content(Some("true")), Ok(json!({"on": true})));
    }

    #[test]
    fn several_fields_are_answered_by_an_object_and_defaults_fill_it() {
        let of = form(
            &json!({
                "name": {"type": "string"},
                "age": {"type": "number", "default": 3.5},
                "note": {"type": "string", "description": "if any"},
            }),
            &json!(["name", "age"]),
        );
        let (question, options) = question_of(&of);
        assert!(
            question.contains("\nnote (text, optional): if any"),
            "{question}"
        );
        assert_eq!(options, [""; 0]);
        let content = of.form.content(Some("{\"name\": \"ann\"}"));
        assert_eq!(content, Ok(json!({"name": "ann", "age": 3.5})));
        assert!(of.form.content(Some("ann")).is_err());
        assert!(of.form.content(None).is_err(), "the name is missing");
    }

    #[test]
    fn a_page_is_named_and_what_cannot_be_shown_is_refused() {
        let page = json!({"sessionId": "s", "mode": "url", "message": "Log in", "elicitationId": "e", "url": "https://a.example/x"});
        let page = read(&page).expect("a page");
        assert_eq!(question_of(&page).0, "Log in\nOpen: https://a.example/x");
        assert_eq!(page.form.content(Some("done")), Ok(json!({})));
        let many: Map<String, Value> = (0..=FORM_FIELDS)
            .map(|n| (n.to_string(), json!({"type": "string"})))
            .collect();
        for bad in [
            json!({"message": "a"}),
            json!({"message": "a", "mode": "other", "requestedSchema": {}}),
            json!({"message": "a", "mode": "url", "url": "javascript:alert(1)"}),
            json!({"message": " ", "requestedSchema": {}}),
            json!({"message": "a".repeat(TOOL_TEXT_BYTES + 1), "requestedSchema": {}}),
            json!({"message": "a", "requestedSchema": {"properties": {"x": {"type": "object"}}}}),
            json!({"message": "a", "requestedSchema": {"properties": many}}),
            json!({"message": 1, "requestedSchema": {}}),
        ] {
            assert!(read(&bad).is_err(), "{bad}");
        }
    }
}
