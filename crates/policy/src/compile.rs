//! Compiles a rule's text into a [`Rule`].
//!
//! Owns which condition is allowed with which tool. Must not know layers or other rules.

use super::document::{ArgText, OneOrMore, PipeText, RuleText};
use super::error::{EntryError, RuleError};
use super::evaluation_context::ContextConditions;
use super::load::to_one_line;
use super::mcp::{self, ArgCondition, ArgTest, McpRule};
use super::pipes::PipeCondition;
use super::request::ToolClass;
use super::rule::{Area, Rule};
use super::strict;
use super::url::{HostPattern, UrlPattern};
use marshal_model::Decision;

mod conditions;

/// The purpose for which a rule names a set of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// To forbid: the patterns of every layer count.
    Forbid,
    /// To permit: only patterns of the rule's own layer group and of earlier groups count.
    Permit,
    /// To except from what a rule forbids: only patterns of layers up to the rule's own count.
    Except,
}

/// Finds a set by its name; `None` if there is none.
pub(super) type SetLookup<'f> = dyn FnMut(&str, Role) -> Option<usize> + 'f;

/// Compiles one rule. The error names the key and what is wrong with it.
pub(super) fn compile_rule(
    mut text: RuleText,
    sets: &mut SetLookup<'_>,
) -> Result<(Rule, Vec<ToolClass>), RuleError> {
    let named = !text.id.is_empty()
        && text
            .id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    if !named {
        return Err(RuleError::Id);
    }
    let decision = Decision::parse(&text.decision).ok_or_else(|| {
        let expected = "`allow`, `ask` or `deny`";
        RuleError::Value("decision", text.decision.clone(), expected)
    })?;
    let tools = parse_tool_classes(&text.tool)?;
    let when = ContextConditions::from_rule(&text, decision)?.map(Box::new);
    conditions::check(&text, &tools, decision)?;
    check_confinement(&text, when.as_deref())?;
    let permits = decision == Decision::Allow;
    let (whole, except) = match decision {
        Decision::Allow => (Role::Permit, Role::Forbid),
        _ => (Role::Forbid, Role::Except),
    };
    let mut area = |key: &'static str, word: Option<&String>, role: Role| {
        let find = |word: &String| {
            parse_area(word, role, sets).ok_or_else(|| RuleError::UnknownSet(key, word.clone()))
        };
        word.map(find).transpose()
    };
    let paths = area("paths", text.paths.as_ref(), whole)?;
    let path = area("path", text.path.as_ref(), whole)?;
    let any_path = area("any_path", text.any_path.as_ref(), Role::Forbid)?;
    let excepted = text.unless.as_ref().and_then(|u| u.paths.as_ref());
    let unless = area("unless.paths", excepted, except)?;
    let args = text.args.take().unwrap_or_default();
    let args = args
        .into_iter()
        .map(|arg| compile_argument(arg, &mut |word| area("args.path", Some(word), whole)))
        .collect::<Result<_, _>>()?;
    let any_word = text.any_word.as_deref();
    let any_word = any_word.map(|pattern| regex("any_word", pattern));
    let (url, hosts) = urls(text.url.take(), text.hosts.take())?;
    let pipe = text.pipe.take().map(pipe).transpose()?;
    let all_flags = text.all_flags.take().unwrap_or_default();
    let all_flags: Vec<Vec<String>> = all_flags.into_iter().map(|group| group.0).collect();
    for group in &all_flags {
        validate_flags("all_flags", group)?;
    }
    let rule = Rule {
        id: text.id.into(),
        decision,
        reason: to_one_line(text.reason),
        argv: compile_argv(text.argv)?,
        not_programs: text.not_programs.unwrap_or_default(),
        exact: exact(text.exact)?,
        globals: checked("globals", text.globals)?,
        paths: paths.or(path),
        any_path,
        not_flags: checked("not_flags", text.not_flags)?,
        any_flags: checked("any_flags", text.any_flags)?,
        all_flags,
        only_flags: text
            .only_flags
            .map(|list| validate_flags("only_flags", &list).map(|()| list))
            .transpose()?,
        not_words: text.not_words.unwrap_or_default(),
        any_word: any_word.transpose()?,
        min_operands: text.min_operands,
        max_operands: text.max_operands,
        operands_need: text
            .operands_need
            .map(|flag| validate_flags("operands_need", std::slice::from_ref(&flag)).map(|()| flag))
            .transpose()?,
        unless,
        pipe,
        url,
        hosts,
        methods: methods(text.methods, permits)?,
        mcp: McpRule {
            server: globs("server", text.server)?,
            name: globs("name", text.name)?,
            args,
        },
        is_any_command: text.any_command,
        is_own_program: text.program.is_some(),
        needs_harmless_script: text.harmless_script,
        when,
        is_dry_run: false,
        #[cfg(any(test, feature = "test-rules"))]
        fault: text.fault,
    };
    Ok((rule, tools))
}

