//! Formats a permission request for an editor: the evaluated parts, the matched rules and two
//! options.
//!
//! Text from the agent is escaped, because a person decides by what the editor displays. Must not
//! know who answers.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::update::kind;
use crate::api::conversation_protocol::{PartView, PermissionRequestView};
use marshal_model::untrusted::escape_for_display;

/// The protocol's method name.
pub const METHOD: &str = "session/request_permission";

/// The id of the option that allows the request once.
pub const ALLOW: &str = "allow";
/// The id of the option that rejects the request once.
pub const REJECT: &str = "reject";

/// The maximum number of parts to show; the rest are counted.
const PARTS: usize = 40;
/// The maximum width of a part, in columns.
const WIDTH: usize = 400;

/// Returns the parameters of the request.
#[must_use]
pub fn request_params(session: &str, approval: &PermissionRequestView) -> Value {
    let id = approval
        .tool_id
        .clone()
        .unwrap_or_else(|| format!("approval-{}", approval.approval));
    json!({
        "sessionId": session,
        "toolCall": {
            "toolCallId": id,
            "title": title(approval),
            "kind": kind_of(approval),
            "status": "pending",
            "content": [
                {"type": "content", "content": {"type": "text", "text": text(approval)}},
            ],
        },
        "options": [
            {"optionId": ALLOW, "name": "Allow once", "kind": "allow_once"},
            {"optionId": REJECT, "name": "Reject", "kind": "reject_once"},
        ],
    })
}

fn kind_of(approval: &PermissionRequestView) -> &'static str {
    match approval.class.as_str() {
        "shell" => "execute",
        "read" => "read",
        "write" => "edit",
        "fetch" => "fetch",
        _ => kind(&approval.tool),
    }
}

fn title(approval: &PermissionRequestView) -> String {
    let tool = escape_for_display(&approval.tool, 60);
    match approval.parts.first() {
        Some(first) => escape_for_display(&format!("{tool}: {}", quote_words(first)), 160),
        None => tool,
    }
}

/// Describes the request for a person, line by line.
fn text(approval: &PermissionRequestView) -> String {
    let mut text = format!("tool: {}\n", escape_for_display(&approval.tool, WIDTH));
    for part in approval.parts.iter().take(PARTS) {
        let by = if part.rules.is_empty() {
            "no rule".to_owned()
        } else {
            escape_for_display(&part.rules.join(", "), WIDTH)
        };
        let decision = escape_for_display(&part.decision, 20);
        let _ = writeln!(text, "- {} ({decision}: {by})", quote_words(part));
    }
    if approval.parts.len() > PARTS {
        let _ = writeln!(text, "- and {} more", approval.parts.len() - PARTS);
    }
    if let Some(why) = &approval.not_plain {
        let _ = writeln!(text, "not plain: {}", escape_for_display(why, WIDTH));
    }
    if !approval.rules.is_empty() {
        let rules = escape_for_display(&approval.rules.join(", "), WIDTH);
        let _ = writeln!(text, "matched rules: {rules}");
    }
    let _ = writeln!(text, "why: {}", escape_for_display(&approval.reason, WIDTH));
    let seconds = approval.within_ms.div_ceil(1000);
    let _ = writeln!(text, "without an answer it is denied in {seconds} s");
    text
}

/// Returns the words of a part, quoted where a word would not be recognizable as one.
fn quote_words(part: &PartView) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^~".contains(c);
    let word = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", escape_for_display(word, WIDTH).replace('\'', "\\'"))
        }
    };
    let words = part.env.iter().chain(&part.words).map(word);
    // A redirect is two words: the operator and its file.
    let redirects = part.redirects.iter().map(|redirect| {
        let (sign, file) = redirect.split_once(' ').unwrap_or(("", redirect));
        format!("{sign} {}", word(&file.to_owned()))
    });
    let words: Vec<_> = words.chain(redirects).collect();
    escape_for_display(&words.join(" "), WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::untrusted::is_unsafe;

    fn approval(words: &[&str]) -> PermissionRequestView {
        PermissionRequestView {
            approval: "a-1".to_owned(),
            tool_id: None,
            tool: "bash".to_owned(),
            class: "shell".to_owned(),
            parts: vec![PartView {
                env: Vec::new(),
                redirects: Vec::new(),
                words: words.iter().map(|word| (*word).to_owned()).collect(),
                decision: "ask".to_owned(),
                rules: vec!["ask-curl".to_owned()],
            }],
            not_plain: None,
            rules: vec!["ask-curl".to_owned()],
            reason: "the network needs a person".to_owned(),
            within_ms: 900_000,
        }
    }

    #[test]
    fn a_person_sees_tool_words_rule_and_reason_and_has_two_answers() {
        let params = request_params("s", &approval(&["curl", "https://x.example/a b"]));
        let call = &params["toolCall"];
        assert_eq!(call["title"], "bash: curl 'https://x.example/a b'");
        assert_eq!(call["kind"], "execute");
        assert_eq!(call["toolCallId"], "approval-a-1");
        let text = call["content"][0]["content"]["text"]
            .as_str()
            .expect("text");
        for part in ["tool: bash", "(ask: ask-curl)", "needs a person", "900 s"] {
            assert!(text.contains(part), "{text}");
        }
        let kinds: Vec<_> = params["options"]
            .as_array()
            .expect("options")
            .iter()
            .map(|option| option["kind"].as_str().expect("kind"))
            .collect();
        assert_eq!(kinds, ["allow_once", "reject_once"]);
    }

    #[test]
    fn what_an_agent_writes_cannot_act_on_the_reader() {
        let evil = "\u{1b}]0;x\u{7}\u{202e}\n\u{200b}\u{9b}2J";
        let mut approval = approval(&["echo", evil]);
        approval.tool = evil.to_owned();
        approval.not_plain = Some(evil.to_owned());
        approval.reason = evil.to_owned();
        let params = request_params("s", &approval);
        let title = params["toolCall"]["title"].as_str().expect("title");
        assert!(!title.chars().any(is_unsafe), "{title:?}");
        let content = &params["toolCall"]["content"][0]["content"];
        let text = content["text"].as_str().expect("text");
        let is_evil = |c: char| is_unsafe(c) && c != '\n';
        assert!(!text.chars().any(is_evil), "{text:?}");
        assert_eq!(text.lines().count(), 6, "{text:?}");
    }

    #[test]
    fn words_that_look_like_two_are_seen_as_one() {
        let part = PartView {
            env: Vec::new(),
            redirects: Vec::new(),
            words: vec![
                "rm".to_owned(),
                "a b".to_owned(),
                String::new(),
                "it's".to_owned(),
            ],
            decision: "ask".to_owned(),
            rules: Vec::new(),
        };
        assert_eq!(quote_words(&part), "rm 'a b' '' 'it\\'s'");
    }
}
