//! Approvals: `GET /api/v1/approvals…`, `POST /api/v1/approvals/{approval}`; the content of
//! `/approvals` in the format of this API.
//!
//! Must not know what an answer does.

use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::{List, respond_ok};
use super::{AppState, HandlerResult};
use crate::api::approval_routes::failure_status;
use crate::api::approvals::{self, AnswerReceiptView, ApprovalView};
use crate::api::failure::Failure;
use crate::api::time::Time;
use marshal_fleet::FleetHandle;
use marshal_model::PermissionRequestId;

/// Lists pending approvals oldest first, ended ones newest first.
pub(super) async fn list(app: AppState, request: RequestContext) -> HandlerResult {
    let ended = request.flag("ended").unwrap_or(false);
    let rows = FleetHandle::approvals(&app.fleet, ended)
        .await
        .map_err(ApiError::unavailable)?;
    let place = |view: &ApprovalView| {
        let Time(at) = view.ended_at.filter(|_| ended).unwrap_or(view.requested_at);
        (if ended { -at } else { at }, view.approval.clone())
    };
    let mut views: Vec<_> = rows
        .iter()
        .map(ApprovalView::from_stored)
        .map(|view| (place(&view), view))
        .collect();
    views.sort_by(|(one, _), (other, _)| one.cmp(other));
    let cursor = request
        .query_param("cursor")
        .map(parse_cursor)
        .transpose()?;
    let mut rest = views
        .into_iter()
        .filter(|(place, _)| cursor.as_ref().is_none_or(|cursor| place > cursor));
    let taken: Vec<_> = rest.by_ref().take(request.limit() as usize).collect();
    let last = taken
        .last()
        .map(|((at, approval), _)| format!("{at}:{approval}"));
    respond_ok(&List {
        next: rest.next().and(last),
        items: taken.into_iter().map(|(_, view)| view).collect(),
    })
}

fn parse_cursor(text: &str) -> Result<(i64, String), ApiError> {
    let bad = || ApiError::bad_cursor();
    let (at, approval) = text.split_once(':').ok_or_else(bad)?;
    Ok((at.parse().map_err(|_| bad())?, approval.to_owned()))
}

/// Returns the id of the approval in the path.
fn approval_param(request: &RequestContext) -> Result<PermissionRequestId, ApiError> {
    PermissionRequestId::new(request.path_param("approval")).map_err(|_| approval_not_found())
}

fn approval_not_found() -> ApiError {
    ApiError::not_found("there is no such approval")
}

pub(super) async fn get(app: AppState, request: RequestContext) -> HandlerResult {
    let row = FleetHandle::approval(&app.fleet, approval_param(&request)?)
        .await
        .map_err(ApiError::unavailable)?
        .ok_or_else(approval_not_found)?;
    respond_ok(&ApprovalView::with_details(&row))
}

pub(super) async fn answer(app: AppState, request: RequestContext) -> HandlerResult {
    let approval = approval_param(&request)?;
    let answer = approvals::read_answer(approval, request.bytes())
        .map_err(|failure| failure_error(&failure))?;
    let who = request.caller.recorded_as();
    let answer = answer.into_request(request.caller.approver, who);
    let answered = FleetHandle::answer_approval(&app.fleet, answer)
        .await
        .map_err(|error| failure_error(&approvals::answer_failure(&error)))?;
    respond_ok(&AnswerReceiptView::from_receipt(&answered))
}

fn failure_error(failure: &Failure) -> ApiError {
    ApiError::new(failure_status(failure), failure.message.clone())
}
