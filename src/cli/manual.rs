//! Shell completions and manual pages.
//!
//! Both are generated from the definition in `args`, so they match the command line.

use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::args::{Cli, Command};
use super::exit::Exit;
use super::streams::Streams;

/// The program's name.
const NAME: &str = "marshal";

/// `completions …`
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct CompletionsArgs {
    /// The shell to print completions for
    shell: Shell,
}

/// `man …`
#[derive(Debug, Clone, clap::Args)]
pub struct ManArgs {
    /// Write a page for each command into this directory, named as `man` expects; without it, print
    /// the main page
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs one of the two commands.
pub(super) fn main(command: &Command, mut streams: Streams) -> Exit {
    match command {
        Command::Completions(args) => {
            let mut text = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut text);
            print(text, &mut streams)
        }
        Command::Man(args) => match &args.out {
            Some(dir) => pages(dir, &mut streams),
            None => page(&mut streams),
        },
        _ => Exit::Usage,
    }
}

fn page(streams: &mut Streams) -> Exit {
    let mut text = Vec::new();
    match clap_mangen::Man::new(Cli::command()).render(&mut text) {
        Ok(()) => print(text, streams),
        Err(error) => failed("render the page", &error, streams),
    }
}

fn pages(dir: &Path, streams: &mut Streams) -> Exit {
    let made = std::fs::create_dir_all(dir);
    match made.and_then(|()| clap_mangen::generate_to(Cli::command(), dir)) {
        Ok(()) => Exit::Done,
        Err(error) => {
            let doing = format!("write the pages into {}", dir.display());
            failed(&doing, &error, streams)
        }
    }
}

fn print(text: Vec<u8>, streams: &mut Streams) -> Exit {
    match String::from_utf8(text) {
        Ok(text) => {
            streams.out.text(&text);
            Exit::Done
        }
        Err(error) => failed("render the text", &io::Error::other(error), streams),
    }
}

fn failed(doing: &str, error: &io::Error, streams: &mut Streams) -> Exit {
    streams.err.line(&format!("error: cannot {doing}: {error}"));
    Exit::Failures
}
