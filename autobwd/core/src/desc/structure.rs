//! What passes over a program take for granted: its variables and blocks exist, and blocks form a tree.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{BlockId, Program};
use crate::{Error, ErrorKind, Result};

/// How deep blocks may be nested: passes recurse into them, on the 2 MiB that threads have.
const MAX_DEPTH: usize = 32;

/// Whether a variable can be called so.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(char::is_whitespace) && name != "@EMPTY@"
}

/// Refuses names that people cannot give: `@` marks what the backward part adds.
///
/// # Errors
/// Names the name.
pub fn check_name(name: &str) -> Result<()> {
    if is_name(name) && !name.contains('@') {
        return Ok(());
    }
    let text = format!("{name:?} cannot be a variable: names are not empty and have neither `@` nor spaces");
    Err(Error::new(ErrorKind::UnknownVar, text))
}

/// The state of a program that was found valid, by its stamp.
#[derive(Debug, Default)]
pub(super) struct Verified(AtomicU64);

impl Clone for Verified {
    fn clone(&self) -> Verified {
        Verified(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

impl Program {
    /// Whether the program was found valid and has not changed since.
    #[doc(hidden)]
    pub fn is_verified(&self) -> bool {
        self.verified.0.load(Ordering::Relaxed) == self.stamp()
    }

    /// Remembers that the program is valid, until it changes.
    pub(crate) fn mark_verified(&self) {
        self.verified.0.store(self.stamp(), Ordering::Relaxed);
    }

    /// Checks what passes take for granted, so that they can use tables and recursion: variables are the program's own;
    /// a block's parent stands before it; each sub-block stands behind the block of the one operator that names it, and
    /// blocks are nested at most 32 deep.
    ///
    /// # Errors
    /// The first fault.
    #[doc(hidden)]
    pub fn check_structure(&self) -> Result<()> {
        self.own_variables()?;
        let refuse = |text: String| Err(Error::new(ErrorKind::Program, text));
        let blocks = self.blocks();
        let mut named = vec![false; blocks.len()];
        let mut depth = vec![0; blocks.len()];
        for (b, block) in blocks.iter().enumerate() {
            if block.parent.is_some_and(|p| p.index() >= b) || (b > 0) != block.parent.is_some() {
                return refuse(format!("block {b}: its parent is not a block before it"));
            }
            if let Some(forward) = block.forward.filter(|f| f.index() == b || f.index() >= blocks.len()) {
                return refuse(format!("block {b} cannot be the gradient of block {}", forward.index()));
            }
            for (i, op) in block.ops.iter().enumerate() {
                for inner in op.attrs.blocks().map(BlockId::index) {
                    let fault = match named.get(inner) {
                        None => format!("there is no block {inner}"),
                        Some(_) if inner <= b => format!("block {inner} is not within block {b}"),
                        Some(true) => format!("another operator runs block {inner}, too"),
                        Some(false) if depth[b] == MAX_DEPTH => {
                            format!("blocks are nested more than {MAX_DEPTH} deep")
                        }
                        Some(false) => {
                            (named[inner], depth[inner]) = (true, depth[b] + 1);
                            continue;
                        }
                    };
                    let at = || self.describe_op(BlockId::new(b), i, op);
                    return refuse(fault).map_err(|e| e.at_op(at));
                }
            }
        }
        Ok(())
    }
}
