//! What was spent: today, in all, against the budgets, and day by day.

use axum::extract::State;
use axum::http::Extensions;
use axum::response::Response;
use maud::{Markup, html};

use crate::App;
use crate::api::{Api, List, Problem};
use crate::assets::path;
use crate::layout::{Tab, page as whole};
use crate::text::{count, dollars, line};
use marshal_engine::api::v1::spend::{LimitView, SpendView, SpentView};

pub(crate) async fn page(
    State(app): State<App>,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let api = Api::new(&app, &extensions);
    let caller = api.caller().await?;
    let pools: List<SpendView> = api.get("/api/v1/spend").await?;
    let today: f64 = pools.items.iter().map(|pool| pool.today.cost).sum();
    let content = html! {
        link rel="stylesheet" href=(path("uplot.css"));
        script src=(path("uplot.js")) defer {}
        p.total { "Since midnight UTC: " strong { (dollars(today)) } }
        @for pool in &pools.items { (card(pool)) }
    };
    Ok(whole(&caller, Tab::Cost, "Cost", &content))
}

fn card(pool: &SpendView) -> Markup {
    let days: Vec<&str> = pool.days.iter().map(|day| day.day.as_str()).collect();
    let costs: Vec<f64> = pool.days.iter().map(|day| day.spent.cost).collect();
    html! {
        section aria-labelledby={ "pool-" (pool.pool) } {
            h2 #{ "pool-" (pool.pool) } { (pool.pool) }
            table {
                thead { tr { th scope="col" { "When" } th scope="col" { "Cost" } th scope="col" { "Tokens" } th scope="col" { "Limit" } } }
                tbody {
                    (spent("Today", pool.today, pool.day_limit))
                    (spent("In all", pool.total, pool.pool_limit))
                    tr { th scope="row" { "A session" } td {} td {} td { (limit(pool.session_limit)) } }
                }
            }
            p.facts { "When a budget is spent: " (line(&pool.then, 30)) "." }
            @if days.is_empty() { p { "Nothing was counted yet." } }
            @else {
                div.plot role="img" aria-label={ "Cost of " (pool.pool) " by day; the table has the same" }
                    data-days=(days.join(" "))
                    data-costs=(costs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
                    data-limit=[pool.day_limit.cost] {}
                details { summary { "By day" } table {
                    thead { tr { th scope="col" { "Day" } th scope="col" { "Cost" } th scope="col" { "Tokens" } } }
                    tbody { @for day in pool.days.iter().rev() {
                        tr { th scope="row" { (day.day) } td { (dollars(day.spent.cost)) } td { (count(day.spent.tokens)) } }
                    } }
                } }
            }
        }
    }
}

fn spent(name: &str, spent: SpentView, of: LimitView) -> Markup {
    html! {
        tr {
            th scope="row" { (name) }
            td { (dollars(spent.cost)) }
            td { (count(spent.tokens)) }
            td { (limit(of))
                @if let Some(most) = of.cost.filter(|most| *most > 0.0) {
                    " " meter min="0" max=(most) value=(spent.cost.min(most)) aria-label={ (name) " of the limit" } {}
                }
            }
        }
    }
}

fn limit(of: LimitView) -> String {
    match (of.cost, of.tokens) {
        (Some(cost), Some(tokens)) => format!("{} or {} tokens", dollars(cost), count(tokens)),
        (Some(cost), None) => dollars(cost),
        (None, Some(tokens)) => format!("{} tokens", count(tokens)),
        (None, None) => "none".to_owned(),
    }
}
