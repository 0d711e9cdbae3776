//! Reads a table, key by key. What is faulty is noted and left out.

use toml::de::DeValue;

use super::path::DataPath;
use super::rule::{Condition, EndsTurn, Expected, Rule, RuleEvent, Told};
use super::template::{Hole, Template};
use super::{Accepted, DialectTable, OtherTypes, RULES, Replies, Unanswered};
use crate::config::error::{one_of, quoted};
use crate::config::form::Form;
use crate::config::nearest::nearest;
use crate::config::table::{Found, Item, Section};
use crate::model::TurnOutcome;

/// Conditions of one rule, values of one condition, types of one rule, words of one table.
const LIST: usize = 64;

/// What the schema says of a name.
const NAME: &str = "^[a-z0-9][a-z0-9._-]{0,31}$";
/// What it says of a path, and of a template.
const PATH: &str = "^.{1,256}$";
const TEMPLATE: &str = r"^\s*\{[\s\S]*\}\s*$";
/// What it says of a type and of a word.
const TYPE: &str = "^.{1,128}$";

/// How a turn can end by an agent's word.
const OUTCOMES: &[TurnOutcome] = &[
    TurnOutcome::Completed,
    TurnOutcome::Limited,
    TurnOutcome::Refused,
    TurnOutcome::Cancelled,
    TurnOutcome::Failed,
];

/// Reads the whole table. `None` if it has no prompt, which is noted.
pub(super) fn table(root: &Section<'_>) -> Option<DialectTable> {
    let session = &[Hole::Session, Hole::Workspace][..];
    let name = root.item("name").and_then(|item| name(&item));
    let kind = path(root, "type").unwrap_or_else(DataPath::of_type);
    let turn = path(root, "turn");
    let ignored = root.item("ignore").map(|item| texts(&item, TYPE));
    let others = root.word::<OtherTypes>("others", &[]);
    let version = root.section("version");
    let accepted = version.item("accept").map(|item| accepted(&item));
    version.close(&[], &[]);
    let early = root.boolean("early");
    let open = root.section("open");
    let first = templates(&open, "send", &[Hole::Workspace]);
    open.close(&[], &[]);
    let resume = root.section("resume");
    let again = templates(&resume, "send", session);
    resume.close(&[], &[]);
    let (prompt, attached) = prompt(&root.section("prompt"));
    let cancel = message(root, "cancel", session);
    let slash = message(root, "slash", &[Hole::Command, Hole::Args, Hole::Session]);
    let goodbye = root.section("goodbye");
    let (farewell, close_input) = (
        template(&goodbye, "send", session),
        goodbye.boolean("close_input"),
    );
    goodbye.close(&[], &[]);
    let permission = permission(root);
    let rules = rules(root);
    root.close(
        &[],
        &[
            ("rule", "on"),
            ("rules", "on"),
            ("event", "on"),
            ("ready", "on"),
        ],
    );
    let table = DialectTable {
        name: name.unwrap_or_else(|| "custom".to_owned()),
        digest: String::new(),
        kind,
        turn,
        ignored: ignored.unwrap_or_default(),
        others: others.map_or(OtherTypes::Tell, |found| found.value),
        accepted: accepted.unwrap_or_default(),
        early: early.is_some_and(|found| found.value),
        open: first,
        resume: again,
        prompt: prompt?,
        attached,
        cancel,
        slash,
        close_input: close_input.map_or(farewell.is_none(), |found| found.value),
        goodbye: farewell,
        permission,
        rules,
    };
    agree(root, &table);
    Some(table)
}

