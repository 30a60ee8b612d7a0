//! Registration of updates that treat every element of a parameter alone.

use std::collections::HashSet;

/// Types of updates, as a registry entry. Created by [`elementwise_updates!`](crate::elementwise_updates).
#[derive(Debug)]
pub struct ElementwiseUpdates(&'static [&'static str]);
inventory::collect!(ElementwiseUpdates);

impl ElementwiseUpdates {
    /// Operators of these types.
    pub const fn of(types: &'static [&'static str]) -> ElementwiseUpdates {
        ElementwiseUpdates(types)
    }

    /// The types of all updates that are linked into this binary.
    pub fn linked() -> HashSet<&'static str> {
        inventory::iter::<ElementwiseUpdates>.into_iter().flat_map(|all| all.0).copied().collect()
    }
}

/// Declares that these updates of parameters treat every element alone: `autobwd::op::elementwise_updates!(SgdOp);`.
///
/// With a part of parameter, gradient and state in its slots, such an update computes that part of the result. So the
/// parts may be on different ranks.
#[macro_export]
macro_rules! elementwise_updates {
    ($($op:ty),* $(,)?) => {
        const _: () = {
            const TYPES: &[&str] = &[$(<$op as $crate::Op>::SCHEMA.name),*];
            $crate::__private::inventory::submit! { $crate::__private::ElementwiseUpdates::of(TYPES) }
        };
    };
}
