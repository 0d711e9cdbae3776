//! The queue of a pool: tasks that wait for a slot, ordered by their rank. That is the time of their
//! arrival, moved by the priority, so that a task waits only for those that came little later.
//!
//! Counts the tasks by run, so that a long queue is not searched while no run in it has a free job.
//! Must not know slots.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::ActiveTask;
use super::task::OpenTasks;
use marshal_model::PermissionRequestId;

/// The queue of a pool; see the head of this file.
#[derive(Debug, Default)]
pub(super) struct Queue {
    tasks: VecDeque<ActiveTask>,
    /// For each run, how many queued tasks wait only for a slot. The key is the address of the
    /// shared [`OpenTasks`]; the entry keeps it alive, so the address cannot be reused meanwhile.
    ready: HashMap<usize, (Arc<OpenTasks>, usize)>,
    /// How many queued tasks wait for an approval.
    awaiting_approval: usize,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(super) fn front(&self) -> Option<&ActiveTask> {
        self.tasks.front()
    }

    /// Adds tasks by their rank.
    pub(super) fn extend(&mut self, tasks: impl IntoIterator<Item = ActiveTask>) {
        let mut tasks: Vec<ActiveTask> = tasks.into_iter().collect();
        tasks.sort_by_key(|task| task.rank);
        for task in &tasks {
            self.count(task);
        }
        let Some(first) = tasks.first() else { return };
        let last = self.tasks.back();
        if last.is_none_or(|last| last.rank <= first.rank) {
            self.tasks.extend(tasks);
            return;
        }
        // Both lists are sorted: merge them in one pass.
        let mut waiting = std::mem::take(&mut self.tasks).into_iter().peekable();
        self.tasks.reserve(waiting.len() + tasks.len());
        for task in tasks {
            let before = |other: &ActiveTask| other.rank <= task.rank;
            while let Some(earlier) = waiting.next_if(before) {
                self.tasks.push_back(earlier);
            }
            self.tasks.push_back(task);
        }
        self.tasks.extend(waiting);
    }

    /// Adds a task before all queued tasks of the same or a higher rank.
    pub(super) fn push_front(&mut self, task: ActiveTask) {
        self.count(&task);
        let earlier = |other: &ActiveTask| other.rank < task.rank;
        let at = self.tasks.partition_point(earlier);
        self.tasks.insert(at, task);
    }

    /// How many tasks wait only for a slot.
    pub(super) fn startable(&self) -> usize {
        let ready = self.ready.values().filter(|(open, _)| open.has_free_job());
        ready.map(|(_, tasks)| tasks).sum()
    }

    /// Removes and returns all tasks.
    pub(super) fn take_all(&mut self) -> VecDeque<ActiveTask> {
        std::mem::take(self).tasks
    }

    /// Removes and returns the matching tasks, in their order.
    pub(super) fn take_all_if(
        &mut self,
        matches: impl FnMut(&ActiveTask) -> bool,
    ) -> VecDeque<ActiveTask> {
        let (removed, rest): (VecDeque<_>, VecDeque<_>) =
            self.take_all().into_iter().partition(matches);
        self.extend(rest);
        removed
    }

    /// Removes and returns the first task that waits for this approval.
    pub(super) fn take_awaiting(&mut self, approval: &PermissionRequestId) -> Option<ActiveTask> {
        let waits = |task: &ActiveTask| {
            task.awaits_approval
                .as_ref()
                .is_some_and(|(awaited, _)| awaited == approval)
        };
        let at = self.tasks.iter().position(waits)?;
        self.take(at)
    }

    /// Removes and returns the first matching task that gets a job permit of its run. While no run
    /// has a free job, it looks only at tasks that wait for an approval, and stops after the last
    /// of these.
    pub(super) fn take_next(
        &mut self,
        mut matches: impl FnMut(&ActiveTask) -> bool,
    ) -> Option<ActiveTask> {
        let has_free_job = self.ready.values().any(|(open, _)| open.has_free_job());
        let mut awaiting = self.awaiting_approval;
        for at in 0..self.tasks.len() {
            if !has_free_job && awaiting == 0 {
                return None;
            }
            let task = self.tasks.get_mut(at)?;
            awaiting -= usize::from(task.awaits_approval.is_some());
            if matches(task) && task.acquire_job() {
                return self.take(at);
            }
        }
        None
    }

    /// Frees memory after the queue was long.
    pub(super) fn shrink(&mut self) {
        let waiting = self.tasks.len();
        if waiting < self.tasks.capacity() / 4 {
            self.tasks.shrink_to(2 * waiting);
        }
    }

    fn take(&mut self, at: usize) -> Option<ActiveTask> {
        let task = self.tasks.remove(at)?;
        if task.awaits_approval.is_some() {
            self.awaiting_approval -= 1;
        } else if let Some((_, ready)) = self.ready.get_mut(&key(&task)) {
            *ready -= 1;
            if *ready == 0 {
                self.ready.remove(&key(&task));
            }
        }
        Some(task)
    }

    fn count(&mut self, task: &ActiveTask) {
        if task.awaits_approval.is_some() {
            self.awaiting_approval += 1;
            return;
        }
        let open = || (Arc::clone(&task.open_tasks), 0);
        self.ready.entry(key(task)).or_insert_with(open).1 += 1;
    }
}

