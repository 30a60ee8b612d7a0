//! Numbers of variables and blocks.

/// A variable: the number of its name, valid within its program only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub(super) u32);

impl Var {
    /// `@EMPTY@`: no variable, in a list that must keep its positions.
    pub const EMPTY: Var = Var(0);

    /// A placeholder for a variable that does not exist yet; not 0.
    pub(crate) fn stand_in(k: usize) -> Var {
        Var(k as u32)
    }

    /// Dense index, for tables with one entry per variable.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a block in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(u32);

impl BlockId {
    /// The root block, which every program has.
    pub const ROOT: BlockId = BlockId(0);

    /// Index among the program's blocks.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The block with this index.
    pub fn new(index: usize) -> BlockId {
        BlockId(index as u32)
    }
}
