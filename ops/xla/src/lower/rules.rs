//! Rules of operators, collected at link time.

use std::sync::LazyLock;

use autobwd::op::{AnyRule, Op, Rule, Rules};
use autobwd_core::__private::inventory;

use super::Hlo;

/// A rule, as a registry entry. Created by [`rules!`](crate::rules).
#[derive(Debug)]
pub struct HloRule(&'static str, AnyRule<Hlo>);
inventory::collect!(HloRule);

impl HloRule {
    /// The entry for the rule of an operator.
    pub const fn of<O: Op>() -> HloRule
    where
        O::Of<Hlo>: Rule<Hlo>,
    {
        let (ty, rule) = AnyRule::of::<O>();
        HloRule(ty, rule)
    }
}

/// All rules that are linked into this binary.
pub fn linked_rules() -> &'static Rules<Hlo> {
    static RULES: LazyLock<Rules<Hlo>> = LazyLock::new(|| {
        inventory::iter::<HloRule>.into_iter().map(|HloRule(ty, rule)| (*ty, *rule)).collect()
    });
    &RULES
}

/// Registers the rules of operators: `autobwd_xla::rules!(Backwards);`, with `impl Rule<Hlo> for Backwards<Hlo>`.
///
/// An operator with a formula or a composition needs no rule. A rule for an operator that has neither makes it known
/// to XLA; a rule next to a composition is a *native form*, and needs a measurement that shows what it is for.
///
/// ```standalone_crate
/// use autobwd::{Buf, Builder, Cx, DType, Kernel, New, NoGrad, OpInfoMap, Result, Var, emit, op::Rule, register_op};
/// use autobwd_xla::lower::{Hlo, LowerRequest, lower};
///
/// /// The elements in reverse order.
/// #[register_op(grad = NoGrad, primitive)]
/// pub struct Backwards<V = Var> {
///     /// A vector.
///     #[input]
///     pub x: V,
///     /// Same shape as `x`.
///     #[output(like = x)]
///     pub out: V,
/// }
/// impl Kernel for Backwards<Buf<'_>> {
///     fn run(&mut self, _: &Cx) -> Result<()> {
///         self.out.slice_mut::<f32>()?.copy_from_slice(self.x.slice()?);
///         self.out.slice_mut::<f32>()?.reverse();
///         Ok(())
///     }
/// }
/// impl Rule<Hlo> for Backwards<Hlo> {
///     fn apply(&mut self) {
///         self.out = self.x.reverse(&[0]);
///     }
/// }
/// autobwd_xla::rules!(Backwards);
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[4]);
/// let out = emit(Backwards { x: (&x).into(), out: New }).out;
/// let (program, feed) = (net.program()?, ("x", x.meta()));
/// let lowered = lower(&program, OpInfoMap::linked()?, &LowerRequest::new(&[feed], &|_| None, &[&out.name()]))?;
/// assert!(lowered.text.contains("stablehlo.reverse %x, dims = [0]"), "{}", lowered.text);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[macro_export]
macro_rules! rules {
    ($($op:ty),* $(,)?) => {$(
        $crate::__private::inventory::submit! { $crate::lower::HloRule::of::<$op>() }
    )*};
}
