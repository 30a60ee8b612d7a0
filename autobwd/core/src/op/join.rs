//! Pairs of operators that can run as one.

use crate::{Op, OpDesc, Result};

/// Two operators, one behind the other, that one operator can do the work of: the gradient of a weight and the step
/// that uses it up, say. A plan puts it in their place where the second alone reads what the first writes for it.
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
    /// The operator, if there is one for this pair. It reads what both do, but for what the first writes for the second,
    /// and writes what both do.
    fn join(&self, then: &Then) -> Option<OpDesc>;
}

/// A pair, as the registry holds it. Made by [`join!`](crate::join).
#[derive(Debug)]
pub struct Joined {
    pub(crate) types: (&'static str, &'static str),
    pub(crate) join: fn(&OpDesc, &OpDesc) -> Result<Option<OpDesc>>,
}
inventory::collect!(Joined);

impl Joined {
    /// The pair of these operators.
    pub const fn of<O: Join<Then>, Then: Op>() -> Joined {
        Joined {
            types: (O::SCHEMA.name, Then::SCHEMA.name),
            join: |first, then| Ok(O::from_desc(first)?.join(&Then::from_desc(then)?)),
        }
    }
}

/// Registers a pair of operators that can run as one: `autobwd::op::join!(MatmulV2Grad, SgdOp);`, with
/// `impl Join<SgdOp> for MatmulV2Grad`.
#[macro_export]
macro_rules! join {
    ($first:ty, $then:ty) => {
        const _: () = {
            $crate::__private::inventory::submit! { $crate::op::Joined::of::<$first, $then>() }
        };
    };
}
