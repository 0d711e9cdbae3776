//! The policy engine against labelled requests, real bash, and its own mutations.

#[cfg(test)]
mod bash;
#[cfg(test)]
mod corpus;
#[cfg(test)]
mod denied;
#[cfg(test)]
mod documented;
#[cfg(test)]
mod load;
#[cfg(test)]
mod mutation;
#[cfg(test)]
mod occasion;
#[cfg(test)]
mod property;
#[cfg(test)]
mod speed;
#[cfg(test)]
mod tree;
