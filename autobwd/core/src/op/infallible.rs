//! Registration of operators whose kernels never fail.

/// Operators whose kernels accept all data, as a registry entry. Created by [`infallible!`](crate::infallible).
#[derive(Debug)]
pub struct Infallible(pub(crate) &'static [&'static str]);
inventory::collect!(Infallible);

impl Infallible {
    /// Operators of these types.
    pub const fn of(types: &'static [&'static str]) -> Infallible {
        Infallible(types)
    }
}

/// Declares that the kernels of these operators never fail on inputs that pass their shape rules:
/// `autobwd::op::infallible!(Conv2d, Conv2dGrad);`.
///
/// A step commits as a whole: values of the scope that it overwrites before a kernel that may fail are copied first, in
/// each run. Declare the operators of backward passes, so that in-place updates of parameters before them need no copy.
/// Formulas never fail and need no declaration.
#[macro_export]
macro_rules! infallible {
    ($($op:ty),* $(,)?) => {
        const _: () = {
            const TYPES: &[&str] = &[$(<$op as $crate::Op>::SCHEMA.name),*];
            $crate::__private::inventory::submit! { $crate::__private::Infallible::of(TYPES) }
        };
    };
}
