//! The prompt for one item of a plan: its text, the indented lines below it, and its position.
//!
//! Pure. Must not know which agent works on it.

use std::fmt::Write as _;

use super::checklist::{Checklist, ChecklistItem};

/// The details below an item: the lines until the next item that are blank or
/// indented further than its own line, without what they are all indented by.
#[must_use]
pub fn item_body(text: &str, list: &Checklist, item: &ChecklistItem) -> String {
    let blank = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let mut lines = text.lines().enumerate().skip(item.line - 1);
    let own = lines.next().map_or(0, |(_, line)| blank(line));
    let mut found: Vec<&str> = Vec::new();
    for (at, line) in lines {
        let is_item = list.items().iter().any(|other| other.line == at + 1);
        if is_item || (!line.trim().is_empty() && blank(line) <= own) {
            break;
        }
        found.push(line.trim_end());
    }
    let filled = found.iter().filter(|line| !line.is_empty());
    let common = filled.map(|line| blank(line)).min().unwrap_or(0);
    let cut = found.iter().map(|line| line.get(common..).unwrap_or(""));
    cut.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// The prompt for one item of the plan with this name.
#[must_use]
pub fn item_prompt(
    name: &str,
    text: &str,
    list: &Checklist,
    item: &ChecklistItem,
    may_add: bool,
) -> String {
    let place = list.items().iter().position(|other| other.id == item.id);
    let step = place.map_or(0, |place| place + 1);
    let mut prompt = item.text.clone();
    let body = item_body(text, list, item);
    if !body.is_empty() {
        prompt.push('\n');
        prompt.push_str(&body);
    }
    let _ = write!(
        prompt,
        "\n\n[System: This is item {step} of {} of the plan {name}. Do this item and no other one; its box is ticked for you when you are done.{}]",
        list.items().len(),
        if may_add {
            " What else is to be done you may add to the plan as lines \"- [ ] text\"."
        } else {
            ""
        }
    );
    prompt
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "# Plan\n\n- [x] first\n- [ ] second\n\n  More of it,\n    indented.\n\n  - [ ] below\n    of below\n\nNo item.\n- [ ] last\n";

    #[test]
    fn an_item_has_what_is_indented_beneath_it_and_no_other_item() {
        let list = Checklist::parse(PLAN).expect("a plan");
        let bodies: Vec<String> = list
            .items()
            .iter()
            .map(|item| item_body(PLAN, &list, item))
            .collect();
        assert_eq!(bodies, ["", "\nMore of it,\n  indented.", "of below", ""]);
    }

    #[test]
    fn a_prompt_says_the_item_and_where_it_stands() {
        let list = Checklist::parse(PLAN).expect("a plan");
        let prompt = item_prompt("plan.md", PLAN, &list, &list.items()[2], false);
        assert_eq!(
            prompt,
            "below\nof below\n\n[System: This is item 3 of 4 of the plan plan.md. Do this item and no other one; its box is ticked for you when you are done.]"
        );
        let prompt = item_prompt("plan.md", PLAN, &list, &list.items()[3], true);
        assert!(prompt.contains("you may add to the plan"), "{prompt}");
    }
}
