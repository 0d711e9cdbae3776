//! Reads a definition, key by key. A faulty key is reported and omitted.

use toml::de::DeValue;

use super::path::DataPath;
use super::rule::{Condition, EndsTurn, EventDetail, Expected, Rule, RuleEvent};
use super::template::{Placeholder, Template};
use super::{
    AcceptedVersion, DialectDefinition, PermissionReplies, RULES, UnansweredPolicy, UnlistedTypes,
};
use crate::error::{one_of, quote};
use crate::key_types::ValueType;
use crate::nearest::nearest;
use crate::table::{Entry, Located, Section};
use marshal_model::TurnOutcome;

/// The limit of each list: conditions of a rule, values of a condition, types of a rule, words of a
/// definition.
const LIST: usize = 64;

/// The JSON-schema pattern of a name.
const NAME_PATTERN: &str = "^[a-z0-9][a-z0-9._-]{0,31}$";
/// The pattern of a path.
const PATH_PATTERN: &str = "^.{1,256}$";
/// The pattern of a template.
const TEMPLATE_PATTERN: &str = r"^\s*\{[\s\S]*\}\s*$";
/// The pattern of a type and of a word.
const TYPE_PATTERN: &str = "^.{1,128}$";

/// The outcomes that an agent's message can give a turn.
const OUTCOMES: &[TurnOutcome] = &[
    TurnOutcome::Completed,
    TurnOutcome::Limited,
    TurnOutcome::Refused,
    TurnOutcome::Cancelled,
    TurnOutcome::Failed,
];

/// Reads the whole definition. `None` if it has no prompt, which is reported.
pub(super) fn read_definition(root: &Section<'_>) -> Option<DialectDefinition> {
    let session = &[Placeholder::Session, Placeholder::Workspace][..];
    let name = root.get("name").and_then(|item| read_name(&item));
    let kind = read_path(root, "type").unwrap_or_else(DataPath::default_type_path);
    let turn = read_path(root, "turn");
    let ignored = root
        .get("ignore")
        .map(|item| read_texts(&item, TYPE_PATTERN));
    let others = root.keyword::<UnlistedTypes>("others", &[]);
    let version = root.section("version");
    let accepted = version
        .get("accept")
        .map(|item| read_accepted_versions(&item));
    version.reject_unknown_keys(&[], &[]);
    let early = root.boolean("early");
    let open = root.section("open");
    let first = read_templates(&open, "send", &[Placeholder::Workspace]);
    open.reject_unknown_keys(&[], &[]);
    let resume = root.section("resume");
    let again = read_templates(&resume, "send", session);
    resume.reject_unknown_keys(&[], &[]);
    let (prompt, attached) = read_prompt(&root.section("prompt"));
    let cancel = read_message(root, "cancel", session);
    let slash = read_message(
        root,
        "slash",
        &[
            Placeholder::Command,
            Placeholder::Args,
            Placeholder::Session,
        ],
    );
    let goodbye = root.section("goodbye");
    let (farewell, close_input) = (
        read_template(&goodbye, "send", session),
        goodbye.boolean("close_input"),
    );
    goodbye.reject_unknown_keys(&[], &[]);
    let permission = read_permission(root);
    let rules = read_rules(root);
    root.reject_unknown_keys(
        &[],
        &[
            ("rule", "on"),
            ("rules", "on"),
            ("event", "on"),
            ("ready", "on"),
        ],
    );
    let definition = DialectDefinition {
        name: name.unwrap_or_else(|| "custom".to_owned()),
        digest: String::new(),
        type_path: kind,
        turn_path: turn,
        ignored_types: ignored.unwrap_or_default(),
        unlisted_types: others.map_or(UnlistedTypes::Record, |found| found.value),
        accepted_versions: accepted.unwrap_or_default(),
        allows_early: early.is_some_and(|found| found.value),
        open: first,
        resume: again,
        prompt: prompt?,
        attachment: attached,
        cancel,
        slash,
        close_input: close_input.map_or(farewell.is_none(), |found| found.value),
        goodbye: farewell,
        permission,
        rules,
    };
    check_consistency(root, &definition);
    Some(definition)
}

