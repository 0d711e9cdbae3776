//! Forms: which members a message of the controller has, and of which kind each of them is.
//!
//! A form is a template whose name begins with `<`. Its texts are kinds: `text`, `flag`, `number`,
//! `any`, or `=` and the permitted words. A member `NAME?` may be absent, one of `NAME??` may also be
//! null, and `*` stands for every name. A form is closed: other members are errors.

use serde_json::Value;

use super::template::Templates;

impl Templates {
    /// Checks a value against the form of that name. The error says what is wrong with it.
    pub(super) fn check(self, name: &str, value: &Value) -> Result<(), String> {
        let form = self.fill(&format!("<{name}"), &[], &[]);
        let form = form.map_err(|_| format!("there is no `{}`", super::rpc::shorten(name)))?;
        let form = serde_json::from_str(form.get()).map_err(|error| error.to_string())?;
        check(&form, value, name)
    }
}

fn check(form: &Value, value: &Value, name: &str) -> Result<(), String> {
    let is_right = match (form, value) {
        (Value::Object(form), Value::Object(members)) => {
            let known = |member: &str| form.keys().any(|key| key.trim_end_matches('?') == member);
            let mut others = members.keys().filter(|member| !known(member));
            if let (None, Some(other)) = (form.get("*"), others.clone().next()) {
                return Err(format!("unknown member `{}`", super::rpc::shorten(other)));
            }
            for (key, form) in form {
                let member = key.trim_end_matches('?');
                match members.get(member) {
                    _ if key == "*" => {}
                    None if key.ends_with('?') => {}
                    Some(Value::Null) if key.ends_with("??") => {}
                    None => return Err(format!("`{member}` is missing")),
                    Some(value) => check(form, value, member)?,
                }
            }
            let form = form.get("*").unwrap_or(&Value::Null);
            return others.try_for_each(|other| check(form, &members[other], other));
        }
        (Value::Array(form), Value::Array(items)) => {
            let mut items = items.iter();
            return items.try_for_each(|item| check(&form[0], item, name));
        }
        (Value::String(kind), value) => match (kind.strip_prefix('='), kind.as_str()) {
            (Some(words), _) => value
                .as_str()
                .is_some_and(|value| words.split('|').any(|word| word == value)),
            (None, "text") => value.is_string(),
            (None, "flag") => value.is_boolean(),
            (None, "number") => value.is_u64(),
            _ => true,
        },
        _ => false,
    };
    if is_right {
        return Ok(());
    }
    Err(format!("`{name}` has the wrong form"))
}

/// A text of a checked value; empty if it is absent.
pub(super) fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TABLE: Templates = Templates(
        "<all {\"a\":\"text\",\"b?\":\"flag\",\"c??\":[{\"d\":\"=x|y\"}],\"e?\":{\"*\":\"number\",\"f?\":\"any\"}}\n",
    );

    #[test]
    fn a_form_is_closed_and_names_what_is_wrong() {
        for right in [
            json!({"a": ""}),
            json!({"a": "", "b": true, "c": null}),
            json!({"a": "", "c": [], "e": {}}),
            json!({"a": "", "c": [{"d": "x"}, {"d": "y"}], "e": {"p": 1, "q": 2, "f": null}}),
        ] {
            assert_eq!(TABLE.check("all", &right), Ok(()), "{right}");
        }
        for (wrong, why) in [
            (json!([]), "`all` has the wrong form"),
            (json!({}), "`a` is missing"),
            (json!({"a": null}), "`a` has the wrong form"),
            (json!({"a": 1}), "`a` has the wrong form"),
            (json!({"a": "", "b": null}), "`b` has the wrong form"),
            (json!({"a": "", "b": "x"}), "`b` has the wrong form"),
            (json!({"a": "", "c": {}}), "`c` has the wrong form"),
            (json!({"a": "", "c": [1]}), "`c` has the wrong form"),
            (json!({"a": "", "c": [{}]}), "`d` is missing"),
            (
                json!({"a": "", "c": [{"d": "z"}]}),
                "`d` has the wrong form",
            ),
            (
                json!({"a": "", "c": [{"d": "x", "g": 1}]}),
                "unknown member `g`",
            ),
            (json!({"a": "", "e": {"p": -1}}), "`p` has the wrong form"),
            (json!({"a": "", "c?": 1}), "unknown member `c?`"),
        ] {
            assert_eq!(TABLE.check("all", &wrong), Err(why.to_owned()), "{wrong}");
        }
        let unknown = TABLE.check("none", &json!({}));
        assert_eq!(unknown, Err("there is no `none`".to_owned()));
    }
}
