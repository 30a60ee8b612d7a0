//! Programs as plain data: blocks, variables and operators, with text, JSON, drawings and differences.
//!
//! Must not know the registry, kernels or shape rules: all of this works for operators that are not registered.

mod attr;
mod diff;
pub mod draw;
mod json;
mod name;
mod names;
mod op;
mod program;
mod structure;
mod text;
mod vars;
mod words;

pub use attr::Attr;
pub use diff::{Diff, diff};
pub use name::Name;
pub use names::GRAD;
pub use op::{Args, AttrMap, OpDesc, Origin, Site, Slots};
pub use program::{Block, BlockId, Program, Var, VarDesc, VarKind};
pub use structure::{check_name, is_name};
pub use vars::Vars;
pub use words::Words;
