//! The prompts of planners and workers.
//!
//! Pure. The text of an item comes first, as the plan has it; text of the supervisor is in separate
//! lines that begin with `[System: `.

use std::fmt::Write as _;

use marshal_config::Role;
use marshal_wire::plan::Checklist;
use marshal_wire::plan::checklist::ChecklistItem;

/// Puts a template's instructions before those of a role.
pub(in crate::chat) fn with_instructions(instructions: Option<&str>, content: String) -> String {
    match instructions {
        Some(text) => format!("{}\n\n{content}", text.trim()),
        None => content,
    }
}

/// Returns the first message to a planner.
pub(super) fn planning(goal: &str, plan: &str, roles: &[(&str, Option<&Role>)]) -> String {
    let mut names: Vec<&str> = roles.iter().map(|(name, _)| *name).collect();
    names.dedup();
    let who = names.join(", ");
    format!(
        "{goal}\n\n[System: Do not do this work yourself: write the plan for it into the file {plan} of the workspace, as a Markdown checklist. Each item is one line \"- [ ] text\" that says all that whoever does it must know, and can be done by itself. It is worked afterwards by: {who}.]"
    )
}

/// Returns the message to a planner that wrote no checklist.
pub(super) fn no_checklist(plan: &str, why: &str) -> String {
    format!(
        "[System: There is no plan yet: {why}. Write the file {plan} of the workspace as a Markdown checklist, each item one line \"- [ ] text\".]"
    )
}

/// Returns the message to a planner whose plan was rejected.
pub(super) fn rejected_prompt(plan: &str, why: &str) -> String {
    format!(
        "{why}\n\n[System: The plan {plan} was not approved, for the reason above. Change the file.]"
    )
}

/// Returns the prompt of one item.
pub(super) fn item(
    goal: &str,
    plan: &str,
    text: &str,
    list: &Checklist,
    item: &ChecklistItem,
    agent_items: bool,
) -> String {
    let place = list.items().iter().position(|other| other.id == item.id);
    let progress = list.progress();
    let mut prompt = item.text.clone();
    let below = below(text, list, item);
    if !below.is_empty() {
        prompt.push('\n');
        prompt.push_str(&below);
    }
    let goal = goal.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = write!(
        prompt,
        "\n\n[System: This is item {} of {} of the plan {plan}, of which {} are done. Do this item and no other one; its box is ticked for you when you are done. What the plan is for: {}.{}]",
        place.map_or(0, |place| place + 1),
        progress.total,
        progress.done,
        cut(&goal),
        if agent_items {
            " What else is to be done you may add to the plan as lines \"- [ ] text\"."
        } else {
            ""
        }
    );
    prompt
}

/// The maximum length of the goal in an item's prompt, in characters.
const GOAL: usize = 1000;

fn cut(goal: &str) -> String {
    if goal.chars().count() <= GOAL {
        return goal.to_owned();
    }
    goal.chars().take(GOAL).chain(['…']).collect()
}

/// Returns the lines below an item that are indented further than it, up to the next item.
fn below(text: &str, list: &Checklist, item: &ChecklistItem) -> String {
    let blank = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let mut lines = text.lines().enumerate().skip(item.line - 1);
    let own = lines.next().map_or(0, |(_, line)| blank(line));
    let belongs = lines.take_while(|(at, line)| {
        let is_item = list.items().iter().any(|other| other.line == at + 1);
        !is_item && (line.trim().is_empty() || blank(line) > own)
    });
    let found: Vec<&str> = belongs.map(|(_, line)| line.trim()).collect();
    found.join("\n").trim().to_owned()
}

/// The default prompt while the check fails.
pub(super) const CONTINUE: &str = "[System: All items of the plan are done, and the check of the whole has not passed yet. Find out why, and repair it.]";

/// The prompt of a turn that only runs the check.
pub(super) const CHECK: &str = "[System: No item of the plan is open. There is nothing to do in this turn: the check of the whole is run at its end.]";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_told_with_what_stands_below_it_and_where_the_plan_stands() {
        let text = "# P\n- [x] one\n- [ ] two\n  say more\n\n  and more\n- [ ] three\n";
        let list = Checklist::parse(text).expect("a list");
        let prompt = item("a\ngoal", "plan.md", text, &list, &list.items()[1], false);
        assert!(prompt.starts_with("two\nsay more\n\nand more\n\n[System: This is item 2 of 3 of the plan plan.md, of which 1 are done."), "{prompt}");
        assert!(prompt.contains("for: a goal.]"), "{prompt}");
        let prompt = item("g", "plan.md", text, &list, &list.items()[2], true);
        assert!(prompt.starts_with("three\n\n["), "{prompt}");
        assert!(prompt.contains("you may add"), "{prompt}");
    }
}
