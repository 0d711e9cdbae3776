//! The policy engine against labelled requests, real bash, and its own mutations.

mod bash;
mod corpus;
mod mutation;
mod speed;
mod tree;