/// Checks the keys against each other.
fn check_consistency(root: &Section<'_>, definition: &DialectDefinition) {
    let fault = |key: &'static str, message: &str, help: &str| {
        let item = root.get(key);
        let place = item.map_or(root.place.clone(), |item| item.place);
        root.diagnostics
            .report(&place, message, Some(help.to_owned()));
    };
    if root.diagnostics.has_errors() {
        return;
    }
    if !definition.has_rule_for(RuleEvent::End) {
        let help = "add an [[on]] with event = \"end\"";
        fault(
            "on",
            "no rule ends a turn: it would run until its deadline",
            help,
        );
    }
    match (
        definition.can_request_permission(),
        definition.has_rule_for(RuleEvent::Permission),
    ) {
        (true, false) => fault(
            "permission",
            "[permission] has answers, but no rule has event = \"permission\"",
            "add such a rule, or remove [permission]",
        ),
        (false, true) => fault(
            "on",
            "a rule has event = \"permission\", but there is no table [permission] with the answers",
            "add [permission] with allow and deny",
        ),
        _ => {}
    }
    if definition.has_rule_for(RuleEvent::Withdraw) && !definition.can_request_permission() {
        let help = "remove the rule with event = \"withdraw\"";
        fault(
            "on",
            "event = \"withdraw\" has no effect: without [permission] the agent never asks",
            help,
        );
    }
    let mut greetings = definition
        .rules
        .iter()
        .filter(|rule| rule.event == RuleEvent::Ready);
    let version = super::Field::Version;
    if !definition.accepted_versions.is_empty()
        && !greetings.any(|rule| rule.path(version).is_some())
    {
        fault(
            "version",
            "[version] accepts versions, but no rule with event = \"ready\" reads the version",
            "give that rule a path, for example: version = \"protocol\"",
        );
    }
    if definition.accepted_versions.is_empty() && greetings.any(|rule| rule.path(version).is_some())
    {
        let help = "for example: [version] accept = [1]";
        fault("on", "a version is read, but none is accepted", help);
    }
    if definition.slash.is_some() != definition.has_rule_for(RuleEvent::SlashResult) {
        let help =
            "[slash] sends a slash command, and a rule with event = \"slash_result\" ends it";
        fault("slash", "[slash] and its result go together", help);
    }
    if definition.prompt.contains(Placeholder::Attached) != definition.attachment.is_some() {
        let help = "\"{attached}\" in prompt.send is the list of files, and prompt.attached is the form of each";
        fault("prompt", "{attached} and prompt.attached go together", help);
    }
}

fn read_name(item: &Entry<'_>) -> Option<String> {
    let found = item.text_like(NAME_PATTERN)?.value;
    let begins = found.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    if begins && found.len() <= 32 && found.chars().all(plain) {
        return Some(found);
    }
    item.report(
        format!(
            "expected [a-z0-9][a-z0-9._-]{{0,31}}, found {}",
            quote(&found)
        ),
        None,
    );
    None
}

fn read_path(section: &Section<'_>, key: &'static str) -> Option<DataPath> {
    parse_path(&section.get(key)?)
}

fn parse_path(item: &Entry<'_>) -> Option<DataPath> {
    let found = item.text_like(PATH_PATTERN)?;
    DataPath::parse(&found.value)
        .map_err(|message| item.report(message, None))
        .ok()
}

fn read_template(
    section: &Section<'_>,
    key: &'static str,
    holes: &[Placeholder],
) -> Option<Template> {
    parse_template(&section.get(key)?, holes)
}

fn parse_template(item: &Entry<'_>, holes: &[Placeholder]) -> Option<Template> {
    let found = item.text_like(TEMPLATE_PATTERN)?;
    Template::parse(&found.value, holes)
        .map_err(|(message, help)| item.report(message, help))
        .ok()
}

