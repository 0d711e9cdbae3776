//! Logging in with a one-time code, and out.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::html;

use crate::App;
use crate::layout::plain;
use crate::request;
use marshal_engine::api::logins::LoginError;

pub(crate) async fn form() -> Response {
    page(StatusCode::OK, None)
}

fn page(status: StatusCode, error: Option<&str>) -> Response {
    let content = html! {
        @if let Some(error) = error { p role="alert" { (error) } }
        form method="post" action="/login" {
            label for="code" { "Code" }
            input #code name="code" required maxlength="32" autocomplete="one-time-code"
                autocapitalize="characters" spellcheck="false" autofocus;
            button.primary { "Log in" }
        }
        p { "Run " code { "marshal open" } " on the supervisor's host: it prints a code that is valid once, for 2 minutes." }
    };
    plain(status, "Log in", &content)
}

pub(crate) async fn log_in(State(app): State<App>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let form = request::form(body).await;
    let code = form.get("code").map_or("", String::as_str);
    match app.tokens.log_in(code, &parts.extensions, Instant::now()) {
        Ok(cookie) => {
            // A browser has one session: the former one would stay valid and unused.
            if let Some(former) = app.cookie(&parts.headers) {
                app.tokens.logins().end(former);
            }
            let cookie = [(header::SET_COOKIE, app.set_cookie(&cookie))];
            (cookie, Redirect::to("/")).into_response()
        }
        Err(error) => {
            let status = match error {
                LoginError::WrongCode => StatusCode::FORBIDDEN,
                LoginError::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
                LoginError::NoRandom(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            page(status, Some(&error.to_string()))
        }
    }
}

pub(crate) async fn log_out(State(app): State<App>, headers: HeaderMap) -> Response {
    if let Some(cookie) = app.cookie(&headers) {
        app.tokens.logins().end(cookie);
    }
    let cookie = [(header::SET_COOKIE, app.set_cookie(""))];
    (cookie, Redirect::to("/login")).into_response()
}
