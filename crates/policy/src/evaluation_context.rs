//! The context of a request: its pool, agent, mode and time, and how often a rule has allowed
//! something in its turn.
//!
//! Owns the rules' conditions on the context. Reads no clock: the time is passed in. An unknown
//! value counts against a rule that allows, and for one that asks or denies.
//!
//! The session's side is in `fleet/session/permissions/policy_snapshot.rs`. Tests:
//! `tests/quick/policy/conditions.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::document::{OneOrMore, RuleText};
use super::error::{EntryError, RuleError};
use super::rule::Rule;
use marshal_model::limits::RULE_NAMES;
use marshal_model::{Decision, SandboxFact, SandboxFacts};

/// Minutes of a day.
const MINUTES_PER_DAY: u16 = 24 * 60;

/// The context of a request; a `None` is unknown.
#[derive(Debug, Clone, Copy, Default)]
pub struct EvaluationContext<'a> {
    /// The pool's name in the configuration.
    pub pool: Option<&'a str>,
    /// The agent's name in the configuration.
    pub agent: Option<&'a str>,
    /// The mode that the configuration or the client set; never the mode that the agent reports.
    pub mode: Option<&'a str>,
    /// The time of day.
    pub time_of_day: Option<TimeOfDay>,
    /// The facts about the sandbox of its child; unknown ones do not hold.
    pub sandbox: SandboxFacts,
    /// How often rules have allowed something in this turn, by rule id; `None`: never.
    pub rule_uses: Option<&'a BTreeMap<String, u32>>,
}

/// A time of day, in minutes since midnight, below 1440.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeOfDay {
    /// In the supervisor's time zone.
    pub local: u16,
    /// In UTC.
    pub utc: u16,
}

impl TimeOfDay {
    /// The times of day at a moment in seconds since 1970, where the local clock is this many
    /// seconds ahead of UTC.
    #[must_use]
    pub fn from_unix(unix: i64, offset: i32) -> Self {
        let minute = |seconds: i64| {
            u16::try_from(seconds.rem_euclid(i64::from(MINUTES_PER_DAY) * 60) / 60)
                .unwrap_or_default()
        };
        Self {
            local: minute(unix.saturating_add(i64::from(offset))),
            utc: minute(unix),
        }
    }
}

impl TimeOfDay {
    /// Reads `HH:MM`; the same time local and in UTC.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let minute = parse_minute(text).filter(|of| *of < MINUTES_PER_DAY)?;
        Some(Self {
            local: minute,
            utc: minute,
        })
    }
}

/// A rule's conditions on the context.
#[derive(Debug)]
pub(super) struct ContextConditions {
    pools: Option<Vec<String>>,
    agents: Option<Vec<String>>,
    modes: Option<Vec<String>>,
    hours: Option<Hours>,
    sandbox: Vec<SandboxFact>,
    max_per_turn: Option<u32>,
}

#[derive(Debug)]
struct Hours {
    spans: Vec<Span>,
    zone: Zone,
}

/// From one minute of the day to another, exclusive; over midnight if the end is not later.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: u16,
    until: u16,
}

#[derive(Debug, Clone, Copy)]
enum Zone {
    Local,
    /// A fixed zone: minutes ahead of UTC.
    Before(i16),
}

