//! What all pages share: head, navigation, live connection.

use axum::http::StatusCode;
use axum::response::{Html, IntoResponse as _, Response};
use maud::{DOCTYPE, Markup, html};

use crate::api::Caller;
use crate::assets::path;
use crate::text;

/// What htmx must not do: put a style into the page, and evaluate text as a script.
const HTMX: &str = r#"{"includeIndicatorCSS":false,"history":false}"#;
/// A browser that lost its connection tries again at least this often.
const LIVE: &str = r#"{"sse":{"reconnectMaxDelay":3000}}"#;

/// The pages, by the word of the navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tab {
    Fleet,
    Approvals,
    Tasks,
    Cost,
}

const TABS: [(Tab, &str, &str); 4] = [
    (Tab::Fleet, "/", "Fleet"),
    (Tab::Approvals, "/ui/approvals", "Approvals"),
    (Tab::Tasks, "/ui/tasks", "Tasks"),
    (Tab::Cost, "/ui/cost", "Cost"),
];

fn document(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="htmx-config" content=(HTMX);
                title { (title) " · marshal" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href=(path("dashboard.css"));
                // Sets the theme before the first paint, so it is not deferred.
                script src=(path("dashboard.js")) {}
                script src=(path("htmx.js")) defer {}
                script src=(path("sse.js")) defer {}
            }
            body { (body) }
        }
    }
}

/// A page with the navigation. `tab` is the one it belongs to.
pub(crate) fn page(caller: &Caller, tab: Tab, title: &str, content: &Markup) -> Response {
    let rows = tab == Tab::Fleet;
    let tabs = TABS
        .iter()
        .filter(|(tab, ..)| !caller.approvals_only || *tab == Tab::Approvals);
    let body = html! {
        a.skip href="#main" { "Skip to the content" }
        header {
            strong.brand { "marshal" }
            nav aria-label="Pages" {
                @for (each, href, name) in tabs {
                    a href=(href) aria-current=[(*each == tab).then_some("page")] {
                        (name)
                        @if *each == Tab::Approvals { (badge(0)) }
                    }
                }
            }
            span #connection role="status" {}
            button #theme type="button" { "Theme" }
            form method="post" action="/logout" {
                button title={ (caller.name) ", role " (caller.role) } { "Log out" }
            }
        }
        @if !caller.approvals_only {
            div #live hx-sse:connect={ "/ui/live?rows=" (rows) } hx-config=(LIVE) {}
        }
        main #main { h1 { (title) } (content) }
    };
    Html(document(title, &body).into_string()).into_response()
}

/// The number of pending approvals in the navigation.
pub(crate) fn badge(count: usize) -> Markup {
    html! {
        span #pending .badge hidden[count == 0] hx-swap-oob="true" { (count) span.quiet { " pending" } }
    }
}

/// A page with one message.
pub(crate) fn message(status: StatusCode, title: &str, detail: &str) -> Response {
    let body = html! {
        main #main {
            h1 { (title) }
            p role="alert" { (text::line(detail, 1000)) }
            p { a href="/" { "To the fleet" } }
        }
    };
    (status, Html(document(title, &body).into_string())).into_response()
}

/// A page without a session.
pub(crate) fn plain(status: StatusCode, title: &str, content: &Markup) -> Response {
    let body = html! { main #main .narrow { h1 { (title) } (content) } };
    (status, Html(document(title, &body).into_string())).into_response()
}
