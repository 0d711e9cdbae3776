//! What the reader collects from one file: faults, the places of keys, and their types.
//!
//! Must not know TOML.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;

use crate::error::{ConfigError, SourceText};
use crate::key_types::{KeyTypes, ValueType};

/// What the reader collects from one file.
pub(crate) struct Diagnostics {
    /// The file.
    pub(crate) text: SourceText,
    errors: RefCell<Vec<ConfigError>>,
    pub(super) spans: RefCell<BTreeMap<String, Range<usize>>>,
    pub(super) key_types: RefCell<KeyTypes>,
}

impl Diagnostics {
    pub(crate) fn new(text: SourceText) -> Self {
        Self {
            text,
            errors: RefCell::default(),
            spans: RefCell::default(),
            key_types: RefCell::default(),
        }
    }

    /// Records a fault.
    pub(crate) fn report(&self, place: &Place, message: impl Display, help: Option<String>) {
        let span = place.span.clone();
        let error = SourceText::build_error(&place.key, span, &message.to_string(), help);
        self.errors.borrow_mut().push(error);
    }

    /// Records faults that were built elsewhere.
    pub(crate) fn report_all(&self, errors: Vec<ConfigError>) {
        self.errors.borrow_mut().extend(errors);
    }

    /// Whether any fault was recorded.
    pub(crate) fn has_errors(&self) -> bool {
        !self.errors.borrow().is_empty()
    }

    /// Records that the key `generic` may have this type.
    pub(super) fn record_type(&self, generic: &str, form: ValueType) {
        self.key_types.borrow_mut().add_type(generic, form);
    }

    /// Every key that was requested, with the types it may have, as far as the file has the key.
    pub(crate) fn key_types(&self) -> KeyTypes {
        self.key_types.borrow().clone()
    }

    /// The text, the faults, and the place of each key.
    pub(crate) fn into_parts(
        self,
    ) -> (SourceText, Vec<ConfigError>, BTreeMap<String, Range<usize>>) {
        let (faults, places) = (self.errors.into_inner(), self.spans.into_inner());
        (self.text, faults, places)
    }
}

/// A key and the place of its value.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The dotted path.
    pub(crate) key: String,
    /// Bytes of the text.
    pub(crate) span: Range<usize>,
}
