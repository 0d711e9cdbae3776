//! The schemas of bodies and answers, made from the types that are read and written.
//!
//! Must not know which route has which type.

use std::borrow::Cow;

use schemars::generate::{Contract, SchemaSettings};
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

/// The configuration: its members are those of its own schema.
pub(super) struct Config;

impl JsonSchema for Config {
    fn schema_name() -> Cow<'static, str> {
        "Config".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "The same document as `marshal --json config show` prints.",
        })
    }
}

/// The OpenAPI document, which OpenAPI itself describes.
pub(super) type OpenApi = Map<String, Value>;

/// Makes the schema of a type.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// Makes the schema of `T`: a reference, if it has a name.
pub(super) fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The generators of the schemas in an OpenAPI document.
pub(super) struct Generators {
    /// Of what is read.
    pub(super) bodies: SchemaGenerator,
    /// Of what is written.
    pub(super) answers: SchemaGenerator,
}

impl Generators {
    pub(super) fn new() -> Self {
        let generator = |contract| {
            let settings = SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
                settings.contract = contract;
            });
            settings.into_generator()
        };
        Self {
            bodies: generator(Contract::Deserialize),
            answers: generator(Contract::Serialize),
        }
    }

    /// Returns all schemas that have a name.
    pub(super) fn into_definitions(mut self) -> Map<String, Value> {
        let mut all = self.bodies.take_definitions(true);
        all.extend(self.answers.take_definitions(true));
        let mut transform = RecursiveTransform(tidy);
        for schema in all.values_mut() {
            if let Ok(schema) = <&mut Schema>::try_from(schema) {
                transform.transform(schema);
            }
        }
        all
    }
}

/// An object has no other members than those that are listed, unless its type says so. A default of
/// null only means that the member may be missing, and a sentence is one line.
fn tidy(schema: &mut Schema) {
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
        schema.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    if schema.get("default") == Some(&Value::Null) {
        schema.remove("default");
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
}
