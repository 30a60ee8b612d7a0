//! Structural checks that passes over a program rely on: its variables and blocks exist, and blocks form a tree, at
//! most 32 deep. Readers of files make the same checks.

use std::sync::atomic::Ordering;

use super::{BlockId, Program};
use crate::{Error, ErrorKind, Result};

/// The limit of nested blocks: passes recurse into them, on stacks of 2 MiB per thread.
const MAX_DEPTH: usize = 32;

/// Whether this is a valid name of a variable.
pub fn is_name(name: &str) -> bool {
    // Most names are ASCII, whose bytes need no decoding.
    let is_unbroken = name.bytes().all(|b| b.is_ascii_graphic()) || !name.contains(char::is_whitespace);
    is_unbroken && !name.is_empty() && name != "@EMPTY@"
}

/// Checks a name that a user gives; `@` is reserved for variables that the backward pass adds.
///
/// # Errors
/// An invalid name.
pub fn check_name(name: &str) -> Result<()> {
    if is_name(name) && !name.contains('@') {
        return Ok(());
    }
    let text =
        format!("{name:?} cannot be a variable name: names are not empty and have neither `@` nor spaces");
    Err(Error::new(ErrorKind::UnknownVar, text))
}

impl Program {
    /// Whether the program was found valid and has not changed since.
    pub(crate) fn is_verified(&self) -> bool {
        self.verified.0.load(Ordering::Relaxed) == self.stamp()
    }

    /// Records that the program is valid, until it changes.
    pub(crate) fn mark_verified(&self) {
        self.verified.0.store(self.stamp(), Ordering::Relaxed);
    }

    /// Checks the structure that passes rely on, so that they can use tables and recursion: variables belong to the
    /// program; a block's parent precedes it; each sub-block follows the block of the one operator that names it;
    /// blocks are nested at most 32 deep.
    ///
    /// # Errors
    /// The first fault.
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
                        Some(_) if inner <= b => format!("block {inner} is not nested in block {b}"),
                        Some(true) => format!("two operators run block {inner}"),
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
