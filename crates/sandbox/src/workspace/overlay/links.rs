//! Which symbolic links of an agent are applied.
//!
//! Decided by their text and by the current workspace; no link is followed.

use super::apply_plan::{ANYTHING, ChangeDecision, NewNode, Planner};
use super::bases::kind_at;
use crate::workspace::tree::Kind;

impl Planner<'_> {
    /// Why a link is refused: it may only lead down from one of its parent directories, through no
    /// other link, and to nothing that must not be written.
    pub(super) fn link_refusal(&self, path: &str, node: &NewNode) -> Option<String> {
        let NewNode::Link(target) = node else {
            return None;
        };
        let leaves = || Some("is a symbolic link that leads out of the workspace".to_owned());
        if target.starts_with('/') || target.is_empty() {
            return leaves();
        }
        let mut at: Vec<&str> = path.split('/').collect();
        at.pop();
        let mut down = false;
        for part in target.split('/') {
            match part {
                "" | "." => {}
                ".." if down => {
                    return Some("is a symbolic link with \"..\" after a name".to_owned());
                }
                ".." => {
                    if at.pop().is_none() {
                        return leaves();
                    }
                }
                name => {
                    down = true;
                    at.push(name);
                    let place = at.join("/");
                    let is_link = matches!(self.plan.nodes.get(&place), Some(NewNode::Link(_)))
                        || !matches!(
                            kind_at(self.lower, &place),
                            Ok(None | Some(Kind::Dir | Kind::File))
                        );
                    if is_link {
                        return Some("is a symbolic link through another link".to_owned());
                    }
                }
            }
        }
        let place = at.join("/");
        if place.is_empty() {
            return None;
        }
        [place.clone(), format!("{place}{ANYTHING}")]
            .iter()
            .find_map(|place| {
                let review = (self.policy)(place, false);
                let why = match review.decision {
                    ChangeDecision::Deny(why) => Some(why),
                    ChangeDecision::Allow | ChangeDecision::Ask(_) => {
                        review.outside.and_then(|outside| outside.refusal(place))
                    }
                };
                why.map(|why| format!("is a symbolic link to {place}: {why}"))
            })
    }
}
