//! Creates a chat with a plan: members, plan and check are validated and made durable together.
//!
//! Must not know how the plan is executed.

use std::sync::Arc;

use super::prompts;
use crate::chat::directory;
use crate::chat::{ChatError, CreateRequest, Inner};
use marshal_config::{Role, WorkspaceMode, check_plan_path};
use marshal_journal::{ChatRow, ChatWrite, StoredChat, Write};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{
    ChatBounds, ChatMode, ChatPhase, ChatSettings, RoleName, RunId, SessionId, TemplateName,
    UntrustedText, WorkspaceName,
};

/// The settings of a request for an autonomous chat or a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkRequest {
    /// The mode's name.
    pub mode: Option<String>,
    /// The template's name.
    pub template: Option<String>,
    /// The path of the plan, relative to the workspace.
    pub plan: Option<String>,
    /// The roles of the workers.
    pub roles: Vec<String>,
    /// The role of the planner.
    pub planner: Option<String>,
    /// The shell command that exits with 0 if the goal is met.
    pub check: Option<String>,
    /// The prompt to send while the goal is not met.
    pub continue_prompt: Option<String>,
    /// Whether items that agents add are executed.
    pub agent_items: Option<bool>,
    /// The limits.
    pub bounds: ChatBounds,
    /// The template's instructions to all agents.
    pub instructions: Option<String>,
}

/// Started work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedWork {
    /// The coordinating chat.
    pub chat: SessionId,
    /// The plan's path, relative to the workspace.
    pub plan: String,
    /// The members: chat, role, and whether it is the planner.
    pub members: Vec<(SessionId, RoleName, bool)>,
}

/// A member to create.
struct MemberDraft {
    role: RoleName,
    role_config: Role,
    planner: bool,
}

fn unprocessable(why: impl Into<String>) -> ChatError {
    ChatError::Unprocessable(why.into())
}

impl Inner {
    /// Returns the requested mode, and the request with the template's settings.
    pub(in crate::chat) fn apply_template(
        &self,
        mut create_request: CreateRequest,
    ) -> Result<(ChatMode, CreateRequest), ChatError> {
        let work = &mut create_request.work;
        if let Some(name) = &work.template {
            let config = self.config.current();
            let found = TemplateName::new(name)
                .ok()
                .and_then(|name| config.templates.get(&name));
            let Some(template) = found else {
                let names = config.templates.keys().map(TemplateName::as_str);
                let names: Vec<&str> = names.collect();
                let there = match names.as_slice() {
                    [] => "the configuration has no [template.NAME]".to_owned(),
                    names => format!("there are: {}", names.join(", ")),
                };
                let shown = escape_for_display(name, 40);
                return Err(unprocessable(format!(
                    "there is no template {shown:?}; {there}"
                )));
            };
            if work.mode.is_some() || !work.roles.is_empty() || create_request.role.is_some() {
                return Err(unprocessable(
                    "the template sets \"mode\", \"roles\" and \"role\": omit these",
                ));
            }
            work.mode = Some(template.mode.as_str().to_owned());
            work.roles = template.roles.iter().map(RoleName::to_string).collect();
            let first = template.roles.first();
            let planner = template.planner.as_ref().or(first);
            work.planner = work
                .planner
                .take()
                .or_else(|| planner.map(RoleName::to_string));
            work.plan = work.plan.take().or_else(|| template.plan.clone());
            work.check = work.check.take().or_else(|| template.check.clone());
            work.agent_items = work.agent_items.or(Some(template.agent_items));
            work.instructions.clone_from(&template.instructions);
        }
        let mode = match &work.mode {
            None => ChatMode::Chat,
            Some(word) => ChatMode::parse(word).ok_or_else(|| {
                let words: Vec<&str> = ChatMode::ALL.iter().map(|mode| mode.as_str()).collect();
                let shown = escape_for_display(word, 40);
                unprocessable(format!(
                    "there is no mode {shown:?}; there are: {}",
                    words.join(", ")
                ))
            })?,
        };
        Ok((mode, create_request))
    }