/// Checks the keys that rely on the sandbox or on the workspace as a whole.
fn check_confinement(text: &RuleText, when: Option<&ContextConditions>) -> Result<(), RuleError> {
    if text.program.as_ref().is_some_and(|place| place != "inside") {
        return Err(RuleError::CanOnly("`program`", "be `inside`"));
    }
    if text.any_command && !when.is_some_and(ContextConditions::requires_confinement) {
        return Err(RuleError::AnyCommandUnconfined);
    }
    Ok(())
}

fn regex(key: &'static str, text: &str) -> Result<regex::Regex, RuleError> {
    regex::Regex::new(text).map_err(|_| EntryError::Regex.of(key, text))
}

type Urls = (Vec<UrlPattern>, Vec<HostPattern>);

fn urls(url: Option<OneOrMore>, hosts: Option<OneOrMore>) -> Result<Urls, RuleError> {
    let mut urls = Vec::new();
    for pattern in url.map(|u| u.0).unwrap_or_default() {
        let read = UrlPattern::parse(&pattern);
        urls.push(read.map_err(|why| EntryError::Url(why).of("url", &pattern))?);
    }
    let mut found = Vec::new();
    for pattern in hosts.map(|h| h.0).unwrap_or_default() {
        let read = HostPattern::parse(&pattern);
        found.push(read.map_err(|why| EntryError::Url(why).of("hosts", &pattern))?);
    }
    Ok((urls, found))
}

fn methods(text: Option<OneOrMore>, permits: bool) -> Result<Vec<String>, RuleError> {
    let methods = text.map(|m| m.0).unwrap_or_default();
    let odd = |m: &&String| m.is_empty() || !m.bytes().all(|b| b.is_ascii_uppercase());
    match methods.iter().find(odd) {
        Some(odd) if permits => Err(EntryError::Method.of("methods", odd)),
        Some(odd) => Err(EntryError::MethodAnyCase.of("methods", odd)),
        None => Ok(methods),
    }
}

fn globs(
    key: &'static str,
    text: Option<OneOrMore>,
) -> Result<Vec<globset::GlobMatcher>, RuleError> {
    let names = text.map(|names| names.0).unwrap_or_default();
    let globs = names.iter().map(|name| mcp::compile_glob(key, name));
    globs.collect()
}

