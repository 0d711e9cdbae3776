//! The rehearsal model: a server on loopback that answers like the model providers. A small script
//! in the prompt controls its answers.
//!
//! With it a fleet of real agents, their policy and their sandboxes are rehearsed without a key. It
//! stores no conversation: every request contains the whole conversation, which shows what comes
//! next. `docs/script-model.md` documents it. Must not know the supervisor.
//!
//! A new provider's form is a file beside `openai_chat.rs`, and its path in `answer.rs`.

mod answer;
mod anthropic;
mod gemini;
mod openai_chat;
mod openai_responses;
mod reply;
mod request;
mod script;
mod scripts;
mod serve;
mod tools;

use std::net::SocketAddr;
use std::path::PathBuf;

/// The arguments of the rehearsal model.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The address to listen on: a loopback address and a port; port 0 selects a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Allow an address that other machines can reach
    #[arg(long)]
    pub beyond_loopback: bool,
    /// Answer only requests with this key, in any header that a provider uses for it
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// A file of scripts, for prompts that contain none
    #[arg(long, value_name = "FILE")]
    pub scripts: Option<PathBuf>,
}

/// An error that prevents the server's start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is not on loopback, and `--beyond-loopback` is not set.
    #[error(
        "{0} is not a loopback address, and anybody who reaches it could use this server: \
         listen on 127.0.0.1, or add --beyond-loopback"
    )]
    BeyondLoopback(SocketAddr),
    /// The file of scripts cannot be used.
    #[error("the scripts in {} cannot be read: {error}", path.display())]
    Scripts {
        /// The file.
        path: PathBuf,
        /// The error of the file or of its content.
        error: std::io::Error,
    },
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        error: std::io::Error,
    },
}

/// A rehearsal model that is bound to its address.
#[derive(Debug)]
pub struct ScriptModel {
    listener: tokio::net::TcpListener,
    address: SocketAddr,
    server: std::sync::Arc<serve::Server>,
}

impl ScriptModel {
    /// Binds the address and reads the scripts. With `logs_requests`, each request is logged on
    /// stderr.
    pub async fn bind(args: Args, logs_requests: bool) -> Result<Self, StartError> {
        if !args.listen.ip().is_loopback() && !args.beyond_loopback {
            return Err(StartError::BeyondLoopback(args.listen));
        }
        let scripts = match args.scripts {
            None => scripts::Scripts::default(),
            Some(path) => scripts::Scripts::open(&path)
                .map_err(|error| StartError::Scripts { path, error })?,
        };
        let (listener, address) =
            serve::bind(args.listen)
                .await
                .map_err(|error| StartError::Listen {
                    address: args.listen,
                    error,
                })?;
        Ok(Self {
            listener,
            address,
            server: serve::Server::new(args.key, logs_requests, scripts),
        })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests; never returns.
    pub async fn serve(self) {
        serve::serve(self.listener, self.server).await;
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_documentation_lists_every_flag_and_every_verb_and_no_other() {
        let page = include_str!("../../../../docs/script-model.md");
        let first_words = |start: &str| -> Vec<&str> {
            page.lines()
                .filter_map(|line| line.strip_prefix(start)?.split('`').next())
                .map(|word| word.split([' ', ':']).next().unwrap_or(word))
                .collect()
        };
        let command = Line::command();
        let flags: Vec<&str> = command
            .get_arguments()
            .filter_map(clap::Arg::get_long)
            .collect();
        assert_eq!(first_words("| `--"), flags);
        let mut verbs: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split(['`', ' ', ':']).next())
            .filter(|word| word.chars().all(|c| c.is_ascii_uppercase()))
            .filter(|word| !word.is_empty())
            .collect();
        verbs.dedup();
        assert_eq!(verbs, script::VERBS);
    }
}
