//! Peephole optimisation: pairs of operators that one operator replaces.

use crate::{Op, OpDesc, Result};

/// A pair of consecutive operators that one operator can replace: the gradient of a weight and the update that uses it,
/// say. A plan replaces them where only the second operator reads the intermediate results of the first.
///
/// ```
/// use autobwd::{op::Join, OpDesc};
/// use autobwd_ops::{matmul::{MatmulV2Grad, MatmulV2GradSgd}, update::SgdOp};
///
/// # use autobwd::Var;
/// # fn join(first: &MatmulV2Grad, then: &SgdOp) -> Option<OpDesc> {
/// // In the library: impl Join<SgdOp> for MatmulV2Grad, and autobwd::op::join!(MatmulV2Grad, SgdOp);
/// first.join(then)
/// # }
/// ```
pub trait Join<Then: Op>: Op {
    /// The replacement, if this pair has one. It reads the inputs of both, except for intermediate results of the
    /// first, and writes the outputs of both.
    fn join(&self, then: &Then) -> Option<OpDesc>;
}

/// A pair, as a registry entry. Created by [`join!`](crate::join).
#[derive(Debug)]
pub struct Joined {
    pub(crate) types: (&'static str, &'static str),
    pub(crate) join: fn(&OpDesc, &OpDesc) -> Result<Option<OpDesc>>,
}
inventory::collect!(Joined);

impl Joined {
    /// The entry for a pair of operators.
    pub const fn of<O: Join<Then>, Then: Op>() -> Joined {
        Joined {
            types: (O::SCHEMA.name, Then::SCHEMA.name),
            join: |first, then| Ok(O::from_desc(first)?.join(&Then::from_desc(then)?)),
        }
    }
}

/// Registers a pair of operators that one operator can replace: `autobwd::op::join!(MatmulV2Grad, SgdOp);`, with
/// `impl Join<SgdOp> for MatmulV2Grad`.
#[macro_export]
macro_rules! join {
    ($first:ty, $then:ty) => {
        const _: () = {
            $crate::__private::inventory::submit! { $crate::op::Joined::of::<$first, $then>() }
        };
    };
}
