//! Merges the stored items with the current checklist.
//!
//! Pure. Owns the meaning of ticks, edits, moves and removals by others. Must not know files or
//! members.

use std::collections::{HashMap, HashSet};

use marshal_journal::PlanItem;
use marshal_model::{ItemState, SessionId, StepStatus, UntrustedText};
use marshal_wire::plan::Checklist;
use marshal_wire::plan::checklist::{AGENT_ITEMS, ChecklistItem, ItemId};

/// The items of one plan.
#[derive(Debug, Clone, Default)]
pub(super) struct Items {
    pub(super) all: Vec<PlanItem>,
    /// Items that changed since they were loaded.
    pub(super) changed: HashSet<ItemId>,
    /// Items whose change needs an event; not every change does.
    pub(super) to_announce: HashSet<ItemId>,
}

/// The rules for new items.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntakeRules<'a> {
    pub(super) chat: &'a SessionId,
    /// An agent may have written the file since it was last read, as far as the journal shows.
    pub(super) by_agent: bool,
    /// New or restored items that no person is known to have written.
    pub(super) agents: &'a HashSet<ItemId>,
    /// Whether items of agents are executed.
    pub(super) agent_items: bool,
    pub(super) now_ms: i64,
}

impl Items {
    pub(super) fn new(all: Vec<PlanItem>) -> Self {
        Self {
            all,
            ..Self::default()
        }
    }

    pub(super) fn get_mut(&mut self, item: ItemId) -> Option<&mut PlanItem> {
        self.all.iter_mut().find(|row| row.item == item)
    }

    pub(super) fn get(&self, item: ItemId) -> Option<&PlanItem> {
        self.all.iter().find(|row| row.item == item)
    }

    /// Sets the state of an item.
    pub(super) fn set(&mut self, item: ItemId, state: ItemState, now_ms: i64) {
        if let Some(row) = self.get_mut(item)
            && row.state != state
        {
            row.state = state;
            row.at_ms = now_ms;
            self.changed.insert(item);
            self.to_announce.insert(item);
        }
    }

    pub(super) fn count(&self, state: ItemState) -> usize {
        self.all.iter().filter(|row| row.state == state).count()
    }

    /// Returns the number of done items, and of all items.
    pub(super) fn progress(&self) -> (u32, u32) {
        let all = self.all.len() - self.count(ItemState::Gone);
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        (number(self.count(ItemState::Done)), number(all))
    }

    /// Returns the items of the checklist that are not stored, or were missing.
    pub(super) fn unknown(&self, list: &Checklist) -> Vec<ItemId> {
        let known = self.all.iter().filter(|row| row.state != ItemState::Gone);
        let known: HashSet<ItemId> = known.map(|row| row.item).collect();
        let items = list.items().iter().map(|item| item.id);
        items.filter(|id| !known.contains(id)).collect()
    }

    /// Applies the checklist. Returns the done items whose tick an agent removed: they are ticked
    /// again. Items in `wait` are not added yet.
    pub(super) fn follow(
        &mut self,
        list: &Checklist,
        wait: &HashSet<ItemId>,
        taking: IntakeRules<'_>,
    ) -> Vec<ItemId> {
        let mut lost = Vec::new();
        let at: HashMap<ItemId, usize> = self.all.iter().map(|row| row.item).zip(0..).collect();
        let mut agents = self.all.iter().filter(|row| row.by_agent).count();
        let is_first = self.all.is_empty();
        for (ordinal, item) in (1..).zip(list.items()) {
            let by_agent = taking.agents.contains(&item.id) && !is_first;
            let Some(row) = at.get(&item.id).and_then(|at| self.all.get_mut(*at)) else {
                if wait.contains(&item.id) {
                    continue;
                }
                // Items above the limit for agents are not even stored.
                if by_agent && agents >= AGENT_ITEMS {
                    continue;
                }
                agents += usize::from(by_agent);
                let row = new_row(item, ordinal, by_agent, taking);
                self.all.push(row);
                self.changed.insert(item.id);
                self.to_announce.insert(item.id);
                continue;
            };
            let was = row.state;
            if was == ItemState::Gone && wait.contains(&item.id) {
                continue;
            }
            let state = match (was, item.done) {
                (ItemState::Gone, _) if by_agent => {
                    let (state, is_lost) = restored_state(row, item.done);
                    lost.extend(is_lost.then_some(item.id));
                    state
                }
                (ItemState::Open | ItemState::Blocked | ItemState::Gone, true) => ItemState::Done,
                (ItemState::Done, false) if taking.by_agent => {
                    lost.push(item.id);
                    ItemState::Done
                }
                // A person added the item, or added it again.
                (ItemState::Done | ItemState::Gone, false) => {
                    (row.tries, row.losses, row.by_agent) = (0, 0, false);
                    ItemState::Open
                }
                (state, _) => state,
            };
            let is_other = state != was;
            if is_other || row.ordinal != ordinal {
                row.ordinal = ordinal;
                row.state = state;
                row.at_ms = taking.now_ms;
                row.state_before_removal = None;
                self.changed.insert(item.id);
            }
            if is_other {
                self.to_announce.insert(item.id);
            }
        }
        let there: HashSet<ItemId> = list.items().iter().map(|item| item.id).collect();
        for row in &mut self.all {
            // The worker of a missing item may restore it until the turn ends.
            let stays = matches!(row.state, ItemState::Claimed | ItemState::Gone);
            if !stays && !there.contains(&row.item) {
                row.state_before_removal = Some(row.state).filter(|_| taking.by_agent);
                row.state = ItemState::Gone;
                row.at_ms = taking.now_ms;
                self.changed.insert(row.item);
            }
        }
        self.all
            .sort_by_key(|row| (row.state == ItemState::Gone, row.ordinal));
        lost
    }

