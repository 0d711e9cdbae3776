//! What the policy says of one request or call, from every directory that it may be made in, and
//! without its secrets as well as with them.
//!
//! Pure but for the resolver's look at the trees. Must not record or answer anything.

use serde_json::value::RawValue;

use super::directory::Directory;
use super::engine;
use super::masking;
use super::prepare::Prepared;
use crate::config::ShellCwd;
use crate::dialect;
use crate::fleet::clock;
use crate::fleet::setup::PoolShared;
use crate::limits::ASK_INPUT_BYTES;
use crate::model::{Ask, Claimed, Decision, Foreign};
use crate::policy::{self, Judgement, Looking, Moved, Occasion, Place, Policy, Request};
use crate::telemetry::sets::ToolClass;

/// What of a request is judged.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) tool: &'a Foreign,
    input: &'a RawValue,
    claimed: &'a Claimed,
    /// It was not asked for: the agent showed it.
    is_shown: bool,
}

impl<'a> Asked<'a> {
    pub(super) fn of(ask: &'a Ask) -> Self {
        Self {
            tool: &ask.tool,
            input: &ask.input,
            claimed: &ask.claimed,
            is_shown: false,
        }
    }
}

/// What was found about a request.
pub(super) struct Looked {
    pub(super) judgement: Judgement,
    pub(super) moved: Moved,
    /// What it was as it came, where that is more severe than what is left without its secrets.
    pub(super) floor: Option<Decision>,
}

impl Looked {
    pub(super) fn of(judgement: Judgement, moved: Moved) -> Self {
        Self {
            judgement,
            moved,
            floor: None,
        }
    }
}

/// Judges a request without its secrets, and beside it, where it had any, as it came: nothing is
/// ever allowed because a mark stands where something else did.
pub(super) fn judge(
    pool: &PoolShared,
    by: (&Policy, &Occasion<'_>),
    prepared: Option<&Prepared>,
    directory: &Directory,
    asked: Asked<'_>,
    came: Option<Asked<'_>>,
) -> Looked {
    let (judgement, moved) = judge_one(pool, by, prepared, directory, asked);
    let Some(came) = came else {
        return Looked::of(judgement, moved);
    };
    let (mut as_it_came, also) = judge_one(pool, by, prepared, directory, came);
    // Where it leads is not kept either.
    let is_still = moved == Moved::Not && also == Moved::Not;
    let moved = if is_still { Moved::Not } else { Moved::Away };
    if as_it_came.decision <= judgement.decision {
        return Looked::of(judgement, moved);
    }
    masking::judgement(&pool.mask, &mut as_it_came);
    as_it_came.facts = judgement.facts;
    Looked {
        floor: Some(as_it_came.decision),
        judgement: as_it_came,
        moved,
    }
}

/// The same of a tool call, which is known as it came.
pub(super) fn judge_call(
    pool: &PoolShared,
    by: (&Policy, &Occasion<'_>),
    prepared: Option<&Prepared>,
    directory: &Directory,
    name: &Foreign,
    input: &RawValue,
) -> Looked {
    let claimed = &Claimed::default();
    let came = Asked {
        tool: name,
        input,
        claimed,
        is_shown: true,
    };
    let mut tool = name.clone();
    pool.mask.foreign(&mut tool);
    let masked = pool.mask.json(input);
    if tool == *name && masked.get() == input.get() {
        return judge(pool, by, prepared, directory, came, None);
    }
    let asked = Asked {
        tool: &tool,
        input: &masked,
        claimed,
        is_shown: true,
    };
    judge(pool, by, prepared, directory, asked, Some(came))
}

fn judge_one(
    pool: &PoolShared,
    (policy, occasion): (&Policy, &Occasion<'_>),
    prepared: Option<&Prepared>,
    directory: &Directory,
    asked: Asked<'_>,
) -> (Judgement, Moved) {
    let Asked {
        tool,
        input,
        claimed,
        is_shown,
    } = asked;
    if input.get().len() > ASK_INPUT_BYTES || dialect::is_cut(input) {
        return (too_large(), Moved::Away);
    }
    let began = clock::computed();
    let Some(prepared) = prepared else {
        let why = "there is no workspace to judge paths by";
        return (Judgement::refused("no_workspace", why), Moved::Away);
    };
    if prepared.is_without_workspace() {
        let why = "the workspace was removed, so that nothing can be judged by it";
        return (Judgement::refused("no_workspace", why), Moved::Away);
    }
    let request = if is_shown {
        pool.extractor.extract_shown(tool.raw(), input)
    } else {
        pool.extractor.extract(tool.raw(), input)
    };
    let places = directory.places(prepared);
    let looking = Looking::new(prepared.place().resolver);
    let judged = places.iter().map(|place| {
        let resolver = &looking;
        let place = Place { resolver, ..*place };
        policy.decide_on(&request, claimed, &place, occasion)
    });
    let severe = judged.reduce(|a, b| {
        let is_as_severe = match a.decision {
            Decision::Deny => true,
            Decision::Ask => b.decision != Decision::Deny,
            Decision::Allow => b.decision == Decision::Allow,
        };
        if is_as_severe { a } else { b }
    });
    let Some(mut judgement) = severe else {
        let why = "there is no directory to judge paths by";
        return (Judgement::refused("no_directory", why), Moved::Away);
    };
    judgement.facts.looked = looking.looked();
    let mut judgement = engine::in_time(policy, began, judgement);
    if let Some(place) = places.first() {
        judgement.facts.paths = policy::leads(Some(&request), &judgement.facts.parts, place);
    }
    let moved = match pool.config.shell_cwd {
        ShellCwd::Workspace => Moved::Not,
        ShellCwd::Turn | ShellCwd::Sticky => moved_from(pool, tool, &request, &places),
    };
    (judgement, moved)
}

/// Where the shell may be afterwards, from each place where it may be now.
fn moved_from(pool: &PoolShared, tool: &Foreign, request: &Request, places: &[Place<'_>]) -> Moved {
    let is_shell = class(pool, Some(tool)) == ToolClass::Shell;
    if is_shell && !matches!(request, Request::Shell { .. }) {
        return Moved::Away; // It runs something, and nobody can say what.
    }
    let mut all = Vec::new();
    for place in places {
        match policy::moved(request, place) {
            Moved::Not => {}
            Moved::To(ends) => all.extend(ends),
            Moved::Away => return Moved::Away,
        }
    }
    if all.is_empty() {
        Moved::Not
    } else {
        Moved::To(all)
    }
}

/// The kind of tool that a name stands for.
pub(crate) fn class(pool: &PoolShared, tool: Option<&Foreign>) -> ToolClass {
    tool.map_or(ToolClass::Unknown, |tool| pool.extractor.class(tool.raw()))
}

pub(super) fn too_large() -> Judgement {
    Judgement::refused("too_large", "the input is larger than can be judged")
}
