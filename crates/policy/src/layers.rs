//! The texts that a policy is made of: its layers, each with what it extends.
//!
//! Owns their order (a site's own, then the pool's, then the session's; before each what it
//! extends) and that each is read once. Must not read files: texts of extended policies come from
//! the caller. Must not know what keys mean.
//!
//! What layers may do to each other is tested in `tests/quick/policy/property.rs`.

use super::document::Document;
use super::error::LoadError;
use marshal_model::limits;

/// Finds the text of an extended policy by the name that `extends` gives.
pub type LoadExtended<'f> = dyn Fn(&str) -> Result<String, String> + 'f;

/// One of the layers of a policy, as its owner wrote it.
#[derive(Clone, Copy)]
pub struct LayerText<'l> {
    /// What errors call it; `builtin:NAME` for one that comes with the program.
    pub name: &'l str,
    /// Its text.
    pub text: &'l str,
    /// Gives the texts of files that it extends (relative paths without `..`).
    pub load_extended: &'l LoadExtended<'l>,
}

/// One file, with the name that errors use.
#[derive(Clone)]
pub(super) struct Layer {
    pub name: String,
    /// Which of the owners' layers it belongs to, as what that extends or as itself.
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

/// The prefix of names in `extends` that come with the program.
const BUILTIN: &str = "builtin:";

/// Every file of every layer, those that are extended before those that extend them.
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
        // Files of one name below two layers' directories are two files.
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
                    "there is none, there are {}",
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