/// The key of a task's run: the address of its shared [`OpenTasks`].
fn key(task: &ActiveTask) -> usize {
    Arc::as_ptr(&task.open_tasks).addr()
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::budgets::{RunBounds, RunLimits};
    use marshal_model::{RunId, TaskId, TaskSpec};

    fn open(run: &str, jobs: Option<u16>) -> Arc<OpenTasks> {
        let run = RunId::new(run).expect("an id");
        let bounds = RunBounds {
            jobs,
            ..RunBounds::default()
        };
        let limits = RunLimits::start(&run, bounds, marshal_model::Amount::default(), Vec::new());
        OpenTasks::with_limits(usize::MAX, false, limits, None)
    }

    fn task(open: &Arc<OpenTasks>, id: &str) -> ActiveTask {
        let (tell, _) = mpsc::channel(1);
        let run = RunId::new("r").expect("an id");
        let spec = TaskSpec {
            id: TaskId::new(id).expect("an id"),
            prompt: "x".into(),
            pool: None,
            workspace: None,
            attempts: None,
            check: None,
            files: Vec::new(),
            embedded_files: Vec::new(),
            policy_layer: None,
            land: None,
            priority: 0,
            depends_on: Vec::new(),
        };
        ActiveTask::new(run, spec, 1, tell, Arc::clone(open))
    }

    fn ids(tasks: impl IntoIterator<Item = ActiveTask>) -> Vec<String> {
        let id = |task: ActiveTask| task.spec.id.as_str().to_owned();
        tasks.into_iter().map(id).collect()
    }

    #[test]
    fn a_long_queue_is_not_looked_through_while_no_run_has_a_place() {
        let (full, other) = (open("full", Some(2)), open("other", Some(1)));
        let mut queue = Queue::default();
        queue.extend((0..1_000).map(|at| task(&full, &format!("t-{at}"))));
        let mut checked = 0;
        let mut next = |queue: &mut Queue| {
            let before = checked;
            let found = queue.take_next(|_| {
                checked += 1;
                true
            });
            (found, checked - before)
        };
        let begun: Vec<_> = (0..2).map(|_| next(&mut queue)).collect();
        assert!(
            begun
                .iter()
                .all(|(task, checked)| task.is_some() && *checked == 1)
        );
        let (none, checked) = next(&mut queue);
        assert!(none.is_none());
        assert_eq!(checked, 0, "tasks were looked at in vain");
        // A later run has a free job until one of its tasks begins.
        queue.extend([task(&other, "o-1"), task(&other, "o-2")]);
        let (other_one, _) = next(&mut queue);
        let id = other_one.as_ref().map(|task| task.spec.id.as_str());
        assert_eq!(id, Some("o-1"));
        assert_eq!(next(&mut queue).1, 0);
        // A task that waits for an approval is looked at, and nothing behind it.
        let mut asking = task(&full, "approvals");
        asking.rank = 0;
        asking.awaits_approval = Some((PermissionRequestId::new("a-1").expect("an id"), 0));
        queue.push_front(asking);
        assert_eq!(next(&mut queue).1, 1);
        // The end of a task frees its job for the next one.
        drop(begun);
        let approval = PermissionRequestId::new("a-1").expect("an id");
        assert_eq!(ids(queue.take_awaiting(&approval)), ["approvals"]);
        let (found, checked) = next(&mut queue);
        assert_eq!((ids(found), checked), (vec!["t-2".to_owned()], 1));
    }

    #[test]
    fn what_is_taken_is_counted_no_more() {
        let (one, two) = (open("one", None), open("two", None));
        let mut queue = Queue::default();
        queue.extend([task(&one, "a"), task(&two, "b"), task(&one, "c")]);
        queue.push_front(task(&two, "z"));
        let of_one = queue.take_all_if(|task| Arc::ptr_eq(&task.open_tasks, &one));
        assert_eq!(ids(of_one), ["a", "c"]);
        assert_eq!((queue.tasks.len(), queue.ready.len()), (2, 1));
        let found = queue.take_next(|task| task.spec.id.as_str() == "b");
        assert_eq!(ids(found), ["b"]);
        assert_eq!(ids(queue.take_all()), ["z"]);
        assert!(queue.is_empty() && queue.ready.is_empty());
        assert_eq!(Arc::strong_count(&one), 1);
    }
    #[test]
    fn what_has_more_priority_comes_first_and_the_rest_in_its_order() {
        let open = open("one", None);
        let arrived = std::cell::Cell::new(0);
        let with = |id: &str, priority: i8| {
            let mut task = task(&open, id);
            arrived.set(arrived.get() + 1);
            task.rank = arrived.get() - i64::from(priority) * 1_000;
            task
        };
        let mut queue = Queue::default();
        queue.extend([with("a", 0), with("b", 5), with("c", 0)]);
        queue.extend([with("d", 100), with("e", -1), with("f", 0), with("g", 5)]);
        // A task that returns goes before those that arrived with it.
        let mut returns = with("z", 0);
        returns.rank = 0;
        queue.push_front(returns);
        let found = queue.take_all_if(|task| task.spec.id.as_str() == "c");
        assert_eq!(ids(found), ["c"]);
        queue.extend([with("h", 1)]);
        let mut order = Vec::new();
        while let Some(task) = queue.take_next(|_| true) {
            order.push(task);
        }
        assert_eq!(ids(order), ["d", "b", "g", "h", "z", "a", "f", "e"]);
    }
}
