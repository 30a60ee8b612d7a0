//! Tests across the crates of autobwd. Everything that needs registered operators is tested here: inside `autobwd` the
//! crate is compiled twice, and operators register with the other copy.

/// The examples of the README are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

// Named, so that every binary and test that uses this crate links the operators.
use autobwd_ops as _;

pub mod conformance;
