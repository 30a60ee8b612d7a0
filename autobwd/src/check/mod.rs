//! Checking operators against what they declare: samples, and gradients against central differences.

mod checks;
mod coverage;
mod function;
mod sample;

pub use checks::{Checked, check_crate, check_sample, check_sample_in};
pub use sample::{
    Draw, OpSamples, Sample, away_from, between, distinct, given, integers_below, out, positive,
    probabilities, samples, uniform,
};
