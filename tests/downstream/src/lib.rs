//! A third-party operator crate that uses the public interface of autobwd only.
//!
//! [`bell`](bell()) is elementwise, with a gradient derived from its formula; [`dense`](dense()) has a shape rule, a
//! kernel and a gradient operator; [`center`](center()) has a kernel on arrays and a gradient rule;
//! [`window_sums`] computes with dimensions and has a function as gradient rule; [`unit`](unit()) and [`quantize`] run by
//! their compositions; [`repeat`](repeat()) runs a block; data decides the shape of [`peaks`](peaks()). The README of this
//! crate is the guide for authors of operator crates.

pub mod bell;
pub mod center;
pub mod dense;
pub mod peaks;
pub mod repeat;
pub mod unit;
pub mod windows;

pub use bell::bell;
pub use center::center;
pub use dense::dense;
pub use peaks::peaks;
pub use repeat::repeat;
pub use unit::{quantize, unit};
pub use windows::window_sums;

// Backward parts also need operators of this crate, such as `sum`.
use autobwd_ops as _;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
