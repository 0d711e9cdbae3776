//! The texts of a policy: its layers, each with the policies that it extends.
//!
//! Owns their order (the site's, then the pool's, then the session's; before each the policies that
//! it extends) and that each is read once. Must not read files: the caller supplies the texts of
//! extended policies. Must not know what keys mean.
//!
//! `tests/quick/policy/property.rs` tests how layers may affect each other.

use super::document::Document;
use super::error::LoadError;
use marshal_model::limits;

/// Finds the text of an extended policy by the name that `extends` gives.
pub type LoadExtended<'f> = dyn Fn(&str) -> Result<String, String> + 'f;

/// One layer of a policy, as its owner wrote it.
#[derive(Clone, Copy)]
pub struct LayerText<'l> {
    /// The name in error messages; `builtin:NAME` for a built-in policy.
    pub name: &'l str,
    /// The layer's text.
    pub text: &'l str,
    /// Loads the texts of files that it extends (relative paths without `..`).
    pub load_extended: &'l LoadExtended<'l>,
}

/// One file, with its name in error messages.
#[derive(Clone)]
pub(super) struct Layer {
    pub name: String,
    /// The index of the owner's layer that it belongs to, as that layer or as one that it extends.
    pub group: usize,
    pub document: Document,
}

impl Layer {
    /// Whether any of its rules has examples.
    pub(super) fn has_examples(&self) -> bool {
        let mut rules = self.document.rules.iter();
        rules.any(|rule| !rule.matches.is_empty() || !rule.not_match.is_empty())
    }
}

/// One file with all that it extends, itself last.
pub(super) fn with_extended(layers: &[Layer], at: usize) -> Vec<Layer> {
    let mut wanted = vec![at];
    let mut next = 0;
    while let Some(&place) = wanted.get(next) {
        next += 1;
        let Layer {
            group, document, ..
        } = &layers[place];
        for base in &document.extends {
            let is_it =
                |l: &Layer| l.name == *base && (l.group == *group || base.starts_with(BUILTIN));
            let found = layers.iter().position(is_it);
            wanted.extend(found.filter(|place| !wanted.contains(place)));
        }
    }
    wanted.sort_unstable();
    wanted
        .into_iter()
        .map(|place| layers[place].clone())
        .collect()
}

/// The prefix of built-in names in `extends`.
const BUILTIN: &str = "builtin:";

/// Every file of every layer, extended files before those that extend them.
pub(super) fn collect_layers(own: &[LayerText<'_>]) -> Result<Vec<Layer>, LoadError> {
    let mut layers = Vec::new();
    for (group, layer) in own.iter().enumerate() {
        let builtin = layer.name.starts_with(BUILTIN);
        if !(builtin && layers.iter().any(|l: &Layer| l.name == layer.name)) {
            collect_layer(layer, group, &mut Vec::new(), &mut layers)?;
        }
    }
    Ok(layers)
}

/// Reads a file after those that it extends, each once.
fn collect_layer(
    layer: &LayerText<'_>,
    group: usize,
    open: &mut Vec<String>,
    layers: &mut Vec<Layer>,
) -> Result<(), LoadError> {
    let name = layer.name;
    let document = parse(layer.text, name)?;
    open.push(name.to_owned());
    for base in &document.extends {
        let fail = |why: String| LoadError::Extends {
            policy: name.to_owned(),
            name: base.clone(),
            why,
        };
        if open.contains(base) {
            return Err(fail("it extends itself".to_owned()));
        }
        // Files of one name below the directories of two layers are different files.
        let is_same =
            |l: &Layer| l.name == *base && (l.group == group || base.starts_with(BUILTIN));
        if layers.iter().any(is_same) {
            continue;
        }
        if layers.len() + open.len() > limits::POLICY_EXTENDS {
            let most = limits::POLICY_EXTENDS;
            return Err(fail(format!("more than {most} policies are involved")));
        }
        let owned;
        let text = if let Some(builtin) = base.strip_prefix(BUILTIN) {
            super::builtin_text(builtin).ok_or_else(|| {
                fail(format!(
                    "it does not exist; available: {}",
                    super::builtin_names()
                ))
            })?
        } else {
            let stays = !base.is_empty()
                && !base.starts_with('/')
                && base.split('/').all(|part| !matches!(part, "" | "." | ".."));
            if !stays {
                return Err(fail(
                    "it must be a file below the policy's directory".to_owned(),
                ));
            }
            owned = (layer.load_extended)(base).map_err(fail)?;
            &owned
        };
        let extended = LayerText {
            name: base,
            text,
            load_extended: layer.load_extended,
        };
        collect_layer(&extended, group, open, layers)?;
    }
    open.pop();
    layers.push(Layer {
        name: name.to_owned(),
        group,
        document,
    });
    Ok(())
}

fn parse(text: &str, name: &str) -> Result<Document, LoadError> {
    let document: Document = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        LoadError::Text {
            policy: name.to_owned(),
            line: before.map_or(1, |t| t.matches('\n').count() + 1),
            message: error.message().to_owned(),
        }
    })?;
    if document.schema != 1 {
        return Err(LoadError::Schema {
            policy: name.to_owned(),
            found: document.schema,
        });
    }
    Ok(document)
}
