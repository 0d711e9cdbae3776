//! The settings of a session and their choices: modes, options, and the models that older agents
//! list separately.
//!
//! Must not know which settings are wanted. Lists are read up to [`limits::ADVERTISED_ITEMS`]
//! entries. Unreadable entries are skipped.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::lenient::{BoundedList, parse, parse_object, parse_string};
use marshal_model::limits;
use marshal_model::{ChoiceInfo, OptionState, UntrustedText};

/// The choices, and the current one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choices {
    pub(super) current: Option<UntrustedText>,
    pub(super) offered: Vec<Choice>,
}

/// One choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) id: UntrustedText,
    pub(super) name: Option<UntrustedText>,
}

impl Choice {
    pub(super) fn info(&self) -> ChoiceInfo {
        ChoiceInfo {
            id: self.id.clone(),
            name: self.name.clone(),
        }
    }
}

/// An option of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionOption {
    pub(super) id: UntrustedText,
    pub(super) name: Option<UntrustedText>,
    pub(super) category: Option<UntrustedText>,
    pub(super) value: Value,
    pub(super) offered: Vec<Choice>,
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Choice(Option<UntrustedText>),
    Switch(bool),
}

impl SessionOption {
    /// Whether the option is about this, by its category or its id.
    pub(super) fn is_about(&self, what: &str) -> bool {
        match &self.category {
            Some(category) => category.raw() == what,
            None => self.id.raw() == what,
        }
    }

    pub(super) fn offers(&self, id: &str) -> bool {
        self.offered.iter().any(|choice| choice.id.raw() == id)
    }

    /// The option as it is reported, with the values that may be chosen.
    pub(super) fn state(&self, may_choose: impl Fn(&Choice) -> bool, may_set: bool) -> OptionState {
        OptionState {
            id: self.id.clone(),
            name: self.name.clone(),
            category: self.category.clone(),
            value: match &self.value {
                Value::Choice(value) => value.clone(),
                Value::Switch(on) => Some(UntrustedText::new(on.to_string())),
            },
            choices: match &self.value {
                Value::Choice(_) => {
                    let offered = self.offered.iter().filter(|choice| may_choose(choice));
                    offered.map(Choice::info).collect()
                }
                Value::Switch(_) => Vec::new(),
            },
            is_switch: may_set && matches!(self.value, Value::Switch(_)),
        }
    }
}

impl Choices {
    pub(super) fn offers(&self, id: &str) -> bool {
        self.offered.iter().any(|choice| choice.id.raw() == id)
    }
}

/// All settings of a session.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) modes: Option<Choices>,
    /// The models, where older agents list them; newer agents have an option.
    pub(super) models: Option<Choices>,
    pub(super) options: Vec<SessionOption>,
    /// The current mode, where the agent reports one without a list of modes.
    pub(super) reported_mode: Option<UntrustedText>,
}

/// A member with current settings that is unreadable. It could say that nothing is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnreadableSettings(pub(super) &'static str);

impl Settings {
    /// Reads the settings from the result of `session/new`, `session/load` or `session/resume`,
    /// which may not be an object.
    pub(super) fn read(result: &RawValue) -> Result<Self, UnreadableSettings> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Opened<'a> {
            #[serde(borrow)]
            modes: Option<&'a RawValue>,
            #[serde(borrow)]
            models: Option<&'a RawValue>,
            #[serde(borrow)]
            config_options: Option<&'a RawValue>,
        }
        if !result.get().starts_with('{') {
            return Ok(Self::default());
        }
        let opened: Opened<'_> = parse_object(result).ok_or(UnreadableSettings("its settings"))?;
        let there = |raw: Option<&'_ RawValue>| raw.is_some_and(|raw| raw.get() != "null");
        let (has_modes, has_options) = (there(opened.modes), there(opened.config_options));
        let modes = opened.modes.and_then(modes);
        let options = opened.config_options.and_then(options);
        if has_modes && modes.is_none() {
            return Err(UnreadableSettings("its modes"));
        }
        if has_options && options.is_none() {
            return Err(UnreadableSettings("its configOptions"));
        }
        Ok(Self {
            modes,
            models: opened.models.and_then(models),
            options: options.unwrap_or_default(),
            reported_mode: None,
        })
    }

    /// Merges settings that the agent reported earlier. They count where these are silent.
    pub(super) fn with_earlier(mut self, earlier: Self) -> Self {
        if self.mode().is_none() {
            self.reported_mode = earlier.reported_mode;
        }
        if self.options.is_empty() {
            self.options = earlier.options;
        }
        self
    }

    /// Merges settings that the agent reported later. They take precedence.
    pub(super) fn with_later(mut self, later: Self) -> Self {
        if !later.options.is_empty() {
            self.options = later.options;
        }
        if let Some(mode) = later.reported_mode {
            self.set_mode(&mode);
        }
        self
    }

    /// The session's mode, wherever the agent reports it.
    pub(super) fn mode(&self) -> Option<UntrustedText> {
        let of_modes = self.modes.as_ref().and_then(|modes| modes.current.clone());
        let reported = || self.reported_mode.clone();
        of_modes
            .or_else(|| self.chosen_value("mode"))
            .or_else(reported)
    }

    /// The session's model.
    pub(super) fn model(&self) -> Option<UntrustedText> {
        let of_models = self
            .models
            .as_ref()
            .and_then(|models| models.current.clone());
        self.chosen_value("model").or(of_models)
    }

    pub(super) fn option_about(&self, what: &str) -> Option<&SessionOption> {
        self.options.iter().find(|option| option.is_about(what))
    }

    fn chosen_value(&self, what: &str) -> Option<UntrustedText> {
        match &self.option_about(what)?.value {
            Value::Choice(value) => value.clone(),
            Value::Switch(_) => None,
        }
    }

    /// Records a mode that the agent has entered, also in an option for the same.
    pub(super) fn set_mode(&mut self, mode: &UntrustedText) {
        match &mut self.modes {
            Some(modes) => modes.current = Some(mode.clone()),
            None => self.reported_mode = Some(mode.clone()),
        }
        let of_mode = |option: &&mut SessionOption| option.is_about("mode");
        if let Some(option) = self.options.iter_mut().find(of_mode)
            && option.offers(mode.raw())
        {
            option.value = Value::Choice(Some(mode.clone()));
        }
    }
}