    /// Returns the next item for a member: not one that it failed at, if there are other members.
    pub(super) fn next_for(&self, member: &SessionId, is_alone: bool) -> Option<&PlanItem> {
        let mut open = self.all.iter().filter(|row| row.state == ItemState::Open);
        open.find(|row| is_alone || row.tries == 0 || row.claimed_by.as_ref() != Some(member))
    }
}

fn new_row(
    item: &ChecklistItem,
    ordinal: u32,
    by_agent: bool,
    taking: IntakeRules<'_>,
) -> PlanItem {
    let may_run = !by_agent || taking.agent_items;
    PlanItem {
        chat: taking.chat.clone(),
        item: item.id,
        ordinal,
        content: UntrustedText::from(item.text.as_str()),
        state: match (item.done, may_run) {
            (true, _) => ItemState::Done,
            (false, true) => ItemState::Open,
            (false, false) => ItemState::Blocked,
        },
        by_agent,
        claimed_by: None,
        turn: None,
        tries: 0,
        losses: 0,
        at_ms: taking.now_ms,
        state_before_removal: None,
    }
}

/// Returns the state of a missing item that an agent wrote again, and whether it lost its tick. The
/// state is the one before an agent removed it, so that nothing is executed that should not be.
const fn restored_state(row: &PlanItem, is_done: bool) -> (ItemState, bool) {
    match row.state_before_removal {
        Some(ItemState::Done) => (ItemState::Done, !is_done),
        _ if is_done => (ItemState::Done, false),
        Some(ItemState::Open) => (ItemState::Open, false),
        // A person removed it, or it failed: it stays blocked.
        _ => (ItemState::Blocked, false),
    }
}

