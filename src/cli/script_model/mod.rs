//! The rehearsal model: a server on loopback that answers as the model providers do, by a small
//! script in the prompt.
//!
//! With it a fleet of real agents, their policy and their walls are rehearsed without a key. It
//! keeps no conversation: what comes next is found in the conversation that every request brings.
//! `docs/script-model.md` is its page. Must not know the supervisor.

mod answer;
mod anthropic;
mod gemini;
mod openai_chat;
mod openai_responses;
mod reply;
mod script;
mod scripts;
mod serve;
mod talk;
mod tools;

use std::net::SocketAddr;
use std::path::PathBuf;

use super::exit::Exit;
use super::signals::{Signal, Signals};
use super::streams::Streams;

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

/// Serves until a signal. The address is printed first.
pub(super) async fn run(args: Args, json: bool, quiet: bool, mut streams: Streams) -> Exit {
    if !args.listen.ip().is_loopback() && !args.beyond_loopback {
        streams.err.line(&format!(
            "error: {} is no loopback address, and anybody who reaches it could use this server; \
             listen on 127.0.0.1, or add --beyond-loopback",
            args.listen
        ));
        return Exit::Usage;
    }
    let scripts = match args.scripts.as_deref().map(scripts::Scripts::open) {
        None => scripts::Scripts::default(),
        Some(Ok(scripts)) => scripts,
        Some(Err(error)) => {
            let path = args.scripts.unwrap_or_default();
            let path = path.display();
            streams.err.line(&format!(
                "error: the scripts in {path} cannot be read: {error}"
            ));
            return Exit::Usage;
        }
    };
    let Ok(mut signals) = Signals::install() else {
        streams.err.line("error: signals cannot be handled");
        return Exit::CannotStart;
    };
    let (listener, address) = match serve::bind(args.listen).await {
        Ok(bound) => bound,
        Err(error) => {
            streams
                .err
                .line(&format!("error: cannot listen on {}: {error}", args.listen));
            return Exit::CannotStart;
        }
    };
    let url = format!("http://{address}");
    if json {
        let line = serde_json::json!({ "address": url });
        streams.out.json(&line.to_string());
    } else {
        streams.out.line(&url);
    }
    let server = serve::Server::new(args.key, !quiet, scripts);
    let ended = async { while signals.next().await == Signal::Hangup {} };
    tokio::select! {
        () = serve::serve(listener, server) => Exit::Done,
        () = ended => Exit::Done,
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
        let page = include_str!("../../../docs/script-model.md");
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