/// Modes: `currentModeId`, `availableModes`.
fn modes(raw: &RawValue) -> Option<Choices> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Modes<'a> {
        #[serde(borrow)]
        current_mode_id: Option<&'a RawValue>,
        #[serde(borrow)]
        available_modes: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Mode<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        #[serde(borrow)]
        name: Option<&'a RawValue>,
    }
    let modes: Modes<'_> = parse_object(raw)?;
    let choice = |raw: &RawValue| {
        let mode: Mode<'_> = parse_object(raw)?;
        choice(mode.id, mode.name)
    };
    Some(Choices {
        current: short_string(modes.current_mode_id),
        offered: front(modes.available_modes, choice),
    })
}

/// Models: `currentModelId`, `availableModels`.
fn models(raw: &RawValue) -> Option<Choices> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Models<'a> {
        #[serde(borrow)]
        current_model_id: Option<&'a RawValue>,
        #[serde(borrow)]
        available_models: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Model<'a> {
        #[serde(borrow)]
        model_id: Option<&'a RawValue>,
        #[serde(borrow)]
        name: Option<&'a RawValue>,
    }
    let models: Models<'_> = parse_object(raw)?;
    let choice = |raw: &RawValue| {
        let model: Model<'_> = parse_object(raw)?;
        choice(model.model_id, model.name)
    };
    Some(Choices {
        current: short_string(models.current_model_id),
        offered: front(models.available_models, choice),
    })
}

/// A list of `configOptions`; `None` if it is not a list.
pub(super) fn options(raw: &RawValue) -> Option<Vec<SessionOption>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        #[serde(borrow)]
        name: Option<&'a RawValue>,
        #[serde(borrow)]
        category: Option<&'a RawValue>,
        #[serde(borrow)]
        current_value: Option<&'a RawValue>,
        #[serde(borrow)]
        options: Option<&'a RawValue>,
    }
    let option = |raw: &RawValue| {
        let shape: Shape<'_> = parse_object(raw)?;
        let switch = shape.current_value.and_then(parse::<bool>);
        Some(SessionOption {
            id: short_string(shape.id)?,
            name: short_string(shape.name),
            category: short_string(shape.category),
            value: match switch {
                Some(on) => Value::Switch(on),
                None => Value::Choice(short_string(shape.current_value)),
            },
            offered: shape.options.map(offered).unwrap_or_default(),
        })
    };
    let list: BoundedList<'_, { limits::ADVERTISED_ITEMS }> = parse(raw)?;
    Some(list.items.into_iter().filter_map(option).collect())
}

/// The choices of an option, which may be in groups.
fn offered(raw: &RawValue) -> Vec<Choice> {
    #[derive(Deserialize)]
    struct Entry<'a> {
        #[serde(borrow)]
        value: Option<&'a RawValue>,
        #[serde(borrow)]
        name: Option<&'a RawValue>,
        #[serde(borrow)]
        options: Option<&'a RawValue>,
    }
    let one = |raw: &RawValue| {
        let entry: Entry<'_> = parse_object(raw)?;
        choice(entry.value, entry.name)
    };
    let list: BoundedList<'_, { limits::ADVERTISED_ITEMS }> = parse(raw).unwrap_or_default();
    let mut choices = Vec::new();
    for raw in list.items {
        match parse_object::<Entry<'_>>(raw).and_then(|entry| entry.options) {
            Some(group) => choices.extend(front(Some(group), one)),
            None => choices.extend(one(raw)),
        }
        choices.truncate(limits::ADVERTISED_ITEMS);
    }
    choices
}

fn front<T>(raw: Option<&RawValue>, read: impl Fn(&RawValue) -> Option<T>) -> Vec<T> {
    let list: BoundedList<'_, { limits::ADVERTISED_ITEMS }> =
        raw.and_then(parse).unwrap_or_default();
    list.items.into_iter().filter_map(read).collect()
}

fn choice(id: Option<&RawValue>, name: Option<&RawValue>) -> Option<Choice> {
    Some(Choice {
        id: short_string(id)?,
        name: short_string(name),
    })
}

/// A text that is short enough to be stored.
fn short_string(raw: Option<&RawValue>) -> Option<UntrustedText> {
    parse_string(raw).filter(|text| text.len() <= limits::FOREIGN_ID_BYTES)
}
