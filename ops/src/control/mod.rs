//! Control flow: loops, conditionals and recurrences.

mod choice;
mod loops;
mod rnn;
mod samples;
mod scan;

pub use autobwd::operators::{
    ConditionalBlock, ConditionalBlockGrad, Recurrent, RecurrentGrad, While, WhileGrad,
};
pub use choice::{Branch, case, cond, switch_case};
pub use loops::{varying, while_loop};
pub use rnn::{StaticRnn, static_rnn};
pub use scan::scan;
