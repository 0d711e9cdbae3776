//! The rehearsal model: a server on loopback that answers as the model providers do, by a small
//! script in the prompt.
//!
//! With it a fleet of real agents, their policy and their walls are rehearsed without a key. It
//! keeps no conversation: what comes next is found in the conversation that every request brings.
//! `docs/script-model.md` is its page. Must not know the supervisor.
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

/// What the server is started with.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where to listen: a loopback address and a port; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Listen on an address that other machines reach
    #[arg(long)]
    pub beyond_loopback: bool,
    /// Answer only requests that carry this key, in any header that a provider takes it in
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Scripts for prompts that are none themselves
    #[arg(long, value_name = "FILE")]
    pub scripts: Option<PathBuf>,
}

/// Why there is no rehearsal model.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is not on loopback, and nobody said that this is wanted.
    #[error(
        "{0} is no loopback address, and anybody who reaches it could use this server; \
         listen on 127.0.0.1, or add --beyond-loopback"
    )]
    BeyondLoopback(SocketAddr),
    /// The file of scripts cannot be used.
    #[error("the scripts in {} cannot be read: {error}", path.display())]
    Scripts {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        error: std::io::Error,
    },
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the kernel says.
        error: std::io::Error,
    },
}

/// A rehearsal model that listens.
#[derive(Debug)]
pub struct ScriptModel {
    listener: tokio::net::TcpListener,
    address: SocketAddr,
    server: std::sync::Arc<serve::Server>,
}

impl ScriptModel {
    /// Binds the address and reads the scripts. With `logs_requests`, each request is a line on stderr.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests; never ends by itself.
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
