//! The dialects from outside: what each line of an agent brings about, and what we write.

mod acp;
mod claude;
mod codex;
mod corpus;
mod custom;
mod fuzz;
mod fuzz_acp;
mod fuzz_claude;
mod fuzz_codex;
mod fuzz_custom;
mod fuzz_loaf;
mod fuzz_skillpilot;
mod loaf;
mod scaiflux;
mod script;
mod skillpilot;
