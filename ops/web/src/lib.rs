//! The training run of the example `digits` of `autobwd-ops`, for a page that trains in the browser.
//!
//! [`Trainer`] is a class of JavaScript. The page in `page` calls it, and `README.md` says how the page is built and
//! tested.

#[path = "../../examples/digits/batches.rs"]
mod batches;
#[path = "../../examples/digits/data.rs"]
mod data;
#[path = "../../examples/digits/network.rs"]
mod network;

mod failure;
mod trainer;

pub use failure::Failure;
pub use trainer::Trainer;
