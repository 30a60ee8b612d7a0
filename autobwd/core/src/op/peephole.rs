//! Peephole optimisation: pairs of operators that one operator replaces.

use crate::{Op, OpDesc, Result, runtime::panics::catch_panic};

/// A pair of consecutive operators that one operator can replace: the gradient of a weight and the update that uses it,
/// say. A plan replaces them where only the second operator reads the intermediate results of the first.
///
/// ```
/// use autobwd::{op::Peephole, OpDesc};
/// use autobwd_ops::{matmul::{MatmulV2Grad, MatmulV2GradSgd}, update::SgdOp};
///
/// # use autobwd::Var;
/// # fn merge(first: &MatmulV2Grad, then: &SgdOp) -> Option<OpDesc> {
/// // In the library: impl Peephole<SgdOp> for MatmulV2Grad, which is declared with `peephole = SgdOp`.
/// first.merge(then)
/// # }
/// ```
pub trait Peephole<Then: Op>: Op {
    /// The replacement, if this pair has one. It reads the inputs of both, except for intermediate results of the
    /// first, and writes the outputs of both.
    fn merge(&self, then: &Then) -> Option<OpDesc>;
}

/// Merges a described pair.
pub(crate) type PeepholeFn = fn(&OpDesc, &OpDesc) -> Result<Option<OpDesc>>;

/// The partner of an operator that is declared with `peephole = ..`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeepholeEntry {
    /// The type of the partner.
    pub(crate) then: &'static str,
    pub(crate) merge: PeepholeFn,
}

impl PeepholeEntry {
    /// The entry for a pair of operators.
    pub(crate) const fn of<O: Peephole<Then>, Then: Op>() -> PeepholeEntry {
        PeepholeEntry {
            then: Then::SCHEMA.name,
            merge: |first, then| {
                let (first, then) = (O::from_desc(first)?, Then::from_desc(then)?);
                catch_panic(|| first.merge(&then)).map_err(|panic| {
                    let (first, then) = (O::SCHEMA.name, Then::SCHEMA.name);
                    panic.error(&format!("the peephole rule of `{first}` and `{then}`"))
                })
            },
        }
    }
}
