//! A direct-mapped cache in front of the operator map, for passes over many operators of few types.

use crate::{Name, OpInfo, OpInfoMap, Result};

/// A direct-mapped cache of operator entries, keyed by the address of the operator type.
pub struct Lookup<'a> {
    ops: &'a OpInfoMap,
    recent: [Option<(&'static str, &'static OpInfo)>; RECENT],
}

const RECENT: usize = 64;

impl<'a> Lookup<'a> {
    /// Without entries so far.
    pub fn new(ops: &'a OpInfoMap) -> Lookup<'a> {
        Lookup { ops, recent: [None; RECENT] }
    }

    /// As [`OpInfoMap::get`].
    ///
    /// # Errors
    /// As [`OpInfoMap::get`].
    pub fn get(&mut self, ty: Name) -> Result<&'static OpInfo> {
        let ty = ty.as_str();
        // String literals are adjacent in memory, so that low bits of their addresses differ.
        let recent = &mut self.recent[(ty.as_ptr().addr() ^ ty.len()) % RECENT];
        match recent {
            Some((known, info)) if std::ptr::eq(*known, ty) => Ok(*info),
            _ => {
                let info = self.ops.get(ty)?;
                *recent = Some((ty, info));
                Ok(info)
            }
        }
    }
}