/// What the keys must agree on.
fn agree(root: &Section<'_>, table: &DialectTable) {
    let fault = |key: &'static str, message: &str, help: &str| {
        let item = root.item(key);
        let place = item.map_or(root.place.clone(), |item| item.place);
        root.ledger.fault(&place, message, Some(help.to_owned()));
    };
    if root.ledger.is_faulty() {
        return;
    }
    if !table.has(RuleEvent::End) {
        let help = "add an [[on]] with event = \"end\"";
        fault(
            "on",
            "no rule ends a turn: it would run until its deadline",
            help,
        );
    }
    match (table.asks(), table.has(RuleEvent::Permission)) {
        (true, false) => fault(
            "permission",
            "there are answers, but no rule with event = \"permission\"",
            "add one, or remove [permission]",
        ),
        (false, true) => fault(
            "on",
            "a rule has event = \"permission\", but there is no [permission] with what is answered",
            "add [permission] with allow and deny",
        ),
        _ => {}
    }
    if table.has(RuleEvent::Withdraw) && !table.asks() {
        let help = "remove the rule with event = \"withdraw\"";
        fault("on", "nothing is asked that could be withdrawn", help);
    }
    let mut greetings = table
        .rules
        .iter()
        .filter(|rule| rule.event == RuleEvent::Ready);
    let version = super::Field::Version;
    if !table.accepted.is_empty() && !greetings.any(|rule| rule.path(version).is_some()) {
        fault(
            "version",
            "versions are accepted, but no rule with event = \"ready\" says where the version stands",
            "give that rule a path, for example: version = \"protocol\"",
        );
    }
    if table.accepted.is_empty() && greetings.any(|rule| rule.path(version).is_some()) {
        let help = "for example: [version] accept = [1]";
        fault("on", "a version is read, but none is accepted", help);
    }
    if table.slash.is_some() != table.has(RuleEvent::SlashResult) {
        let help = "a slash command is told by [slash] and ends by event = \"slash_result\"";
        fault("slash", "[slash] and its result go together", help);
    }
    if table.prompt.has(Hole::Attached) != table.attached.is_some() {
        let help = "files stand in prompt.send as \"{attached}\", each by prompt.attached";
        fault("prompt", "{attached} and prompt.attached go together", help);
    }
}

fn name(item: &Item<'_>) -> Option<String> {
    let found = item.text_like(NAME)?.value;
    let begins = found.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    if begins && found.len() <= 32 && found.chars().all(plain) {
        return Some(found);
    }
    item.fault(
        format!(
            "expected [a-z0-9][a-z0-9._-]{{0,31}}, found {}",
            quoted(&found)
        ),
        None,
    );
    None
}

fn path(section: &Section<'_>, key: &'static str) -> Option<DataPath> {
    path_of(&section.item(key)?)
}

fn path_of(item: &Item<'_>) -> Option<DataPath> {
    let found = item.text_like(PATH)?;
    DataPath::parse(&found.value)
        .map_err(|message| item.fault(message, None))
        .ok()
}

fn template(section: &Section<'_>, key: &'static str, holes: &[Hole]) -> Option<Template> {
    template_of(&section.item(key)?, holes)
}

fn template_of(item: &Item<'_>, holes: &[Hole]) -> Option<Template> {
    let found = item.text_like(TEMPLATE)?;
    Template::parse(&found.value, holes)
        .map_err(|(message, help)| item.fault(message, help))
        .ok()
}

/// One template, or several in a list.
fn templates(section: &Section<'_>, key: &'static str, holes: &[Hole]) -> Vec<Template> {
    let Some(item) = section.item(key) else {
        return Vec::new();
    };
    item.may_hold(Form::Like(TEMPLATE));
    let Some(items) = several(&item) else {
        return Vec::from_iter(template_of(&item, holes));
    };
    items
        .iter()
        .filter_map(|item| template_of(item, holes))
        .collect()
}

/// The elements of a list, if it is one.
fn several<'a>(item: &Item<'a>) -> Option<Vec<Item<'a>>> {
    item.may_hold(Form::Array);
    if !matches!(item.value(), DeValue::Array(_)) {
        return None;
    }
    let items = item.items("a list")?;
    if items.len() > LIST {
        let message = format!(
            "the list has {} elements, at most {LIST} can be",
            items.len()
        );
        item.fault(message, None);
    }
    Some(items)
}

/// One text, or several in a list.
fn texts(item: &Item<'_>, pattern: &'static str) -> Vec<String> {
    item.may_hold(Form::Like(pattern));
    let one = |item: &Item<'_>| item.text_like(pattern).map(|found| found.value);
    match several(item) {
        Some(items) => items.iter().filter_map(one).collect(),
        None => Vec::from_iter(one(item)),
    }
}

fn accepted(item: &Item<'_>) -> Vec<Accepted> {
    let Some(items) = several(item) else {
        item.wrong::<()>("a list of versions such as [1] or [\"2.*\"]");
        return Vec::new();
    };
    if items.is_empty() {
        item.fault(
            "the list is empty: no version at all would be accepted",
            None,
        );
    }
    let one = |item: &Item<'_>| match scalar(item)? {
        Expected::Integer(n) => Some(Accepted::Integer(n)),
        Expected::Boolean(_) => item.wrong("an integer or a string"),
        Expected::Text(text) => match text.strip_suffix('*') {
            Some("") => {
                let help = "remove [version] if any will do";
                item.fault("\"*\" accepts every version", Some(help.to_owned()));
                None
            }
            Some(begin) => Some(Accepted::Begins(begin.to_owned())),
            None => Some(Accepted::Text(text)),
        },
    };
    items.iter().filter_map(one).collect()
}