/// One template, or several in a list.
fn read_templates(
    section: &Section<'_>,
    key: &'static str,
    holes: &[Placeholder],
) -> Vec<Template> {
    let Some(item) = section.get(key) else {
        return Vec::new();
    };
    item.record_type(ValueType::Pattern(TEMPLATE_PATTERN));
    let Some(items) = list_elements(&item) else {
        return Vec::from_iter(parse_template(&item, holes));
    };
    items
        .iter()
        .filter_map(|item| parse_template(item, holes))
        .collect()
}

/// The elements of a list, if it is one.
fn list_elements<'a>(item: &Entry<'a>) -> Option<Vec<Entry<'a>>> {
    item.record_type(ValueType::Array);
    if !matches!(item.value(), DeValue::Array(_)) {
        return None;
    }
    let items = item.elements("a list")?;
    if items.len() > LIST {
        let message = format!(
            "the list has {} elements, at most {LIST} are allowed",
            items.len()
        );
        item.report(message, None);
    }
    Some(items)
}

/// One text, or several in a list.
fn read_texts(item: &Entry<'_>, pattern: &'static str) -> Vec<String> {
    item.record_type(ValueType::Pattern(pattern));
    let one = |item: &Entry<'_>| item.text_like(pattern).map(|found| found.value);
    match list_elements(item) {
        Some(items) => items.iter().filter_map(one).collect(),
        None => Vec::from_iter(one(item)),
    }
}

fn read_accepted_versions(item: &Entry<'_>) -> Vec<AcceptedVersion> {
    let Some(items) = list_elements(item) else {
        item.report_unexpected::<()>("a list of versions such as [1] or [\"2.*\"]");
        return Vec::new();
    };
    if items.is_empty() {
        item.report(
            "the list is empty: no version at all would be accepted",
            None,
        );
    }
    let one = |item: &Entry<'_>| match read_scalar(item)? {
        Expected::Integer(n) => Some(AcceptedVersion::Integer(n)),
        Expected::Boolean(_) => item.report_unexpected("an integer or a string"),
        Expected::Text(text) => match text.strip_suffix('*') {
            Some("") => {
                let help = "remove [version] to accept every version";
                item.report("\"*\" accepts every version", Some(help.to_owned()));
                None
            }
            Some(begin) => Some(AcceptedVersion::Prefix(begin.to_owned())),
            None => Some(AcceptedVersion::Text(text)),
        },
    };
    items.iter().filter_map(one).collect()
}

/// A value that a condition compares with.
fn read_scalar(item: &Entry<'_>) -> Option<Expected> {
    item.record_type(ValueType::Boolean);
    match item.value() {
        DeValue::Boolean(value) => Some(Expected::Boolean(*value)),
        DeValue::Integer(_) => item
            .integer(&(i64::MIN..=i64::MAX))
            .map(|found| Expected::Integer(found.value)),
        DeValue::String(_) => item.text().map(|found| Expected::Text(found.value)),
        _ => {
            item.record_type(ValueType::Text);
            item.record_type(ValueType::Integer {
                least: i64::MIN.to_string(),
                most: i64::MAX.to_string(),
            });
            item.report_unexpected("a string, an integer, true or false")
        }
    }
}

fn read_prompt(section: &Section<'_>) -> (Option<Template>, Option<Template>) {
    let holes = [
        Placeholder::Prompt,
        Placeholder::Attached,
        Placeholder::Session,
        Placeholder::Workspace,
    ];
    let item = section.get("send");
    let send = item.as_ref().and_then(|item| parse_template(item, &holes));
    if let (Some(item), Some(send)) = (&item, &send)
        && !send.contains(Placeholder::Prompt)
    {
        item.report(
            "the template has no {prompt}: the agent would get no prompt",
            None,
        );
    }
    if item.is_none() {
        let help = "for example: send = '{\"type\": \"prompt\", \"text\": \"{prompt}\"}'";
        let message = "a definition needs prompt.send, the message that carries a prompt";
        section
            .diagnostics
            .report(&section.place, message, Some(help.to_owned()));
    }
    let attached = read_template(section, "attached", &[Placeholder::Path, Placeholder::Text]);
    section.reject_unknown_keys(&[], &[]);
    (send, attached)
}

