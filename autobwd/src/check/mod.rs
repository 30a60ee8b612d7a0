//! Checking operators against what they declare: samples, and gradients against central differences.

mod gradient;
mod sample;

pub use gradient::{Checked, check_sample, check_sample_in};
pub use sample::{
    Draw, OpSamples, Sample, away_from, between, distinct, given, integers_below, out, positive,
    probabilities, samples, uniform,
};