/// A value that is compared with.
fn scalar(item: &Item<'_>) -> Option<Expected> {
    item.may_hold(Form::Boolean);
    match item.value() {
        DeValue::Boolean(value) => Some(Expected::Boolean(*value)),
        DeValue::Integer(_) => item
            .integer(&(i64::MIN..=i64::MAX))
            .map(|found| Expected::Integer(found.value)),
        DeValue::String(_) => item.text().map(|found| Expected::Text(found.value)),
        _ => {
            item.may_hold(Form::Text);
            item.may_hold(Form::Integer {
                least: i64::MIN.to_string(),
                most: i64::MAX.to_string(),
            });
            item.wrong("a string, an integer, true or false")
        }
    }
}

fn prompt(section: &Section<'_>) -> (Option<Template>, Option<Template>) {
    let holes = [Hole::Prompt, Hole::Attached, Hole::Session, Hole::Workspace];
    let item = section.item("send");
    let send = item.as_ref().and_then(|item| template_of(item, &holes));
    if let (Some(item), Some(send)) = (&item, &send)
        && !send.has(Hole::Prompt)
    {
        item.fault(
            "the template has no {prompt}: the agent would hear nothing",
            None,
        );
    }
    if item.is_none() {
        let help = "for example: send = '{\"type\": \"prompt\", \"text\": \"{prompt}\"}'";
        let message = "a table needs prompt.send, what the agent is told";
        section
            .ledger
            .fault(&section.place, message, Some(help.to_owned()));
    }
    let attached = template(section, "attached", &[Hole::Path, Hole::Text]);
    section.close(&[], &[]);
    (send, attached)
}

/// The one template of a table that has nothing else.
fn message(root: &Section<'_>, key: &'static str, holes: &[Hole]) -> Option<Template> {
    let is_there = root.item(key).is_some();
    let section = root.section(key);
    let send = template(&section, "send", holes);
    if is_there && section.item("send").is_none() {
        let message = format!("[{key}] needs send, what the agent is told");
        section.ledger.fault(&section.place, message, None);
    }
    section.close(&[], &[]);
    send
}

fn permission(root: &Section<'_>) -> Option<Replies> {
    let is_there = root.item("permission").is_some();
    let section = root.section("permission");
    let allow = reply(&section, "allow", &[Hole::Id, Hole::Input, Hole::Session]);
    let deny = reply(&section, "deny", &[Hole::Id, Hole::Reason, Hole::Session]);
    let unanswered = section.word::<Unanswered>("unanswered", &[]);
    section.close(&[], &[]);
    if !is_there {
        return None;
    }
    if let (Some(allow), Some(deny)) = (&allow, &deny)
        && allow == deny
    {
        let message = "allow and deny say the same: the agent could not tell them apart";
        section.ledger.fault(&section.place, message, None);
    }
    Some(Replies {
        allow: allow?,
        deny: deny?,
        unanswered: unanswered.map_or(Unanswered::Deny, |found| found.value),
    })
}

/// One of the two answers: needed if there is one at all, and of no use without the request's id.
fn reply(section: &Section<'_>, key: &'static str, holes: &[Hole]) -> Option<Template> {
    let Some(item) = section.item(key) else {
        if section.is_there() {
            let message = format!("[permission] needs {key}");
            section.ledger.fault(&section.place, message, None);
        }
        return None;
    };
    let template = template_of(&item, holes)?;
    if !template.has(Hole::Id) {
        let message = "the answer has no {id}: nobody could tell what it answers";
        item.fault(message, None);
    }
    Some(template)
}

fn rules(root: &Section<'_>) -> Vec<Rule> {
    let Some(item) = root.item("on") else {
        let message = "a table needs rules, [[on]]: what the agent's messages mean";
        root.ledger.fault(&root.place, message, None);
        return Vec::new();
    };
    let Some(items) = item.items("an array of tables, [[on]]") else {
        return Vec::new();
    };
    if items.len() > RULES {
        let message = format!(
            "the table has {} rules, at most {RULES} can be",
            items.len()
        );
        item.fault(message, None);
        return Vec::new();
    }
    let sections = items.iter().filter_map(Item::section);
    sections.filter_map(|section| rule(&section)).collect()
}

