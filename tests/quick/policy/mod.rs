//! The policy engine against labelled requests, real bash, and its own mutations.

mod bash;
mod conditions;
mod corpus;
mod denied;
mod documented;
mod lint;
mod load;
mod mutation;
mod property;
mod speed;
mod tree;
