//! What is learned while one file is read: faults, where keys stand, what they may hold.
//!
//! Must not know TOML.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;

use crate::config::error::{ConfigError, Text};
use crate::config::form::{Form, Forms};

/// What is learned while one file is read.
pub(in crate::config) struct Ledger {
    /// The file.
    pub(in crate::config) text: Text,
    faults: RefCell<Vec<ConfigError>>,
    pub(super) places: RefCell<BTreeMap<String, Range<usize>>>,
    pub(super) forms: RefCell<Forms>,
}

impl Ledger {
    pub(in crate::config) fn new(text: Text) -> Self {
        Self {
            text,
            faults: RefCell::default(),
            places: RefCell::default(),
            forms: RefCell::default(),
        }
    }

    /// Notes a fault.
    pub(in crate::config) fn fault(
        &self,
        place: &Place,
        message: impl Display,
        help: Option<String>,
    ) {
        let span = place.span.clone();
        let error = Text::error(&place.key, span, &message.to_string(), help);
        self.faults.borrow_mut().push(error);
    }

    /// Notes faults that were made elsewhere.
    pub(in crate::config) fn faults(&self, errors: Vec<ConfigError>) {
        self.faults.borrow_mut().extend(errors);
    }

    /// Whether any fault was noted.
    pub(in crate::config) fn is_faulty(&self) -> bool {
        !self.faults.borrow().is_empty()
    }

    /// Notes that the key `generic` may hold this.
    pub(super) fn form(&self, generic: &str, form: Form) {
        self.forms.borrow_mut().may_hold(generic, form);
    }

    /// Every key that was looked for and what it may hold, as far as the file had it.
    pub(in crate::config) fn forms(&self) -> Forms {
        self.forms.borrow().clone()
    }

    /// The text, the faults, and where each key stands.
    pub(in crate::config) fn close(
        self,
    ) -> (Text, Vec<ConfigError>, BTreeMap<String, Range<usize>>) {
        let (faults, places) = (self.faults.into_inner(), self.places.into_inner());
        (self.text, faults, places)
    }
}

/// A key and where its value stands.
#[derive(Debug, Clone)]
pub(in crate::config) struct Place {
    /// The dotted path.
    pub(in crate::config) key: String,
    /// Bytes of the text.
    pub(in crate::config) span: Range<usize>,
}