fn rule(section: &Section<'_>) -> Option<Rule> {
    let kinds = section.item("type").map(|item| texts(&item, TYPE));
    let has_event = section.item("event").is_some();
    let event = section.word::<RuleEvent>("event", &[]);
    for (key, is_there) in [("type", kinds.is_some()), ("event", has_event)] {
        if !is_there {
            let message = format!("a rule needs {key}");
            section.ledger.fault(&section.place, message, None);
        }
    }
    let when = conditions(section, "when");
    let unless = conditions(section, "unless");
    let Some(Found { value: event, .. }) = event else {
        // Which keys it may have is not known: all of them, and none is missed.
        for event in RuleEvent::ALL {
            told(section, *event, false);
            fields(section, *event, false);
        }
        return None;
    };
    let told = told(section, event, true);
    let fields = fields(section, event, true);
    section.close(&[], &[]);
    Some(Rule {
        kinds: kinds?,
        when,
        unless,
        event,
        fields,
        told: told?,
    })
}

/// Where the values of an event stand.
fn fields(
    section: &Section<'_>,
    event: RuleEvent,
    misses: bool,
) -> Vec<(super::Field, bool, DataPath)> {
    let mut out = Vec::new();
    for (field, is_needed) in event.fields() {
        match section.item(field.word()) {
            Some(item) => out.extend(path_of(&item).map(|path| (*field, *is_needed, path))),
            None if *is_needed && misses => {
                let message = format!("a rule with event = \"{event}\" needs {field}, a path");
                section.ledger.fault(&section.place, message, None);
            }
            None => {}
        }
    }
    out
}

fn conditions(section: &Section<'_>, key: &'static str) -> Vec<Condition> {
    let Some(inner) = section.item(key).and_then(|item| item.section()) else {
        return Vec::new();
    };
    let named = inner.named(PATH);
    if named.len() > LIST {
        let message = format!("{} conditions, at most {LIST} can be", named.len());
        section.ledger.fault(&inner.place, message, None);
    }
    let one = |(name, item): (String, Item<'_>)| {
        let path = DataPath::parse(&name).map_err(|message| item.fault(message, None));
        let one_of = match several(&item) {
            Some(items) => items.iter().filter_map(scalar).collect(),
            None => Vec::from_iter(scalar(&item)),
        };
        if one_of.is_empty() && matches!(item.value(), DeValue::Array(_)) {
            item.fault("the list is empty: nothing could ever fit", None);
        }
        Some(Condition {
            path: path.ok()?,
            one_of,
        })
    };
    named.into_iter().filter_map(one).collect()
}

/// What else an event has; `None` if it lacks what it needs.
fn told(section: &Section<'_>, event: RuleEvent, misses: bool) -> Option<Told> {
    match event {
        RuleEvent::End => {
            let words = section.item("outcomes").and_then(|item| item.section());
            let by_word: Vec<_> = words
                .map(|words| words.named(TYPE))
                .unwrap_or_default()
                .into_iter()
                .filter_map(|(word, item)| Some((word, outcome(&item)?)))
                .collect();
            let otherwise = section.item("otherwise").and_then(|item| outcome(&item));
            let is_said = !by_word.is_empty() || section.item("otherwise").is_some();
            if misses && !is_said && section.item("outcomes").is_none() {
                let message =
                    "a rule with event = \"end\" needs outcomes or otherwise: how the turn ended";
                let help = "for example: outcomes = { stop = \"completed\", length = \"limited\" }";
                section
                    .ledger
                    .fault(&section.place, message, Some(help.to_owned()));
            }
            Some(Told::Outcome {
                by_word,
                otherwise: otherwise.unwrap_or(TurnOutcome::Failed),
            })
        }
        RuleEvent::Error => {
            let ends = section.word::<EndsTurn>("ends_turn", &[]);
            Some(Told::Ends(
                ends.map_or(EndsTurn::Rejected, |found| found.value),
            ))
        }
        RuleEvent::Send => {
            let send = template(section, "send", event.holes());
            if misses && section.item("send").is_none() {
                let message = "a rule with event = \"send\" needs send, what is said in return";
                section.ledger.fault(&section.place, message, None);
            }
            send.map(Told::Send)
        }
        _ => Some(Told::Nothing),
    }
}

fn outcome(item: &Item<'_>) -> Option<TurnOutcome> {
    let words: Vec<&'static str> = OUTCOMES.iter().map(|outcome| outcome.word()).collect();
    let found = item.text_among(&words)?;
    let outcome = OUTCOMES
        .iter()
        .find(|outcome| outcome.word() == found.value);
    if outcome.is_none() {
        let message = format!(
            "expected {}, found {}",
            one_of(&words),
            quoted(&found.value)
        );
        let help = nearest(&found.value, words.iter().copied());
        item.fault(message, help.map(|near| format!("did you mean {near}?")));
    }
    outcome.copied()
}
