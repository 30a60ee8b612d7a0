//! Programs as plain data: blocks, variables and operators, with text, JSON, drawings and differences.
//!
//! Must not know the registry, kernels or shape rules: all of this works for operators that are not registered.
//!
//! A variable is an index that is valid in its own program only, so passes use tables instead of maps. Every operator
//! records its `Origin`, and every gradient the variable that it belongs to (`VarDesc::gradient_of`); JSON keeps both.

mod attr;
mod diff;
pub mod draw;
mod fingerprint;
mod ids;
pub(crate) mod initialisers;
mod json;
mod name;
mod name_table;
mod op;
mod op_key;
mod op_matching;
mod program;
mod program_names;
mod program_signature;
mod signature;
mod structure;
mod text;
mod var_desc;
mod vars;

pub use attr::Attr;
pub use diff::{Diff, diff};
pub use ids::{BlockId, Var};
pub use name::Name;
pub use name_table::GRAD;
pub use op::{AttrMap, OpDesc, Origin, Site, SlotVars, Slots};
pub use op_key::OpKey;
pub use op_matching::{OpMatching, match_ops};
pub use program::{Block, Program};
pub use signature::{ProgramSignature, SignatureEntry};
pub use structure::{check_name, is_name};
pub use var_desc::{VarDesc, VarKind};
pub use vars::Vars;
