//! A third-party operator crate that uses the public interface of autobwd only.
//!
//! [`bell`](bell()) is elementwise, with a gradient derived from its formula; [`dense`](dense()) has a shape rule, a
//! kernel and a gradient operator; [`center`](center()) has a kernel on arrays and a gradient rule. The README of this
//! crate is the guide for authors of operator crates.

pub mod bell;
pub mod center;
pub mod dense;

pub use bell::bell;
pub use center::center;
pub use dense::dense;

// Backward parts also need operators of this crate, such as `sum`.
use autobwd_ops as _;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
