//! The models that the agent offers, and the one that its sessions use.
//!
//! Must not know when a model is chosen.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::acp::join_for_display;
use crate::lenient::{BoundedList, parse, parse_object, parse_string};
use marshal_model::limits;
use marshal_model::{ChoiceInfo, OptionState, UntrustedText};

/// The id of the option that a session has where there are models.
pub(super) const OPTION: &str = "model";

/// The maximum number of models that are read; some providers have hundreds.
const MAX_LISTED: usize = 4096;

/// The thinking level where the agent reports none. The agent maps it to what the model supports.
const THINKING: &str = "MEDIUM";

/// A model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) id: String,
    pub(super) provider: String,
    label: Option<UntrustedText>,
}

/// The content of `model.list`.
#[derive(Debug, Default)]
pub(super) struct Models {
    offered: Vec<Model>,
    pub(super) selected: Option<UntrustedText>,
    provider: Option<UntrustedText>,
    thinking: Option<UntrustedText>,
}

#[derive(Deserialize)]
struct ModelListResult<'a> {
    #[serde(borrow)]
    models: Option<&'a RawValue>,
    #[serde(borrow)]
    selected_model: Option<&'a RawValue>,
    #[serde(borrow)]
    selected_provider: Option<&'a RawValue>,
    #[serde(borrow)]
    selected_thinking: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ModelEntry<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    provider: Option<&'a RawValue>,
    #[serde(borrow)]
    label: Option<&'a RawValue>,
}

fn short(raw: Option<&RawValue>) -> Option<UntrustedText> {
    parse_string(raw).filter(|text| !text.is_empty() && text.len() <= limits::ADVERTISED_TEXT_BYTES)
}

impl Models {
    /// Reads the result of `model.list`. Unreadable entries are skipped.
    pub(super) fn read(result: &RawValue) -> Option<Self> {
        let listed: ModelListResult<'_> = parse_object(result)?;
        let model = |raw: &RawValue| {
            let offered: ModelEntry<'_> = parse_object(raw)?;
            Some(Model {
                id: short(offered.id)?.into_raw(),
                provider: short(offered.provider)?.into_raw(),
                label: short(offered.label),
            })
        };
        let models: Option<BoundedList<'_, MAX_LISTED>> = listed.models.and_then(parse);
        let offered = models.unwrap_or_default().items;
        Some(Self {
            offered: offered.into_iter().filter_map(model).collect(),
            selected: short(listed.selected_model),
            provider: short(listed.selected_provider),
            thinking: short(listed.selected_thinking),
        })
    }

    /// The model of that name: its id, or its provider's id and its id with a slash between them.
    /// Of several, the one of the selected provider.
    pub(super) fn find(&self, name: &str) -> Option<&Model> {
        let is_it = |model: &&Model| {
            model.id == name
                || name
                    .strip_prefix(model.provider.as_str())
                    .and_then(|rest| rest.strip_prefix('/'))
                    .is_some_and(|id| id == model.id)
        };
        let is_near = |model: &&Model| {
            let near = self.provider.as_ref().map(UntrustedText::raw);
            near == Some(model.provider.as_str())
        };
        let mut fitting = self.offered.iter().filter(is_it);
        let first = fitting.clone().next();
        fitting.find(is_near).or(first)
    }

    /// Whether that model is in use.
    pub(super) fn uses(&self, model: &Model) -> bool {
        let is = |now: &Option<UntrustedText>, wanted: &str| {
            now.as_ref().is_some_and(|now| now.raw() == wanted)
        };
        is(&self.selected, &model.id) && is(&self.provider, &model.provider)
    }

    /// The model's thinking level.
    pub(super) fn thinking(&self) -> &str {
        self.thinking.as_ref().map_or(THINKING, UntrustedText::raw)
    }

    /// Records that this model is in use from now on.
    pub(super) fn select(&mut self, model: Model) {
        self.selected = Some(model.id.into());
        self.provider = Some(model.provider.into());
    }

    /// The message that no model of that name is offered.
    pub(super) fn describe_missing(&self, name: &str) -> String {
        format!(
            "the agent offers no model {}; it offers: {}",
            UntrustedText::from(name).escape_for_display(80),
            join_for_display(self.offered.iter().map(|model| model.id.as_str()))
        )
    }

    /// The option by which a person chooses a model, if there is a choice.
    pub(super) fn option(&self) -> Option<OptionState> {
        let choices = self.offered.iter().take(limits::ADVERTISED_ITEMS);
        let choices: Vec<ChoiceInfo> = choices
            .map(|model| ChoiceInfo {
                id: format!("{}/{}", model.provider, model.id).into(),
                name: model.label.clone(),
            })
            .collect();
        let of_provider = self.provider.as_ref().zip(self.selected.as_ref());
        (!choices.is_empty()).then(|| OptionState {
            id: OPTION.into(),
            name: Some("Model".into()),
            category: Some(OPTION.into()),
            value: of_provider.map(|(provider, model)| {
                UntrustedText::new(format!("{}/{}", provider.raw(), model.raw()))
            }),
            choices,
            is_switch: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models() -> Models {
        let text = r#"{"models":[{"id":"m","provider":"a"},{"id":"m","provider":"b","label":"M"},{"id":7},{"id":"x/y","provider":"b"}],"selected_model":"m","selected_provider":"b","selected_thinking":"LOW"}"#;
        Models::read(&RawValue::from_string(text.to_owned()).expect("JSON")).expect("a list")
    }

    #[test]
    fn a_model_is_found_by_its_id_or_with_its_provider() {
        let models = models();
        let provider = |name| models.find(name).map(|model| model.provider.as_str());
        assert_eq!(provider("m"), Some("b"), "the provider that is selected");
        assert_eq!(provider("a/m"), Some("a"));
        assert_eq!(provider("x/y"), Some("b"));
        assert_eq!(provider("b/x/y"), Some("b"));
        for none in ["", "y", "am", "a/", "c/m"] {
            assert_eq!(provider(none), None, "{none}");
        }
        let at = |name| models.uses(models.find(name).expect("a model"));
        assert!(at("b/m") && !at("a/m"));
        assert_eq!(models.thinking(), "LOW");
        assert_eq!(
            models.describe_missing("z"),
            "the agent offers no model z; it offers: m, m, x/y"
        );
    }

    #[test]
    fn an_option_has_each_model_with_its_provider() {
        let option = models().option().expect("an option");
        let ids: Vec<&str> = option
            .choices
            .iter()
            .map(|choice| choice.id.raw())
            .collect();
        assert_eq!(ids, ["a/m", "b/m", "b/x/y"]);
        assert_eq!(option.value, Some("b/m".into()));
        assert!(Models::default().option().is_none());
    }
}