/// The condition on an argument; an entry must have exactly one.
fn compile_argument(
    text: ArgText,
    area: &mut dyn FnMut(&String) -> Result<Option<Area>, RuleError>,
) -> Result<ArgCondition, RuleError> {
    if !text.at.is_empty() && !text.at.starts_with('/') {
        return Err(RuleError::ArgumentPlace(text.at));
    }
    let mut tests = Vec::new();
    if let Some(words) = text.is {
        tests.push(ArgTest::Is(words.0));
    }
    if let Some(pattern) = &text.glob {
        tests.push(ArgTest::Glob(mcp::compile_glob("args", pattern)?));
    }
    if let Some(pattern) = &text.regex {
        let anywhere = regex("args", pattern)?;
        let whole = regex("args", &format!("\\A(?:{pattern})\\z"))?;
        tests.push(ArgTest::Regex(anywhere, whole));
    }
    if text.min.is_some() || text.max.is_some() {
        let least = text.min.unwrap_or(f64::NEG_INFINITY);
        let most = text.max.unwrap_or(f64::INFINITY);
        if least.is_nan() || most.is_nan() || least > most {
            return Err(RuleError::ArgumentRange);
        }
        tests.push(ArgTest::Range(least, most));
    }
    if let Some(word) = &text.path {
        tests.extend(area(word)?.map(ArgTest::Path));
    }
    match text.absent {
        Some(true) => tests.push(ArgTest::Absent),
        Some(false) => return Err(RuleError::CanOnly("`args`: `absent`", "be true")),
        None => {}
    }
    let mut tests = tests.into_iter();
    match (tests.next(), tests.next()) {
        (Some(test), None) => Ok(ArgCondition { at: text.at, test }),
        _ => Err(EntryError::ArgumentTests.of("args", &text.at)),
    }
}

fn pipe(text: PipeText) -> Result<PipeCondition, RuleError> {
    let mut names = text.from.0.iter().chain(&text.to.0);
    if names.any(|name| name.is_empty() || name.contains('/')) {
        return Err(RuleError::Directory("`pipe` names programs"));
    }
    Ok(PipeCondition {
        from: text.from.0,
        to: text.to.0,
    })
}

fn parse_tool_classes(text: &OneOrMore) -> Result<Vec<ToolClass>, RuleError> {
    let expected = "`shell`, `read`, `write`, `edit`, `delete`, `move`, `fetch` or `mcp`";
    text.0
        .iter()
        .map(|word| match ToolClass::parse(word) {
            None | Some(ToolClass::Unknown) => {
                Err(RuleError::Value("tool", word.clone(), expected))
            }
            Some(class) => Ok(class),
        })
        .collect()
}

fn parse_area(word: &str, role: Role, sets: &mut SetLookup<'_>) -> Option<Area> {
    Some(match word {
        "inside" => Area::Inside,
        "outside" => Area::Outside,
        "dynamic" => Area::Dynamic,
        name => Area::Set(sets(name, role)?),
    })
}

fn compile_argv(argv: Option<Vec<OneOrMore>>) -> Result<Vec<Vec<String>>, RuleError> {
    let tokens: Vec<Vec<String>> = argv.unwrap_or_default().into_iter().map(|t| t.0).collect();
    if tokens
        .first()
        .is_some_and(|names| names.iter().any(|n| n.is_empty() || n.contains('/')))
    {
        return Err(RuleError::Directory("`argv` begins with a program's name"));
    }
    Ok(tokens)
}

fn exact(texts: Option<Vec<String>>) -> Result<Vec<Vec<String>>, RuleError> {
    let mut out = Vec::new();
    for text in texts.unwrap_or_default() {
        let plain = strict::parse_plain(&text)
            .map_err(|e| EntryError::NotPlain(e.what).of("exact", &text))?;
        match plain.commands.as_slice() {
            [one]
                if plain.texts.is_empty()
                    && one.assignments.is_empty()
                    && one.redirects.is_empty()
                    && !one.timed =>
            {
                out.push(one.words.iter().map(|w| w.text.clone()).collect());
            }
            _ => return Err(EntryError::NotOneCommand.of("exact", &text)),
        }
    }
    Ok(out)
}

fn checked(key: &'static str, list: Option<Vec<String>>) -> Result<Vec<String>, RuleError> {
    let list = list.unwrap_or_default();
    validate_flags(key, &list)?;
    Ok(list)
}

fn validate_flags(key: &'static str, list: &[String]) -> Result<(), RuleError> {
    match list
        .iter()
        .find(|flag| flag.len() < 2 || !flag.starts_with('-'))
    {
        Some(flag) => Err(EntryError::Flag.of(key, flag)),
        None => Ok(()),
    }
}
