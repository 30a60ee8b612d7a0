//! Running programs: plans bound to memory, frames called in order.
//!
//! Must not create operators. A [`Session`] is a plan with its memory; running it looks nothing up, hashes nothing and
//! allocates nothing.

mod bind;
mod executor;
mod finite;
mod scope;
mod session;

pub use executor::Executor;
pub use scope::Scope;
pub use session::Session;
pub use session::feed::Feed;
