//! Loops, branches and recurrences.

mod branch;
mod choice;
mod loops;
mod recurrent;
mod repeat;
mod rnn;
mod samples;
mod scan;

pub use branch::{ConditionalBlock, ConditionalBlockGrad};
pub use choice::{Branch, case, cond, switch_case};
pub use loops::{varying, while_loop};
pub use recurrent::{Recurrent, RecurrentGrad};
pub use repeat::{While, WhileGrad};
pub use rnn::{StaticRnn, static_rnn};
pub use scan::scan;
