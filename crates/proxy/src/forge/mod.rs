//! The APIs of git servers by which a pull request is opened: each request, and what the answers say.
//! Pure.
//!
//! The forms are those of the servers' public documentation:
//! - GitHub: "REST API endpoints for pull requests", version 2022-11-28
//! - GitLab: "Merge requests API", version 4
//! - Gitea: its OpenAPI document, version 1; Forgejo has the same
//!
//! An answer is foreign text. Must not know sockets, keys or configuration files.

use std::fmt::Write as _;

use marshal_config::Forge;
use marshal_model::untrusted::escape_for_display;
use serde_json::{Value, json};

/// Columns of a server's message.
const MESSAGE: usize = 400;
/// Columns of the address of a pull request.
const ADDRESS: usize = 300;
/// Pull requests of one answer that are looked at.
const LISTED: usize = 50;

/// A pull request to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPullRequest<'a> {
    /// The repository, `owner/name`; of GitLab also with groups between.
    pub repository: &'a str,
    /// The branch that was pushed.
    pub head: &'a str,
    /// The branch that it is for.
    pub base: &'a str,
    /// Its title.
    pub title: &'a str,
    /// Its text.
    pub text: &'a str,
}

/// A request to an API. The key is not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiRequest {
    /// `GET` or `POST`.
    pub method: &'static str,
    /// The path below the API, with its query.
    pub target: String,
    /// Headers beside the usual ones.
    pub headers: &'static [(&'static str, &'static str)],
    /// The JSON body; empty: none.
    pub body: String,
}

/// A pull request of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// Its number in the repository.
    pub number: u64,
    /// Its page, safe to show.
    pub address: String,
}

/// Why there is no pull request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForgeFault {
    /// There is one for this branch already, or another reason is given.
    #[error("the server refused it ({status}): {message}")]
    Conflict {
        /// The status.
        status: u16,
        /// What the server says, safe to show.
        message: String,
    },
    /// The server refused the request.
    #[error("the server refused it ({status}): {message}{hint}")]
    Refused {
        /// The status.
        status: u16,
        /// What the server says, safe to show.
        message: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// It is not the answer of such an API.
    #[error("the answer ({0}) is not one of such an API: check pull_request and api of the route")]
    Unreadable(u16),
}

const GITHUB_HEADERS: &[(&str, &str)] = &[
    ("accept", "application/vnd.github+json"),
    ("x-github-api-version", "2022-11-28"),
];
const JSON_HEADERS: &[(&str, &str)] = &[("accept", "application/json")];

/// The header that carries a token, and what stands before it.
#[must_use]
pub const fn token_header(forge: Forge) -> (&'static str, &'static str) {
    match forge {
        Forge::Github => ("authorization", "Bearer "),
        Forge::Gitlab => ("private-token", ""),
        Forge::Gitea => ("authorization", "token "),
    }
}

