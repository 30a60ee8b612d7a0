//! Control flow: loops, conditionals and recurrences.

mod cond;
mod samples;
mod scan;
mod static_rnn;
mod while_loop;

pub use autobwd::operators::{
    ConditionalBlock, ConditionalBlockGrad, Recurrent, RecurrentGrad, While, WhileGrad,
};
pub use cond::{Branch, case, cond, switch_case};
pub use scan::scan;
pub(crate) use scan::scan_to_last;
pub use static_rnn::{StaticRnn, static_rnn};
pub use while_loop::{dynamic_dims, while_loop};