impl ContextConditions {
    /// Reads a rule's conditions; `None` if it has none.
    pub(super) fn from_rule(
        text: &RuleText,
        decision: Decision,
    ) -> Result<Option<Self>, RuleError> {
        let hours = match (&text.hours, &text.zone) {
            (None, Some(_)) => return Err(RuleError::ZoneAlone),
            (None, None) => None,
            (Some(spans), zone) => Some(Hours {
                spans: check_names("hours", spans)?
                    .iter()
                    .map(|span| parse_span(span))
                    .collect::<Result<_, _>>()?,
                zone: zone.as_deref().map_or(Ok(Zone::Local), parse_zone)?,
            }),
        };
        if text.max_per_turn.is_some() && decision != Decision::Allow {
            return Err(RuleError::OnlyFor(
                "max_per_turn",
                "rules that allow: rules that ask or deny apply every time",
            ));
        }
        if text.max_per_turn == Some(0) {
            return Err(RuleError::MaxPerTurnZero);
        }
        let list = |key: &'static str, of: &Option<OneOrMore>| {
            of.as_ref().map(|of| check_names(key, of)).transpose()
        };
        let when = Self {
            pools: list("pools", &text.pools)?,
            agents: list("agents", &text.agents)?,
            modes: list("modes", &text.modes)?,
            hours,
            sandbox: sandbox_facts(text, decision)?,
            max_per_turn: text.max_per_turn,
        };
        let is_empty = when.pools.is_none()
            && when.agents.is_none()
            && when.modes.is_none()
            && when.hours.is_none()
            && when.sandbox.is_empty()
            && when.max_per_turn.is_none();
        Ok((!is_empty).then_some(when))
    }

    /// Whether the rule relies on a fact of a sandbox.
    pub(super) fn relies_on_sandbox(&self) -> bool {
        !self.sandbox.is_empty()
    }

    /// Whether the rule relies on every fact of a sandbox.
    pub(super) fn requires_confinement(&self) -> bool {
        SandboxFact::ALL
            .iter()
            .all(|fact| self.sandbox.contains(fact))
    }

    pub(super) fn max_per_turn(&self) -> Option<u32> {
        self.max_per_turn
    }

    /// Whether the conditions are met. `permits`: the rule allows, so doubt counts against it.
    fn are_met(&self, occasion: &EvaluationContext<'_>, permits: bool) -> bool {
        let among = |wanted: &Option<Vec<String>>, found: Option<&str>| {
            wanted.as_ref().is_none_or(|wanted| match found {
                Some(found) => wanted.iter().any(|name| name == found),
                None => !permits,
            })
        };
        self.sandbox.iter().all(|fact| occasion.sandbox.has(*fact))
            && among(&self.pools, occasion.pool)
            && among(&self.agents, occasion.agent)
            && among(&self.modes, occasion.mode)
            && self
                .hours
                .as_ref()
                .is_none_or(|hours| match occasion.time_of_day {
                    Some(clock) => hours.contains(clock),
                    None => !permits,
                })
    }
}

impl Hours {
    fn contains(&self, clock: TimeOfDay) -> bool {
        let now = match self.zone {
            Zone::Local => clock.local,
            Zone::Before(minutes) => {
                let day = i32::from(MINUTES_PER_DAY);
                let now = (i32::from(clock.utc) + i32::from(minutes)).rem_euclid(day);
                u16::try_from(now).unwrap_or_default()
            }
        };
        self.spans.iter().any(|span| {
            if span.from < span.until {
                (span.from..span.until).contains(&now)
            } else {
                now >= span.from || now < span.until
            }
        })
    }
}

/// The sandbox that a rule relies on. Only a rule that allows can rely on one: a rule that denies or
/// asks where a fact holds would not apply where it is unknown.
fn sandbox_facts(text: &RuleText, decision: Decision) -> Result<Vec<SandboxFact>, RuleError> {
    let Some(words) = &text.sandbox else {
        return Ok(Vec::new());
    };
    if decision != Decision::Allow {
        return Err(RuleError::OnlyFor("sandbox", "rules that allow"));
    }
    parse_facts("sandbox", &words.0)
}

/// Reads a list of facts under a key of a policy.
pub(super) fn parse_facts(
    key: &'static str,
    words: &[String],
) -> Result<Vec<SandboxFact>, RuleError> {
    let parse =
        |word: &String| SandboxFact::parse(word).ok_or_else(|| EntryError::Fact.of(key, word));
    words.iter().map(parse).collect()
}