/// Returns the status in the stream.
pub(super) const fn status(state: ItemState) -> StepStatus {
    match state {
        ItemState::Open => StepStatus::Pending,
        ItemState::Claimed => StepStatus::Running,
        ItemState::Done => StepStatus::Done,
        ItemState::Blocked | ItemState::Gone => StepStatus::Blocked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Checklist {
        Checklist::parse(text).expect("a list")
    }

    fn followed(items: &mut Items, text: &str, by_agent: bool, agent_items: bool) -> usize {
        let chat = SessionId::new("c").expect("id");
        let agents = items.unknown(&list(text)).into_iter();
        let agents: HashSet<_> = agents.filter(|_| by_agent).collect();
        let taking = IntakeRules {
            chat: &chat,
            by_agent,
            agents: &agents,
            agent_items,
            now_ms: 1,
        };
        items.follow(&list(text), &HashSet::new(), taking).len()
    }

    fn states(items: &Items) -> Vec<(&str, ItemState)> {
        let rows = items.all.iter();
        rows.map(|row| (row.content.raw(), row.state)).collect()
    }

    #[test]
    fn what_a_person_edits_is_followed() {
        use ItemState::{Claimed, Done, Gone, Open};
        let mut items = Items::default();
        followed(&mut items, "- [ ] a\n- [x] b\n- [ ] c\n", true, false);
        assert_eq!(states(&items), [("a", Open), ("b", Done), ("c", Open)]);
        let a = items.all[0].item;
        items.set(a, Claimed, 2);
        items.changed.clear();
        // Moved, ticked, unticked, added, and the claimed one removed.
        followed(&mut items, "- [x] c\n- [ ] b\n- [ ] d\n", false, false);
        let expected = [("c", Done), ("a", Claimed), ("b", Open), ("d", Open)];
        let mut found = states(&items);
        found.sort_by_key(|(text, _)| ["c", "a", "b", "d"].iter().position(|of| of == text));
        assert_eq!(found, expected);
        followed(&mut items, "- [x] c\n", false, false);
        assert_eq!(items.count(Gone), 2);
        assert_eq!(items.progress(), (1, 2));
        followed(&mut items, "- [x] c\n- [ ] d\n", false, false);
        assert_eq!(items.count(Open), 1);
    }

    #[test]
    fn what_agents_add_is_worked_only_where_that_is_wanted_and_they_untick_nothing() {
        use ItemState::{Blocked, Done, Open};
        let mut items = Items::default();
        followed(&mut items, "- [x] a\n", true, false);
        let lost = followed(&mut items, "- [ ] a\n- [ ] b\n", true, false);
        assert_eq!(
            (lost, states(&items)),
            (1, vec![("a", Done), ("b", Blocked)])
        );
        let mut items = Items::default();
        followed(&mut items, "- [ ] a\n", true, true);
        let many = (0..150)
            .map(|at| format!("- [ ] more {at}\n"))
            .collect::<Vec<_>>()
            .concat();
        followed(&mut items, &format!("- [ ] a\n{many}"), true, true);
        assert_eq!((items.count(Open), items.count(Blocked)), (101, 0));
        assert_eq!(items.all.len(), 101, "what is too much is not kept");
    }

    #[test]
    fn what_comes_back_by_an_agents_hand_stands_as_it_did() {
        use ItemState::{Blocked, Done, Gone, Open};
        let whole = "- [ ] own\n- [ ] added\n- [ ] failed\n- [x] ready\n- [ ] removed\n";
        let mut items = Items::default();
        followed(
            &mut items,
            &whole.replace("- [ ] added\n", ""),
            false,
            false,
        );
        followed(&mut items, whole, true, false);
        let failed = items
            .all
            .iter()
            .find(|row| row.content.raw() == "failed")
            .expect("there")
            .item;
        items.get_mut(failed).expect("there").tries = 2;
        items.set(failed, Blocked, 1);
        // A person takes one away, an agent all the others.
        let left = whole.replace("- [ ] removed\n", "");
        followed(&mut items, &left, false, false);
        followed(&mut items, "- [ ] other\n", true, false);
        assert_eq!(items.count(Gone), 5);
        let back = whole.replace("[x]", "[ ]");
        let lost = followed(&mut items, &format!("- [ ] other\n{back}"), true, false);
        let expected = [
            ("other", Blocked),
            ("own", Open),
            ("added", Blocked),
            ("failed", Blocked),
            ("ready", Done),
            ("removed", Blocked),
        ];
        assert_eq!((lost, states(&items)), (1, expected.to_vec()));
        // Nor where items of agents are worked.
        followed(&mut items, "- [ ] other\n", true, true);
        followed(&mut items, &back, true, true);
        assert_eq!(items.count(Open), 1);
        // A person may have each of them worked.
        followed(&mut items, "- [ ] other\n", false, false);
        followed(&mut items, &back, false, false);
        assert_eq!((items.count(Open), items.count(Blocked)), (5, 0));
    }

    #[test]
    fn an_item_that_failed_goes_to_another_member() {
        let member = |name: &str| SessionId::new(name).expect("id");
        let mut items = Items::default();
        followed(&mut items, "- [ ] a\n- [ ] b\n", false, false);
        items.all[0].tries = 1;
        items.all[0].claimed_by = Some(member("m"));
        let next = |of: &str, alone| {
            items
                .next_for(&member(of), alone)
                .map(|row| row.content.raw())
        };
        assert_eq!(next("m", false), Some("b"));
        assert_eq!(next("n", false), Some("a"));
        assert_eq!(next("m", true), Some("a"));
    }
}
