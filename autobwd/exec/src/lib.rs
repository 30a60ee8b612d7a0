//! Execution of programs: plans bound to memory, and instructions called in order.
//!
//! Must not create operators. A [`Session`] is a plan with its memory; a run performs no look-up, no hashing and no
//! allocation.
//!
//! `bind` allocates the arena and binds a plan to it once; kernels and fused kernels come from `kernel_binding` of the
//! planner, for plans and tapes alike.
//!
//! A run commits as a whole: a session copies a value of the scope before it overwrites it, if a later instruction may
//! fail, and restores the value on failure. Formulas never fail; kernels may, unless they are declared infallible. A
//! session of a [`Predictor`] is bound to a shared scope, which gives no memory to write, so sessions of several
//! threads read the same weights without a lock. A run with anomaly detection or another observer uses a plan
//! without fused kernels and without in-place operators.
//!
//! One loop executes all operators with a sub-block: it counts, evaluates the condition, passes saved steps to the
//! gradient and reruns the steps between checkpoints. If shapes change from step to step, the steps and the operators
//! after them are planned at run time, once for every combination of shapes; the memory of the last 16 combinations is
//! kept.

mod anomaly;
mod arithmetic;
mod bind;
mod checkpoint;
mod executor;
mod load_report;
mod memory_use;
mod monitor;
mod norm;
mod observer;
mod optimizer_state;
mod predictor;
mod scope;
mod session;
mod trace;

pub use checkpoint::Checkpoint;
pub use executor::Executor;
pub use load_report::{LoadReport, MismatchedValue};
pub use memory_use::{MemoryUse, PlannedRun};
pub use monitor::Monitor;
pub use observer::{ObservedOp, ObservedValue, Observer, ValueRange};
pub use optimizer_state::{LEARNING_RATE, SCHEDULE_STEP};
pub use predictor::Predictor;
pub use scope::Scope;
pub use session::Session;
pub use session::feed::Feed;
pub use trace::RunTrace;
