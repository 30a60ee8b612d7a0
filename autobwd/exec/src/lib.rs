//! Execution of programs: plans bound to memory, and instructions called in order.
//!
//! Must not create operators. A [`Session`] is a plan with its memory; a run performs no look-up, no hashing and no
//! allocation.

mod anomaly;
mod bind;
mod checkpoint;
mod executor;
mod monitor;
mod norm;
mod optimizer_state;
mod predictor;
mod scope;
mod session;

pub use checkpoint::Checkpoint;
pub use executor::Executor;
pub use monitor::Monitor;
pub use optimizer_state::{LEARNING_RATE, SCHEDULE_STEP};
pub use predictor::Predictor;
pub use scope::{LoadReport, MismatchedValue, Scope};
pub use session::Session;
pub use session::feed::Feed;