    /// Starts work on a plan; returns when all of it is durable.
    pub(in crate::chat) async fn begin_work(
        self: &Arc<Self>,
        workspace: &str,
        mode: ChatMode,
        create_request: CreateRequest,
        once: Option<RunId>,
    ) -> Result<StartedWork, ChatError> {
        let config = self.config.current();
        let (name, registered) = directory::workspace(&config, workspace)?;
        validate(&create_request)?;
        let (root, files) = (
            registered.workspace.path.clone(),
            create_request.files.clone(),
        );
        let checked =
            tokio::task::spawn_blocking(move || directory::check_files(&root, &files)).await;
        checked.map_err(|error| ChatError::Unavailable(error.to_string()))??;
        let (session, run) = self.fleet.chat_ids()?;
        let run = once.unwrap_or(run);
        let plan = match &create_request.work.plan {
            Some(plan) => plan.strip_prefix('/').unwrap_or(plan).to_owned(),
            None => format!("chats/{session}/plan.md"),
        };
        let path = registered.workspace.path.join(&plan);
        let is_there = tokio::task::spawn_blocking(move || path.symlink_metadata().is_ok())
            .await
            .unwrap_or(false);
        let drafts = self.drafts(mode, &create_request, is_there)?;
        for draft in &drafts {
            self.can_work(&name, &registered.workspace.path, draft)
                .await?;
        }
        let begun = self.initial_writes(
            &name,
            mode,
            &create_request,
            (session, run, plan),
            &drafts,
            is_there,
        )?;
        let (begun, writes, planner) = begun;
        self.fleet.accept_rows(writes).await?;
        if let Some(planner) = planner {
            self.wake(planner, |wants| wants.turns += 1);
        }
        self.coordinate(&begun.chat);
        Ok(begun)
    }

    /// Returns the members to create, the planner first.
    fn drafts(
        &self,
        mode: ChatMode,
        create_request: &CreateRequest,
        is_there: bool,
    ) -> Result<Vec<MemberDraft>, ChatError> {
        let config = self.config.current();
        let named = |name: &str, planner: bool| {
            let of = CreateRequest {
                role: Some(name.to_owned()),
                model: None,
                ..create_request.clone()
            };
            let (role, of) = directory::role(&config, &of)?;
            Ok::<_, ChatError>(MemberDraft {
                role,
                role_config: of.clone(),
                planner,
            })
        };
        let roles = &create_request.work.roles;
        if roles.is_empty() || roles.len() > limits::PLAN_MEMBERS {
            let most = limits::PLAN_MEMBERS;
            return Err(unprocessable(format!(
                "\"roles\" names {} roles; name 1 to {most} that execute the plan",
                roles.len()
            )));
        }
        let mut drafts = Vec::new();
        let has_planner = |name: &str| {
            let name = RoleName::new(name).ok();
            name.is_some_and(|name| config.roles.contains_key(&name))
        };
        match &create_request.work.planner {
            Some(name) => drafts.push(named(name, true)?),
            None if has_planner(PLANNER) => drafts.push(named(PLANNER, true)?),
            None if is_there => {}
            None => {
                return Err(unprocessable(
                    "there is no plan yet, and no planner to write it: name a \"planner\", add [role.planner] to the configuration, or name an existing plan as \"plan_id\"",
                ));
            }
        }
        // Items in sequence need only one worker.
        let count = match mode {
            ChatMode::PlanThenExecute => 1,
            _ => roles.len(),
        };
        for name in roles {
            drafts.push(named(name, false)?);
        }
        let planners = drafts.iter().filter(|draft| draft.planner).count();
        drafts.truncate(planners + count);
        Ok(drafts)
    }

    /// Checks whether a role's agents work in the workspace itself: if each had its own copy,
    /// nobody else would see the plan.
    async fn can_work(
        &self,
        name: &WorkspaceName,
        path: &std::path::Path,
        draft: &MemberDraft,
    ) -> Result<(), ChatError> {
        let role = &draft.role;
        let config = self.config.current();
        directory::check_supports_remarks(&config, role, &draft.role_config, "mode")?;
        let mut pools = config
            .pools
            .iter()
            .filter(|pool| pool.name == draft.role_config.pool);
        let shares = pools.any(|pool| pool.workspace.mode == WorkspaceMode::Rw);
        if draft.planner && !shares {
            return Err(unprocessable(format!(
                "the role {role} cannot write a plan: the agents of pool {} cannot write the workspace itself (workspace.mode is not \"rw\")",
                draft.role_config.pool
            )));
        }
        let can = self
            .fleet
            .check_directory(&draft.role_config.pool, path)
            .await;
        can.map_err(|error| match error {
            marshal_fleet::OpenError::Directory(why) => unprocessable(format!(
                "the role {role} cannot work in the workspace {name}: {why}"
            )),
            error => error.into(),
        })
    }

