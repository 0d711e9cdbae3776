//! Judges a call of one of the supervisor's own tools: by the file that it is about, and by rules that
//! name the tool.
//!
//! Owns how the two meet: the more severe one counts, and a rule that names the tool allows nothing
//! that the file's rules do not.

use super::{Decided, file, refused};
use crate::model::{DecidedBy, Decision, ENGINE_SERVER, EngineTool, EngineWish, Foreign};
use crate::policy::occasion::Occasion;
use crate::policy::path::Place;
use crate::policy::request::{Facts, Judgement, Part, Request, Target};
use crate::policy::{Policy, judge};

/// What a question to a person is decided by.
const ASKS: &str = "engine_tools.ask_person";

/// What a permission to call a tool of ours is decided by.
const ANNOUNCED: &str = "engine_tools.announced";

/// Arguments that rules do not see.
const TEXTS: [&str; 3] = ["content", "old_text", "new_text"];

/// Judges a call. Of one that is about no file the place is empty.
pub(super) fn called(
    policy: &Policy,
    wish: &EngineWish,
    at: &Place<'_>,
    occasion: &Occasion<'_>,
) -> Decided {
    let by_file = match (wish.tool, &wish.path) {
        (EngineTool::WriteFile, Some(path)) => file(policy, path, (at, occasion), |paths| {
            Request::Write { paths }
        })?,
        (EngineTool::EditFile, Some(path)) => {
            let edited = file(policy, path, (at, occasion), |paths| Request::Edit {
                paths,
            })?;
            // Whether a text is in a file is told by whether it could be changed.
            let read = file(policy, path, (at, occasion), reading)?;
            if read.0.decision > edited.0.decision {
                read
            } else {
                edited
            }
        }
        (EngineTool::ReadFile, Some(path)) => file(policy, path, (at, occasion), reading)?,
        (EngineTool::AskPerson, None) => (question(wish), String::new()),
        (EngineTool::PlanStep, None) => (harmless(), String::new()),
        (tool, _) => {
            let why = format!("a call of {tool} is on record that is none");
            return Err(refused("malformed", &[], why).into());
        }
    };
    let mut arguments = wish.arguments.clone();
    if let Some(members) = arguments.as_object_mut() {
        // What a file is to hold is no path, however it looks, and long ones are not on record.
        members.retain(|name, _| !TEXTS.contains(&name.as_str()));
    }
    let request = Request::Mcp {
        server: Foreign::from(ENGINE_SERVER),
        name: Foreign::from(wish.tool.word()),
        arguments,
    };
    let named = judge::named(policy, &request, at, occasion);
    let (judgement, place) = by_file;
    if named.rules.is_empty() || named.decision <= judgement.decision {
        return Ok((judgement, place));
    }
    Ok((named, place))
}

/// What is said of a permission that an agent asks for before it calls a tool of ours: the call itself
/// comes to us, and is judged then.
#[must_use]
pub fn announced(tool: EngineTool) -> Judgement {
    Judgement {
        rules: vec![ANNOUNCED.to_owned()],
        reason: format!("the call of {} is judged when it comes", tool.recorded()),
        ..harmless()
    }
}

fn reading(paths: Vec<String>) -> Request {
    Request::Read {
        targets: paths.into_iter().map(Target::Path).collect(),
    }
}

/// A person is asked, whatever the rules allow.
fn question(wish: &EngineWish) -> Judgement {
    let text = |name: &str| wish.arguments.get(name).cloned().unwrap_or_default();
    let mut words = vec![Foreign::from("question:")];
    words.extend(text("question").as_str().map(Foreign::from));
    let options = text("options");
    for option in options.as_array().into_iter().flatten() {
        words.push(Foreign::from("option:"));
        words.extend(option.as_str().map(Foreign::from));
    }
    Judgement {
        decision: Decision::Ask,
        rules: vec![ASKS.to_owned()],
        reason: "the agent asks a person".to_owned(),
        facts: Facts {
            parts: vec![Part {
                env: Vec::new(),
                words,
                redirects: Vec::new(),
                decision: Decision::Ask,
                rules: vec![ASKS.to_owned()],
            }],
            ..Facts::default()
        },
        ..harmless()
    }
}

/// It changes nothing but what is told of the session.
fn harmless() -> Judgement {
    Judgement {
        decision: Decision::Allow,
        rules: Vec::new(),
        reason: String::new(),
        by: DecidedBy::Policy,
        facts: Facts::default(),
        would: None,
        uses: Vec::new(),
    }
}
