//! What a training loop is made of, each part by itself.
#![allow(clippy::disallowed_methods, reason = "inputs and expected values")]

mod attention;
mod clipping;
mod hyperparameters;
mod inference;
mod kv_cache;
mod layers;
mod lbfgs;
mod losses;
mod methods;
mod metrics;
mod minimize;
mod names;
mod rates;
mod scalars;
mod specs;
mod support;
mod two_optimizers;
