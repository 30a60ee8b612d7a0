//! Checks of operators against their declarations: samples, and gradients against central differences.
//!
//! A sample is an operator with random generators for its slots ([`samples!`](crate::samples)), or a small program that
//! contains the operator ([`Sample::of_program`]). [`check_sample`] lists the checks of each;
//! [`check_all!`](crate::check_all) checks all samples of a crate in one test, and warns of gaps.

mod allocations;
mod checks;
mod composition;
mod coverage;
mod derivatives;
mod function;
mod half_precision;
mod hostile;
mod integers;
mod kernels;
mod package;
mod panics;
mod precision;
mod results;
mod rewrites;
mod shapes;
mod sparse;
mod unused;
mod values;

pub use allocations::CountingAllocator;
pub use autobwd_core::sample::{
    Draw, MakeProgram, OpSamples, Sample, SampleRow, away_from, between, distinct, given, integers,
    integers_below, out, positive, probabilities, samples, uniform,
};
pub use checks::{CheckedSample, check_sample, check_sample_alone};
pub use function::sample_program;
pub use package::{CheckReport, Coverage, check_coverage, check_crate, check_within};
pub use results::{enlarged_sample, resized_samples, sample_results};