/// The one template of a definition that has nothing else.
fn read_message(root: &Section<'_>, key: &'static str, holes: &[Placeholder]) -> Option<Template> {
    let is_there = root.get(key).is_some();
    let section = root.section(key);
    let send = read_template(&section, "send", holes);
    if is_there && section.get("send").is_none() {
        let message = format!("[{key}] needs send, the message to the agent");
        section.diagnostics.report(&section.place, message, None);
    }
    section.reject_unknown_keys(&[], &[]);
    send
}

fn read_permission(root: &Section<'_>) -> Option<PermissionReplies> {
    let is_there = root.get("permission").is_some();
    let section = root.section("permission");
    let allow = read_reply(
        &section,
        "allow",
        &[Placeholder::Id, Placeholder::Input, Placeholder::Session],
    );
    let deny = read_reply(
        &section,
        "deny",
        &[Placeholder::Id, Placeholder::Reason, Placeholder::Session],
    );
    let unanswered = section.keyword::<UnansweredPolicy>("unanswered", &[]);
    section.reject_unknown_keys(&[], &[]);
    if !is_there {
        return None;
    }
    if let (Some(allow), Some(deny)) = (&allow, &deny)
        && allow == deny
    {
        let message = "allow and deny say the same: the agent could not tell them apart";
        section.diagnostics.report(&section.place, message, None);
    }
    Some(PermissionReplies {
        allow: allow?,
        deny: deny?,
        unanswered: unanswered.map_or(UnansweredPolicy::Deny, |found| found.value),
    })
}

/// One of the two answers: required if there is the other one, and useless without the request's
/// id.
fn read_reply(section: &Section<'_>, key: &'static str, holes: &[Placeholder]) -> Option<Template> {
    let Some(item) = section.get(key) else {
        if section.is_present() {
            let message = format!("[permission] needs {key}");
            section.diagnostics.report(&section.place, message, None);
        }
        return None;
    };
    let template = parse_template(&item, holes)?;
    if !template.contains(Placeholder::Id) {
        let message = "the answer has no {id}: the agent could not tell which request it answers";
        item.report(message, None);
    }
    Some(template)
}

fn read_rules(root: &Section<'_>) -> Vec<Rule> {
    let Some(item) = root.get("on") else {
        let message = "a definition needs rules, [[on]]: what the agent's messages mean";
        root.diagnostics.report(&root.place, message, None);
        return Vec::new();
    };
    let Some(items) = item.elements("an array of tables, [[on]]") else {
        return Vec::new();
    };
    if items.len() > RULES {
        let message = format!(
            "the definition has {} rules, at most {RULES} are allowed",
            items.len()
        );
        item.report(message, None);
        return Vec::new();
    }
    let sections = items.iter().filter_map(Entry::section);
    sections.filter_map(|section| read_rule(&section)).collect()
}

fn read_rule(section: &Section<'_>) -> Option<Rule> {
    let kinds = section
        .get("type")
        .map(|item| read_texts(&item, TYPE_PATTERN));
    let has_event = section.get("event").is_some();
    let event = section.keyword::<RuleEvent>("event", &[]);
    for (key, is_there) in [("type", kinds.is_some()), ("event", has_event)] {
        if !is_there {
            let message = format!("a rule needs {key}");
            section.diagnostics.report(&section.place, message, None);
        }
    }
    let when = read_conditions(section, "when");
    let unless = read_conditions(section, "unless");
    let Some(Located { value: event, .. }) = event else {
        // The event is unknown, so all keys are accepted and none is reported as unknown.
        for event in RuleEvent::ALL {
            read_event_detail(section, *event, false);
            read_fields(section, *event, false);
        }
        return None;
    };
    let detail = read_event_detail(section, event, true);
    let fields = read_fields(section, event, true);
    section.reject_unknown_keys(&[], &[]);
    Some(Rule {
        types: kinds?,
        when,
        unless,
        event,
        fields,
        detail: detail?,
    })
}

