//! The calling convention of block functions: arguments as tagged pointers.
#![allow(unsafe_code)]

use crate::Float;

/// The address of one argument of a block function, as a tagged pointer, to preserve provenance. The lowest bit is set
/// if the argument is indexed by the block's position.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct BlockArg(*mut u8);

impl BlockArg {
    /// An absent optional slot.
    pub(super) const ABSENT: BlockArg = BlockArg(std::ptr::null_mut());

    /// The elements of the current block alone, such as a block register.
    #[inline]
    pub(super) fn block(start: *mut u8) -> BlockArg {
        BlockArg(start)
    }

    /// All elements, indexed by the block's position. They are aligned to two bytes at least.
    #[inline]
    pub(super) fn whole(start: *mut u8) -> BlockArg {
        BlockArg(start.map_addr(|address| address | 1))
    }

    #[inline(always)]
    pub(super) fn is_absent(self) -> bool {
        self.0.is_null()
    }

    /// The elements of the block that starts at element `first`.
    #[inline(always)]
    pub(super) fn elements<F>(self, first: usize) -> *mut F {
        let is_whole = self.0.addr() & 1;
        self.0.map_addr(|address| address & !1).cast::<F>().wrapping_add(is_whole * first)
    }
}

/// Evaluates a formula for elements `first..first + n`: arguments, attributes, first, n.
///
/// # Safety
/// There is an argument for every slot of the operator, in the order of its schema; only those of optional and
/// `shape_only` slots are absent. Each has `n` initialised elements of the block at `first`, and `n` is a multiple of a
/// cache line. Meanwhile, nothing else writes the elements that are read, or uses those that are
/// written; the elements of two arguments are identical or disjoint. The attributes were made by the operator's
/// `LaneEntry`.
pub(super) type BlockFn = unsafe fn(args: *const BlockArg, attrs: *const (), first: usize, n: usize);

/// The body of a block function, generic over lanes.
pub(super) trait BlockBody {
    /// # Safety
    /// As [`BlockFn`], with the `F` of the dtype.
    unsafe fn run<F: Float, const VL: usize>(args: *const BlockArg, attrs: *const (), first: usize, n: usize);
}
