//! Operators whose kernels take all data.

/// Operators whose kernels take all data, as the registry holds them. Made by [`infallible!`](crate::infallible).
#[derive(Debug)]
pub struct Infallible(pub(crate) &'static [&'static str]);
inventory::collect!(Infallible);

impl Infallible {
    /// Operators of these types.
    pub const fn of(types: &'static [&'static str]) -> Infallible {
        Infallible(types)
    }
}

/// Declares that the kernels of these operators never fail on data that their shape rules let through:
/// `autobwd::op::infallible!(Conv2d, Conv2dGrad);`.
///
/// A step commits as a whole: what it overwrites in the scope before a kernel that may fail is copied first, at each
/// run. Operators that stand in backward parts are worth declaring, so that in-place updates of parameters ahead of them
/// need no copy. Formulas never fail and need no declaration.
#[macro_export]
macro_rules! infallible {
    ($($op:ty),* $(,)?) => {
        const _: () = {
            const TYPES: &[&str] = &[$(<$op as $crate::Op>::SCHEMA.name),*];
            $crate::__private::inventory::submit! { $crate::op::Infallible::of(TYPES) }
        };
    };
}