impl NewPullRequest<'_> {
    /// The request that opens it.
    #[must_use]
    pub fn open(&self, forge: Forge) -> ApiRequest {
        let Self {
            head,
            base,
            title,
            text,
            ..
        } = self;
        let body = match forge {
            Forge::Github | Forge::Gitea => {
                json!({"title": title, "head": head, "base": base, "body": text})
            }
            Forge::Gitlab => json!({
                "title": title, "source_branch": head, "target_branch": base, "description": text,
            }),
        };
        ApiRequest {
            method: "POST",
            target: self.collection(forge),
            headers: headers(forge),
            body: body.to_string(),
        }
    }

    /// The request that lists those for the same branches, as far as the API can tell them apart.
    #[must_use]
    pub fn list(&self, forge: Forge) -> ApiRequest {
        let (head, base) = (encode(self.head), encode(self.base));
        let query = match forge {
            Forge::Github => {
                let owner = self.repository.split('/').next().unwrap_or_default();
                format!("state=open&head={}%3A{head}&base={base}", encode(owner))
            }
            Forge::Gitlab => format!("state=opened&source_branch={head}&target_branch={base}"),
            // It cannot be asked for a branch. The newest are enough: this one was changed just now.
            Forge::Gitea => format!("state=open&sort=recentupdate&limit={LISTED}"),
        };
        ApiRequest {
            method: "GET",
            target: format!("{}?{query}", self.collection(forge)),
            headers: headers(forge),
            body: String::new(),
        }
    }

    /// Reads the answer to [`Self::open`].
    ///
    /// # Errors
    /// [`ForgeFault`]
    pub fn read_opened(forge: Forge, status: u16, body: &[u8]) -> Result<PullRequest, ForgeFault> {
        let value = read_success(status, body)?;
        read_one(forge, &value).ok_or(ForgeFault::Unreadable(status))
    }

    /// Reads the answer to [`Self::list`]: the one for the same branches, if there is one.
    ///
    /// # Errors
    /// [`ForgeFault`]
    pub fn read_listed(
        &self,
        forge: Forge,
        status: u16,
        body: &[u8],
    ) -> Result<Option<PullRequest>, ForgeFault> {
        let value = read_success(status, body)?;
        let unreadable = ForgeFault::Unreadable(status);
        let list = value.as_array().ok_or(unreadable)?;
        let same = list
            .iter()
            .take(LISTED)
            .find(|item| self.is_same(forge, item));
        Ok(same.and_then(|item| read_one(forge, item)))
    }

    fn is_same(&self, forge: Forge, item: &Value) -> bool {
        let (head, base) = match forge {
            Forge::Github | Forge::Gitea => (&item["head"]["ref"], &item["base"]["ref"]),
            Forge::Gitlab => (&item["source_branch"], &item["target_branch"]),
        };
        head == self.head && base == self.base
    }

    /// The path of the pull requests of the repository.
    fn collection(&self, forge: Forge) -> String {
        match forge {
            Forge::Github | Forge::Gitea => {
                let parts: Vec<String> = self.repository.split('/').map(encode).collect();
                format!("/repos/{}/pulls", parts.join("/"))
            }
            Forge::Gitlab => format!("/projects/{}/merge_requests", encode(self.repository)),
        }
    }
}

const fn headers(forge: Forge) -> &'static [(&'static str, &'static str)] {
    match forge {
        Forge::Github => GITHUB_HEADERS,
        Forge::Gitlab | Forge::Gitea => JSON_HEADERS,
    }
}

/// A text as a part of a path or query (RFC 3986): everything but unreserved characters is escaped.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn read_success(status: u16, body: &[u8]) -> Result<Value, ForgeFault> {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    if matches!(status, 200 | 201) {
        return value.ok_or(ForgeFault::Unreadable(status));
    }
    let message = value.as_ref().map(read_message).unwrap_or_default();
    let message = match &*message {
        "" => "it does not say why".to_owned(),
        message => escape_for_display(message, MESSAGE),
    };
    // GitHub has 422 where the others have 409.
    if matches!(status, 409 | 422) {
        return Err(ForgeFault::Conflict { status, message });
    }
    let hint = match status {
        300..=399 => "; no redirect is followed: give the final address as api of the route",
        401 => "; check the token of the route (api_secret, or secret)",
        403 | 404 => "; the token may not open pull requests there, or there is no such repository",
        _ => "",
    };
    Err(ForgeFault::Refused {
        status,
        message,
        hint,
    })
}

/// What a server says of an error: `message` as a text, a list or an object, and GitHub's `errors`.
fn read_message(value: &Value) -> String {
    fn add(value: &Value, depth: u8, parts: &mut Vec<String>) {
        let below: Vec<&Value> = match value {
            Value::String(text) if parts.len() < 8 => {
                parts.push(text.clone());
                return;
            }
            Value::Array(items) => items.iter().collect(),
            Value::Object(fields) => match fields.get("message") {
                Some(message) => vec![message],
                None => fields.values().collect(),
            },
            _ => return,
        };
        for item in below.into_iter().filter(|_| depth < 3) {
            add(item, depth + 1, parts);
        }
    }
    let mut parts = Vec::new();
    for key in ["message", "error", "error_description", "errors"] {
        add(&value[key], 0, &mut parts);
    }
    parts.join(": ")
}

fn read_one(forge: Forge, item: &Value) -> Option<PullRequest> {
    let (number, address) = match forge {
        Forge::Github | Forge::Gitea => ("number", "html_url"),
        Forge::Gitlab => ("iid", "web_url"),
    };
    Some(PullRequest {
        number: item[number].as_u64()?,
        address: escape_for_display(item[address].as_str()?, ADDRESS),
    })
}

#[cfg(test)]
mod tests;
