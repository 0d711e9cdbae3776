//! Fills templates into lines.
//!
//! Must not know what a line means. A value is written as one JSON value, or as an escaped part of
//! one string, so no quote in it can end the string.

use serde_json::value::RawValue;

use crate::Attachment;
use marshal_config::dialect_definition::{Node, Piece, Placeholder, Template};
use marshal_wire::json;

/// The values for the placeholders. A missing text is empty.
#[derive(Default, Clone, Copy)]
pub(super) struct TemplateValues<'a> {
    pub(super) texts: &'a [(Placeholder, &'a str)],
    pub(super) id: Option<&'a RawValue>,
    pub(super) input: Option<&'a RawValue>,
    /// The files, and the template for each of them.
    pub(super) attached: Option<(&'a Template, &'a [Attachment])>,
}

/// One line, including its newline.
pub(super) fn line(template: &Template, filling: &TemplateValues<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    write(template.root(), filling, &mut out);
    out.push(b'\n');
    out
}

impl TemplateValues<'_> {
    fn text(&self, hole: Placeholder) -> &str {
        let mut texts = self.texts.iter();
        let found = texts.find_map(|(own, text)| (*own == hole).then_some(*text));
        found.unwrap_or_default()
    }

    fn is_empty(&self, hole: Placeholder) -> bool {
        match hole {
            Placeholder::Id => self.id.is_none(),
            Placeholder::Input => self.input.is_none(),
            Placeholder::Attached => self.attached.is_none_or(|(_, files)| files.is_empty()),
            other => self.text(other).is_empty(),
        }
    }

    /// Whether a value with placeholders gets no values.
    fn is_left_empty(&self, node: &Node) -> bool {
        match node {
            Node::Whole(hole) => self.is_empty(*hole),
            Node::Text(pieces) => pieces.iter().all(|piece| match piece {
                Piece::Placeholder(hole) => self.is_empty(*hole),
                Piece::Literal(_) => true,
            }),
            Node::Plain(_) | Node::List(_) | Node::Object(_) => false,
        }
    }
}

fn write(node: &Node, filling: &TemplateValues<'_>, out: &mut Vec<u8>) {
    match node {
        Node::Plain(text) => out.extend_from_slice(text.as_bytes()),
        Node::Whole(hole) => whole(*hole, filling, out),
        Node::Text(pieces) => {
            let mut text = String::new();
            for piece in pieces {
                match piece {
                    Piece::Literal(literal) => text.push_str(literal),
                    Piece::Placeholder(Placeholder::Id) => {
                        let id = filling.id.and_then(super::path_tree::parse_name);
                        text.push_str(&id.unwrap_or_default());
                    }
                    Piece::Placeholder(hole) => text.push_str(filling.text(*hole)),
                }
            }
            json::write_string(out, &text);
        }
        Node::List(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(item, filling, out);
            }
            out.push(b']');
        }
        Node::Object(members) => {
            out.push(b'{');
            let mut is_first = true;
            for (name, may_miss, value) in members {
                if *may_miss && filling.is_left_empty(value) {
                    continue;
                }
                if !std::mem::take(&mut is_first) {
                    out.push(b',');
                }
                json::write_string(out, name);
                out.push(b':');
                write(value, filling, out);
            }
            out.push(b'}');
        }
    }
}

fn whole(hole: Placeholder, filling: &TemplateValues<'_>, out: &mut Vec<u8>) {
    let raw = |raw: Option<&RawValue>, out: &mut Vec<u8>| {
        out.extend_from_slice(raw.map_or("null", RawValue::get).as_bytes());
    };
    match hole {
        Placeholder::Id => raw(filling.id, out),
        Placeholder::Input => raw(filling.input, out),
        Placeholder::Attached => {
            out.push(b'[');
            let (template, files) = match filling.attached {
                Some((template, files)) => (Some(template), files),
                None => (None, &[][..]),
            };
            for (at, file) in files.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                let text = file.text.as_ref().map_or("", |text| text.raw());
                let own = TemplateValues {
                    texts: &[(Placeholder::Path, &file.path), (Placeholder::Text, text)],
                    ..TemplateValues::default()
                };
                if let Some(template) = template {
                    write(template.root(), &own, out);
                }
            }
            out.push(b']');
        }
        other => json::write_string(out, filling.text(other)),
    }
}