/// The paths of an event's values.
fn read_fields(
    section: &Section<'_>,
    event: RuleEvent,
    misses: bool,
) -> Vec<(super::Field, bool, DataPath)> {
    let mut out = Vec::new();
    for (field, is_needed) in event.fields() {
        match section.get(field.as_str()) {
            Some(item) => out.extend(parse_path(&item).map(|path| (*field, *is_needed, path))),
            None if *is_needed && misses => {
                let message = format!("a rule with event = \"{event}\" needs {field}, a path");
                section.diagnostics.report(&section.place, message, None);
            }
            None => {}
        }
    }
    out
}

fn read_conditions(section: &Section<'_>, key: &'static str) -> Vec<Condition> {
    let Some(inner) = section.get(key).and_then(|item| item.section()) else {
        return Vec::new();
    };
    let named = inner.named_entries(PATH_PATTERN);
    if named.len() > LIST {
        let message = format!(
            "the rule has {} conditions, at most {LIST} are allowed",
            named.len()
        );
        section.diagnostics.report(&inner.place, message, None);
    }
    let one = |(name, item): (String, Entry<'_>)| {
        let path = DataPath::parse(&name).map_err(|message| item.report(message, None));
        let one_of = match list_elements(&item) {
            Some(items) => items.iter().filter_map(read_scalar).collect(),
            None => Vec::from_iter(read_scalar(&item)),
        };
        if one_of.is_empty() && matches!(item.value(), DeValue::Array(_)) {
            item.report("the list is empty: nothing could ever match", None);
        }
        Some(Condition {
            path: path.ok()?,
            one_of,
        })
    };
    named.into_iter().filter_map(one).collect()
}

/// The other settings of an event; `None` if a required one is missing.
fn read_event_detail(section: &Section<'_>, event: RuleEvent, misses: bool) -> Option<EventDetail> {
    match event {
        RuleEvent::End => {
            let words = section.get("outcomes").and_then(|item| item.section());
            let by_word: Vec<_> = words
                .map(|words| words.named_entries(TYPE_PATTERN))
                .unwrap_or_default()
                .into_iter()
                .filter_map(|(word, item)| Some((word, read_outcome(&item)?)))
                .collect();
            let otherwise = section
                .get("otherwise")
                .and_then(|item| read_outcome(&item));
            let is_said = !by_word.is_empty() || section.get("otherwise").is_some();
            if misses && !is_said && section.get("outcomes").is_none() {
                let message =
                    "a rule with event = \"end\" needs outcomes or otherwise: how the turn ended";
                let help = "for example: outcomes = { stop = \"completed\", length = \"limited\" }";
                section
                    .diagnostics
                    .report(&section.place, message, Some(help.to_owned()));
            }
            Some(EventDetail::Outcome {
                by_reason: by_word,
                otherwise: otherwise.unwrap_or(TurnOutcome::Failed),
            })
        }
        RuleEvent::Error => {
            let ends = section.keyword::<EndsTurn>("ends_turn", &[]);
            Some(EventDetail::EndsTurn(
                ends.map_or(EndsTurn::Rejected, |found| found.value),
            ))
        }
        RuleEvent::Send => {
            let send = read_template(section, "send", event.placeholders());
            if misses && section.get("send").is_none() {
                let message = "a rule with event = \"send\" needs send, the reply to the agent";
                section.diagnostics.report(&section.place, message, None);
            }
            send.map(EventDetail::Send)
        }
        _ => Some(EventDetail::Nothing),
    }
}

fn read_outcome(item: &Entry<'_>) -> Option<TurnOutcome> {
    let words: Vec<&'static str> = OUTCOMES.iter().map(|outcome| outcome.as_str()).collect();
    let found = item.text_among(&words)?;
    let outcome = OUTCOMES
        .iter()
        .find(|outcome| outcome.as_str() == found.value);
    if outcome.is_none() {
        let message = format!("expected {}, found {}", one_of(&words), quote(&found.value));
        let help = nearest(&found.value, words.iter().copied());
        item.report(message, help.map(|near| format!("did you mean {near}?")));
    }
    outcome.copied()
}
