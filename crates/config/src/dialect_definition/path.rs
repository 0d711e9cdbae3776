//! Paths to values in a message: names of members and indices of lists.

use std::fmt;

/// The limit of steps of one path.
const STEPS: usize = 8;
/// The highest index of a list, from its start or from its end.
const MAX_INDEX: i32 = 15;
/// The limit of a path's text, in bytes.
const TEXT_BYTES: usize = 256;

/// One step into a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    /// A member of an object.
    Member(String),
    /// An element of a list; below 0 from its end.
    Index(i32),
}

/// A place in a message, such as `message.content[-1].text`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataPath(Vec<PathStep>);

impl DataPath {
    /// Its steps, at least one.
    #[must_use]
    pub fn steps(&self) -> &[PathStep] {
        &self.0
    }

    /// The path of a message's type in most protocols.
    pub(super) fn default_type_path() -> Self {
        Self(vec![PathStep::Member("type".to_owned())])
    }

    /// Parses a path; the error says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > TEXT_BYTES {
            return Err(format!(
                "the path has {} bytes, at most {TEXT_BYTES} are allowed",
                text.len()
            ));
        }
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() || steps.is_empty() {
            let (step, after) = if let Some(inner) = rest.strip_prefix('[') {
                parse_bracket(inner)?
            } else if let Some(after) = rest.strip_prefix('.') {
                if steps.is_empty() {
                    return Err("the path begins with a dot".to_owned());
                }
                parse_member(after)?
            } else if steps.is_empty() {
                parse_member(rest)?
            } else {
                return Err(format!("expected a dot or [ before {rest:?}"));
            };
            steps.push(step);
            rest = after;
        }
        if steps.len() > STEPS {
            return Err(format!(
                "the path has {} steps, at most {STEPS} are allowed",
                steps.len()
            ));
        }
        if matches!(steps.first(), Some(PathStep::Index(_))) {
            return Err("a message is an object: the path must begin with a member".to_owned());
        }
        Ok(Self(steps))
    }
}

/// A plain member name, up to the next dot or bracket.
fn parse_member(text: &str) -> Result<(PathStep, &str), String> {
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() {
        return Err("a name is missing in the path".to_owned());
    }
    if let Some(odd) = name.chars().find(|c| !is_plain_char(*c)) {
        return Err(format!(
            "the name {name:?} has {odd:?} in it: write it as [\"…\"]"
        ));
    }
    Ok((PathStep::Member(name.to_owned()), rest))
}

fn is_plain_char(c: char) -> bool {
    c.is_alphanumeric() || "_-$@/:".contains(c)
}

/// The content of brackets: a number, or any name in quotes.
fn parse_bracket(text: &str) -> Result<(PathStep, &str), String> {
    if text.starts_with('"') {
        let mut reader = serde_json::Deserializer::from_str(text).into_iter::<String>();
        let name = reader.next().and_then(Result::ok);
        let rest = text.get(reader.byte_offset()..);
        return match (name, rest.and_then(|rest| rest.strip_prefix(']'))) {
            (Some(name), Some(rest)) => Ok((PathStep::Member(name), rest)),
            _ => Err("a name in brackets ends with \"]".to_owned()),
        };
    }
    let (number, rest) = text
        .split_once(']')
        .ok_or_else(|| "a bracket is not closed in the path".to_owned())?;
    let place = number.parse::<i32>();
    let near = place
        .ok()
        .filter(|at| (-MAX_INDEX..=MAX_INDEX).contains(at));
    let at = near.ok_or_else(|| {
        format!(
            "expected an integer from -{MAX_INDEX} to {MAX_INDEX} in brackets, found {number:?}"
        )
    })?;
    Ok((PathStep::Index(at), rest))
}

impl TryFrom<&str> for DataPath {
    type Error = String;

    fn try_from(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Member(name) if name.chars().all(is_plain_char) && !name.is_empty() => {
                    write!(f, "{}{name}", if at == 0 { "" } else { "." })?;
                }
                PathStep::Member(name) => write!(f, "[{name:?}]")?,
                PathStep::Index(at) => write!(f, "[{at}]")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_are_read_and_shown() {
        for text in ["a", "a.b[0].c[-1]", "a[\"b.c\"].d", "$ref.@x", "a[2][3]"] {
            let path = DataPath::parse(text).expect(text);
            assert_eq!(path.to_string(), text);
        }
        assert_eq!(DataPath::parse("a.b").expect("a path").steps().len(), 2);
        assert!(DataPath::parse("[\"a b\"].c").is_ok());
    }

    #[test]
    fn what_is_no_path_says_why() {
        for (text, why) in [
            ("", "a name is missing"),
            (".a", "begins with a dot"),
            ("a.", "a name is missing"),
            ("a..b", "a name is missing"),
            ("a b", "write it as"),
            ("a[", "not closed"),
            ("a[x]", "expected an integer"),
            ("a[16]", "from -15 to 15"),
            ("a[\"b]", "ends with"),
            ("a[0]b", "expected a dot or ["),
            ("[0].a", "must begin with a member"),
            ("a.b.c.d.e.f.g.h.i", "9 steps, at most 8"),
        ] {
            let error = DataPath::parse(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_read_reads_back(text in ".{0,40}") {
            if let Ok(path) = DataPath::parse(&text) {
                prop_assert_eq!(DataPath::parse(&path.to_string()), Ok(path));
            }
        }
    }
}
