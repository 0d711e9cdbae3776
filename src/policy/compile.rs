//! From a rule's text to a [`Rule`].
//!
//! Owns which condition belongs to which tool. Must not know layers or other rules.

use std::collections::HashMap;

use super::document::{OneOrMore, RuleText};
use super::load::one_line;
use super::request::ToolClass;
use super::rule::{Area, Rule};
use super::strict;
use super::url::UrlPattern;
use crate::model::Decision;

/// Compiles one rule; the error says what is wrong with it, naming the key.
pub(super) fn rule(
    text: RuleText,
    sets: &HashMap<String, usize>,
) -> Result<(Rule, Vec<ToolClass>), String> {
    let named = !text.id.is_empty()
        && text
            .id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    if !named {
        return Err("`id` must be letters, digits, `-` and `_`".to_owned());
    }
    let decision = Decision::from_word(&text.decision).ok_or_else(|| {
        format!(
            "`decision` is `{}`, expected `allow`, `ask` or `deny`",
            text.decision
        )
    })?;
    let tools = tools(&text.tool)?;
    check_conditions(&text, &tools)?;
    if decision == Decision::Allow
        && tools.contains(&ToolClass::Shell)
        && text.argv.is_none()
        && text.exact.is_none()
    {
        return Err("a rule that allows `shell` needs `argv` or `exact`".to_owned());
    }
    let area = |key: &str, word: Option<&String>| -> Result<Option<Area>, String> {
        word.map(|word| {
            area(word, sets)
                .ok_or_else(|| format!("`{key}` names `{word}`, which is no set of paths"))
        })
        .transpose()
    };
    let paths = area("paths", text.paths.as_ref())?;
    let path = area("path", text.path.as_ref())?;
    let any_word = text.any_word.as_deref().map(|word| {
        regex::Regex::new(word)
            .map_err(|_| format!("`any_word`: `{word}` is no regular expression"))
    });
    let mut url = Vec::new();
    for pattern in text.url.map(|u| u.0).unwrap_or_default() {
        url.push(
            UrlPattern::parse(&pattern).map_err(|why| format!("`url`: `{pattern}` has {why}"))?,
        );
    }
    let all_flags: Vec<Vec<String>> = text
        .all_flags
        .unwrap_or_default()
        .into_iter()
        .map(|group| group.0)
        .collect();
    for group in &all_flags {
        flags("all_flags", group)?;
    }
    Ok((
        Rule {
            id: text.id.into(),
            decision,
            reason: one_line(text.reason),
            argv: tokens(text.argv)?,
            exact: exact(text.exact)?,
            globals: checked("globals", text.globals)?,
            paths: paths.or(path),
            any_path: area("any_path", text.any_path.as_ref())?,
            not_flags: checked("not_flags", text.not_flags)?,
            any_flags: checked("any_flags", text.any_flags)?,
            all_flags,
            only_flags: text
                .only_flags
                .map(|list| flags("only_flags", &list).map(|()| list))
                .transpose()?,
            not_words: text.not_words.unwrap_or_default(),
            any_word: any_word.transpose()?,
            min_operands: text.min_operands,
            max_operands: text.max_operands,
            operands_need: text
                .operands_need
                .map(|flag| flags("operands_need", std::slice::from_ref(&flag)).map(|()| flag))
                .transpose()?,
            unless: area(
                "unless.paths",
                text.unless.as_ref().and_then(|u| u.paths.as_ref()),
            )?,
            url,
        },
        tools,
    ))
}

fn tools(text: &OneOrMore) -> Result<Vec<ToolClass>, String> {
    text.0
        .iter()
        .map(|word| match ToolClass::from_word(word) {
            None | Some(ToolClass::Unknown) => Err(format!(
                "`tool` is `{word}`, expected `shell`, `read`, `write` or `fetch`"
            )),
            Some(class) => Ok(class),
        })
        .collect()
}

/// Refuses conditions that the rule's tools can never meet: they would look like a limit and be
/// none.
fn check_conditions(text: &RuleText, tools: &[ToolClass]) -> Result<(), String> {
    let shell = [
        ("argv", text.argv.is_some()),
        ("exact", text.exact.is_some()),
        ("globals", text.globals.is_some()),
        ("paths", text.paths.is_some()),
        ("any_path", text.any_path.is_some()),
        ("not_flags", text.not_flags.is_some()),
        ("any_flags", text.any_flags.is_some()),
        ("all_flags", text.all_flags.is_some()),
        ("only_flags", text.only_flags.is_some()),
        ("not_words", text.not_words.is_some()),
        ("any_word", text.any_word.is_some()),
        ("min_operands", text.min_operands.is_some()),
        ("max_operands", text.max_operands.is_some()),
        ("operands_need", text.operands_need.is_some()),
        ("unless", text.unless.is_some()),
    ];
    let refuse = |key: &str, needs: &str| Err(format!("`{key}` is only for `{needs}`"));
    for (key, given) in shell {
        if given && tools.iter().any(|t| *t != ToolClass::Shell) {
            return refuse(key, "tool = \"shell\"");
        }
    }
    let file = |t: &ToolClass| matches!(t, ToolClass::Read | ToolClass::Write);
    if text.path.is_some() && !tools.iter().all(file) {
        return refuse("path", "tool = \"read\" and \"write\"");
    }
    if text.url.is_some() && tools.iter().any(|t| *t != ToolClass::Fetch) {
        return refuse("url", "tool = \"fetch\"");
    }
    if text.exact.is_some() && shell.iter().any(|(key, given)| *given && *key != "exact") {
        return Err("`exact` stands alone: it names whole commands".to_owned());
    }
    if text.unless.as_ref().is_some_and(|u| u.paths.is_none()) {
        return Err("`unless` is empty".to_owned());
    }
    Ok(())
}

fn area(word: &str, sets: &HashMap<String, usize>) -> Option<Area> {
    Some(match word {
        "inside" => Area::Inside,
        "outside" => Area::Outside,
        "dynamic" => Area::Dynamic,
        name => Area::Set(*sets.get(name)?),
    })
}

fn tokens(argv: Option<Vec<OneOrMore>>) -> Result<Vec<Vec<String>>, String> {
    let tokens: Vec<Vec<String>> = argv.unwrap_or_default().into_iter().map(|t| t.0).collect();
    if tokens
        .first()
        .is_some_and(|names| names.iter().any(|n| n.is_empty() || n.contains('/')))
    {
        return Err("`argv` begins with a program's name, without a directory".to_owned());
    }
    Ok(tokens)
}

fn exact(texts: Option<Vec<String>>) -> Result<Vec<Vec<String>>, String> {
    let mut out = Vec::new();
    for text in texts.unwrap_or_default() {
        let commands =
            strict::read(&text).map_err(|e| format!("`exact`: `{text}` has {}", e.what))?;
        match commands.as_slice() {
            [one] if one.assignments.is_empty() && one.redirects.is_empty() && !one.timed => {
                out.push(one.words.iter().map(|w| w.text.clone()).collect());
            }
            _ => return Err(format!("`exact`: `{text}` is not one simple command")),
        }
    }
    Ok(out)
}

fn checked(key: &str, list: Option<Vec<String>>) -> Result<Vec<String>, String> {
    let list = list.unwrap_or_default();
    flags(key, &list)?;
    Ok(list)
}

fn flags(key: &str, list: &[String]) -> Result<(), String> {
    match list
        .iter()
        .find(|flag| flag.len() < 2 || !flag.starts_with('-'))
    {
        Some(flag) => Err(format!(
            "`{key}`: `{flag}` is no flag, it must begin with `-`"
        )),
        None => Ok(()),
    }
}