    fn initial_writes(
        &self,
        name: &WorkspaceName,
        mode: ChatMode,
        create_request: &CreateRequest,
        (session, run, plan): (SessionId, RunId, String),
        drafts: &[MemberDraft],
        is_there: bool,
    ) -> Result<(StartedWork, Vec<Write>, Option<StoredChat>), ChatError> {
        let now = self.fleet.now_ms();
        let work = &create_request.work;
        let workers: Vec<(&str, Option<&Role>)> = drafts
            .iter()
            .filter(|draft| !draft.planner)
            .map(|draft| (draft.role.as_str(), Some(&draft.role_config)))
            .collect();
        let planning = prompts::planning(&create_request.goal, &plan, &workers);
        let first = drafts
            .iter()
            .find(|draft| !draft.planner)
            .ok_or_else(|| unprocessable("\"roles\" is empty"))?;
        let phase = first_phase(is_there, mode);
        let planner = drafts.iter().find(|draft| draft.planner);
        let settings = ChatSettings {
            plan_path: Some(plan.clone()),
            roles: workers
                .iter()
                .filter_map(|(name, _)| RoleName::new(name).ok())
                .collect(),
            planner: planner.map(|draft| draft.role.clone()),
            check_command: work.check.clone(),
            continue_prompt: work.continue_prompt.clone(),
            agent_items: work.agent_items.unwrap_or(false),
            bounds: work.bounds.clone(),
            template: work.template.clone(),
            instructions: work.instructions.clone(),
        };
        let row = |session: &SessionId, run, draft: &MemberDraft| ChatRow {
            session: session.clone(),
            run,
            workspace: name.clone(),
            role: draft.role.clone(),
            model: draft.role_config.model.clone(),
            goal: UntrustedText::from(create_request.goal.as_str()),
            files: create_request.files.clone(),
            pool: draft.role_config.pool.clone(),
            mode: ChatMode::Chat,
            parent: None,
            phase: None,
            settings: None,
            created_ms: now,
        };
        let own = ChatRow {
            mode,
            phase: Some(phase),
            settings: Some(settings),
            ..row(&session, run, first)
        };
        own.check()
            .map_err(|fault| unprocessable(fault.to_string()))?;
        let mut writes = vec![Write::Chat(ChatWrite::Create(own))];
        let (mut members, mut to_plan) = (Vec::new(), None);
        for draft in drafts {
            let (member, run) = self.fleet.chat_ids()?;
            let begins = ChatRow {
                parent: Some(session.clone()),
                settings: Some(ChatSettings {
                    planner: draft.planner.then(|| draft.role.clone()),
                    instructions: work.instructions.clone(),
                    ..ChatSettings::default()
                }),
                ..row(&member, run, draft)
            };
            writes.push(Write::Chat(ChatWrite::Create(begins.clone())));
            if draft.planner && phase == ChatPhase::Planning {
                self.check_capacity(&member, &draft.role_config.pool)?;
                let turn = self.turn(&member, 1, planning.clone(), None)?;
                writes.push(Write::Chat(ChatWrite::Accept(turn)));
                to_plan = Some(StoredChat::new(begins, 1));
            }
            members.push((member, draft.role.clone(), draft.planner));
        }
        let begun = StartedWork {
            chat: session,
            plan,
            members,
        };
        Ok((begun, writes, to_plan))
    }
}

const fn first_phase(is_there: bool, mode: ChatMode) -> ChatPhase {
    match (is_there, mode) {
        (false, _) => ChatPhase::Planning,
        // The client named a plan that exists, so it needs no approval.
        (true, ChatMode::ParallelAgents) => ChatPhase::Working,
        (true, _) => ChatPhase::Approval,
    }
}

/// The default role of the planner.
const PLANNER: &str = "planner";

/// Checks the parts of a request that depend on nothing else.
fn validate(create_request: &CreateRequest) -> Result<(), ChatError> {
    let work = &create_request.work;
    if create_request.goal.trim().is_empty() {
        return Err(unprocessable(
            "\"goal\" is empty: describe what the chat is for",
        ));
    }
    if create_request.role.is_some() || create_request.model.is_some() {
        return Err(unprocessable(
            "\"role\" and \"model\" are for chats with one agent: use \"roles\" here",
        ));
    }
    if let Some(plan) = &work.plan {
        check_plan_path(plan.strip_prefix('/').unwrap_or(plan)).map_err(unprocessable)?;
    }
    let most = limits::CHAT_CHECK_BYTES;
    if let Some(check) = &work.check
        && (check.trim().is_empty() || check.len() > most)
    {
        return Err(unprocessable(format!(
            "\"check\" must be a command of 1 to {most} bytes"
        )));
    }
    let most = limits::CHAT_CONTINUE_BYTES;
    if let Some(text) = &work.continue_prompt
        && (text.trim().is_empty() || text.len() > most)
    {
        return Err(unprocessable(format!(
            "\"continue_prompt\" must be a string of 1 to {most} bytes"
        )));
    }
    let bounds = &work.bounds;
    if bounds.seconds.is_some() || bounds.tokens.is_some() || bounds.cost.is_some() {
        return Err(unprocessable(
            "\"limits\" of a plan has only \"turns\": how often the continue prompt is sent",
        ));
    }
    if bounds
        .turns
        .is_some_and(|turns| turns > limits::PLAN_ROUNDS_MAX)
    {
        let most = limits::PLAN_ROUNDS_MAX;
        return Err(unprocessable(format!(
            "\"limits.turns\" must be at most {most}"
        )));
    }
    Ok(())
}