fn check_names(key: &'static str, text: &OneOrMore) -> Result<Vec<String>, RuleError> {
    if text.0.len() > RULE_NAMES {
        return Err(RuleError::TooManyEntries(key));
    }
    match text
        .0
        .iter()
        .find(|name| name.trim() != name.as_str() || name.is_empty())
    {
        Some(odd) => Err(EntryError::Blank.of(key, odd)),
        None => Ok(text.0.clone()),
    }
}

fn parse_span(text: &str) -> Result<Span, RuleError> {
    let wrong = || EntryError::Span.of("hours", text);
    let (from, until) = text.split_once('-').ok_or_else(wrong)?;
    let span = Span {
        from: parse_minute(from)
            .filter(|of| *of < MINUTES_PER_DAY)
            .ok_or_else(wrong)?,
        until: parse_minute(until).ok_or_else(wrong)?,
    };
    if span.from == span.until {
        return Err(EntryError::EmptySpan.of("hours", text));
    }
    Ok(span)
}

/// Reads `HH:MM`, up to 24:00.
fn parse_minute(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| {
        let is_two = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        is_two.then(|| text.parse::<u16>().ok()).flatten()
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let all = hours * 60 + minutes;
    (minutes < 60 && all <= MINUTES_PER_DAY).then_some(all)
}

fn parse_zone(text: &str) -> Result<Zone, RuleError> {
    match text {
        "local" => return Ok(Zone::Local),
        "utc" | "UTC" => return Ok(Zone::Before(0)),
        _ => {}
    }
    let expected = "`local`, `utc` or one like `+02:00`";
    let wrong = || RuleError::Value("zone", text.to_owned(), expected);
    let sign = match text.as_bytes().first() {
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return Err(wrong()),
    };
    let minutes = parse_minute(&text[1..])
        .filter(|of| *of <= 14 * 60)
        .and_then(|of| i16::try_from(of).ok())
        .ok_or_else(wrong)?;
    Ok(Zone::Before(sign * minutes))
}

/// The rules that are active now.
#[derive(Debug, Clone, Default)]
pub(super) struct ActiveRules<'a> {
    /// The context; `None`: all rules are active, whatever their conditions on it.
    context: Option<EvaluationContext<'a>>,
    /// Rules that have reached their limit per turn.
    exhausted: Vec<Arc<str>>,
}

impl<'a> ActiveRules<'a> {
    pub(super) fn in_context(occasion: &EvaluationContext<'a>) -> Self {
        Self {
            context: Some(*occasion),
            exhausted: Vec::new(),
        }
    }

    /// For examples of rules: an example shows what the rule means while it is active.
    pub(super) fn all() -> Self {
        Self::default()
    }

    pub(super) fn without_rules(self, spent: Vec<Arc<str>>) -> Self {
        Self {
            exhausted: spent,
            ..self
        }
    }

