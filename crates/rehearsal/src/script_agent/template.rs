//! Messages as templates: each protocol has a table of them, and one function fills them.
//!
//! In a table, a line begins with a template's name, and its JSON follows, also on indented lines.
//! `$name` stands for a value. A line that begins with `#` is a remark; one that begins with `!` is
//! a line that is no message, for a drill. A name that begins with `<` is a form of `form.rs`. Must
//! not know any message.

use std::io;

use serde::Serialize;
use serde_json::value::RawValue;

/// A value for a placeholder: whatever has a JSON form.
pub(super) trait Field {
    fn write_json(&self, json: &mut Vec<u8>) -> serde_json::Result<()>;
}

impl<T: Serialize + ?Sized> Field for T {
    fn write_json(&self, json: &mut Vec<u8>) -> serde_json::Result<()> {
        serde_json::to_writer(json, self)
    }
}

/// Fields: `name: value`, or the name of a variable.
macro_rules! fields {
    (@ $name:ident) => { &$name };
    (@ $name:ident $value:expr) => { &$value };
    ($($name:ident $(: $value:expr)?),* $(,)?) => {
        &[$((
            stringify!($name),
            fields!(@ $name $($value)?) as &dyn $crate::script_agent::template::Field,
        )),*]
    };
}
pub(super) use fields;

/// Values by the names of their placeholders.
pub(super) type Fields<'a> = &'a [(&'a str, &'a dyn Field)];

/// The templates of a protocol.
#[derive(Debug, Clone, Copy)]
pub(super) struct Templates(pub(super) &'static str);

impl Templates {
    /// Fills a template. A name in both `fields` and `context` has the value of the former.
    pub(super) fn fill(
        self,
        name: &str,
        fields: Fields<'_>,
        context: Fields<'_>,
    ) -> io::Result<Box<RawValue>> {
        let template = self.find(name)?;
        let mut parts = template.split('$');
        let mut json = parts.next().unwrap_or_default().as_bytes().to_vec();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            let (wanted, rest) = part.split_at(end.unwrap_or(part.len()));
            let mut known = fields.iter().chain(context);
            let (_, value) = known.find(|(known, _)| *known == wanted).ok_or_else(|| {
                io::Error::other(format!("the template `{name}` lacks `{wanted}`"))
            })?;
            value.write_json(&mut json)?;
            json.extend_from_slice(rest.as_bytes());
        }
        // Checks that it is JSON, so that a wrong template never reaches the controller.
        let json = String::from_utf8(json).map_err(io::Error::other)?;
        Ok(RawValue::from_string(json)?)
    }

    /// The lines that are no messages.
    pub(super) fn garbage(self) -> impl Iterator<Item = &'static str> {
        let lines = self.0.lines();
        lines.filter_map(|line| line.strip_prefix("! "))
    }

    fn find(self, name: &str) -> io::Result<String> {
        let is_it = |line: &&str| line.split(' ').next() == Some(name);
        let mut lines = self.0.lines().skip_while(|line| !is_it(line));
        let first = lines.next();
        let first = first.ok_or_else(|| io::Error::other(format!("no template `{name}`")))?;
        let more = lines.take_while(|line| line.starts_with(' '));
        let json = std::iter::once(&first[name.len()..]).chain(more);
        Ok(json.map(str::trim).collect())
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::super::AgentDialect;
    use super::*;

    const TABLE: Templates = Templates(
        "# a remark\nnone {\"a\":1}\none {\"a\":$a}\ntwo {\"a\":$a,\n  \"b\":[$b_c]}\ntext $a\nbroken {$a}\n",
    );

    #[test]
    fn placeholders_have_their_values_in_the_order_of_the_template() {
        let fields: Fields = &[("a", &"$a \"\n"), ("b_c", &2.5)];
        for (name, expect) in [
            ("none", r#"{"a":1}"#),
            ("one", r#"{"a":"$a \"\n"}"#),
            ("two", r#"{"a":"$a \"\n","b":[2.5]}"#),
            ("text", r#""$a \"\n""#),
        ] {
            assert_eq!(TABLE.fill(name, fields, &[]).unwrap().get(), expect);
        }
        let inner = TABLE.fill("none", &[], &[]).unwrap();
        let outer = TABLE.fill("one", &[("a", &inner)], &[("a", &0)]).unwrap();
        assert_eq!(outer.get(), r#"{"a":{"a":1}}"#);
        let absent = TABLE.fill("one", &[], &[("a", &None::<u8>)]).unwrap();
        assert_eq!(absent.get(), r#"{"a":null}"#);
    }

    #[test]
    fn fields_have_the_names_of_variables_or_their_own() {
        let (a, item) = ("x", [1, 2]);
        let fields: Fields = fields![a, b_c: item.len()];
        let filled = TABLE.fill("two", fields, fields![]).unwrap();
        assert_eq!(filled.get(), r#"{"a":"x","b":[2]}"#);
    }

    #[test]
    fn an_unknown_name_and_a_template_that_is_no_json_are_errors() {
        for (name, why) in [
            ("three", "no template `three`"),
            ("two", "the template `two` lacks `b_c`"),
            ("broken", "key must be a string"),
            ("#", "expected value"),
        ] {
            let error = TABLE.fill(name, &[("a", &1)], &[]).unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
    }

    #[test]
    fn every_template_of_every_protocol_is_json_and_named_once() {
        for dialect in AgentDialect::value_variants() {
            let table = dialect.templates();
            let mut names = std::collections::BTreeSet::new();
            for line in table.0.lines().filter(|line| !line.starts_with([' ', '#'])) {
                let name = line.split(' ').next().unwrap();
                if name == "!" {
                    continue;
                }
                assert!(names.insert(name), "{dialect:?}: {name} twice");
                let filled = table.find(name).unwrap();
                let fields = filled.split('$').skip(1).map(|part| {
                    let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_');
                    (&part[..end.unwrap_or(part.len())], &() as &dyn Field)
                });
                let fields: Vec<_> = fields.collect();
                let filled = table.fill(name, &fields, &[]);
                assert!(filled.is_ok(), "{dialect:?}: {name}: {filled:?}");
            }
            assert_eq!(table.garbage().count(), 2, "{dialect:?}");
        }
    }
}