    /// Whether a rule is active.
    pub(super) fn is_active(&self, rule: &Rule) -> bool {
        let Some(when) = &rule.when else { return true };
        let holds = |occasion: &EvaluationContext<'_>| {
            when.are_met(occasion, rule.decision == Decision::Allow)
        };
        self.context.as_ref().is_none_or(holds) && !self.exhausted.contains(&rule.id)
    }

    /// The facts about the sandbox; `None`: any sandbox.
    pub(super) fn sandbox(&self) -> Option<SandboxFacts> {
        self.context.map(|context| context.sandbox)
    }

    /// Whether a rule with a limit per turn may allow this many more.
    pub(super) fn has_uses_left(&self, id: &str, most: u32, more: u32) -> bool {
        let Some(occasion) = &self.context else {
            return true;
        };
        let used = occasion.rule_uses.and_then(|used| used.get(id).copied());
        used.unwrap_or(0).saturating_add(more) <= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn when(text: &str, decision: Decision) -> Result<Option<ContextConditions>, RuleError> {
        let text = format!("id = \"x\"\ndecision = \"allow\"\ntool = \"shell\"\n{text}");
        ContextConditions::from_rule(&toml::from_str(&text).expect("a rule"), decision)
    }

    #[test]
    fn hours_go_over_midnight_and_end_before_their_end() {
        let at = |text: &str, clock: &str| {
            let when = when(text, Decision::Allow).expect("good").expect("some");
            let minute = parse_minute(clock).expect("a time");
            let clock = Some(TimeOfDay {
                local: minute,
                utc: (minute + MINUTES_PER_DAY - 120) % MINUTES_PER_DAY,
            });
            when.are_met(
                &EvaluationContext {
                    time_of_day: clock,
                    ..EvaluationContext::default()
                },
                true,
            )
        };
        let night = "hours = \"22:00-06:00\"";
        for (clock, holds) in [
            ("22:00", true),
            ("23:59", true),
            ("00:00", true),
            ("05:59", true),
        ] {
            assert_eq!(at(night, clock), holds, "{clock}");
        }
        for clock in ["06:00", "12:00", "21:59"] {
            assert!(!at(night, clock), "{clock}");
        }
        let two = "hours = [\"08:00-12:00\", \"13:00-24:00\"]";
        assert!(at(two, "08:00") && !at(two, "12:00") && at(two, "23:59") && !at(two, "00:00"));
        // It is two hours earlier in UTC.
        let utc = "hours = \"10:00-11:00\"\nzone = \"utc\"";
        assert!(at(utc, "12:30") && !at(utc, "10:30"));
        let there = "hours = \"10:00-11:00\"\nzone = \"+02:00\"";
        assert!(at(there, "10:30") && !at(there, "12:30"));
        let west = "hours = \"23:00-23:30\"\nzone = \"-05:30\"";
        assert!(at(west, "06:45") && !at(west, "07:10"));
    }

    #[test]
    fn what_is_not_known_allows_nothing_and_lifts_no_denial() {
        for text in [
            "hours = \"00:00-24:00\"",
            "pools = \"a\"",
            "agents = [\"a\"]",
            "modes = \"a\"",
        ] {
            let when = when(text, Decision::Allow).expect("good").expect("some");
            assert!(!when.are_met(&EvaluationContext::default(), true), "{text}");
            assert!(when.are_met(&EvaluationContext::default(), false), "{text}");
        }
    }

    #[test]
    fn odd_conditions_are_refused_with_their_key() {
        for (text, key) in [
            ("hours = \"22:00\"", "hours"),
            ("hours = \"25:00-26:00\"", "hours"),
            ("hours = \"24:00-06:00\"", "hours"),
            ("hours = \"9:00-10:00\"", "hours"),
            ("hours = \"10:00-10:00\"", "hours"),
            ("hours = \"10:60-11:00\"", "hours"),
            ("zone = \"utc\"", "zone"),
            ("hours = \"10:00-11:00\"\nzone = \"Mars\"", "zone"),
            ("hours = \"10:00-11:00\"\nzone = \"+15:00\"", "zone"),
            ("modes = \"\"", "modes"),
            ("agents = \" a\"", "agents"),
            ("max_per_turn = 0", "max_per_turn"),
        ] {
            let why = when(text, Decision::Allow).expect_err(text).to_string();
            assert!(why.contains(&format!("`{key}`")), "{why}");
        }
        for decision in [Decision::Ask, Decision::Deny] {
            let why = when("max_per_turn = 3", decision).expect_err("not for those");
            let why = why.to_string();
            assert!(why.contains("max_per_turn"), "{why}");
        }
        assert!(when("", Decision::Deny).expect("good").is_none());
    }

    #[test]
    fn a_moment_has_its_minute_here_and_in_utc() {
        let at = TimeOfDay::from_unix(86_400 * 3 + 3_600 + 59, -7_200);
        assert_eq!(
            at,
            TimeOfDay {
                local: 23 * 60,
                utc: 60
            }
        );
        assert_eq!(TimeOfDay::from_unix(-60, 0).utc, MINUTES_PER_DAY - 1);
    }
}
