//! Rules of operators, collected at link time.

use std::sync::LazyLock;

use autobwd::op::{AnyRule, Op, Rule, Rules};
use autobwd_core::__private::inventory;

use super::Onnx;

/// A rule, as a registry entry. Created by [`rules!`](crate::rules).
#[derive(Debug)]
pub struct OnnxRule(&'static str, AnyRule<Onnx>);
inventory::collect!(OnnxRule);

impl OnnxRule {
    /// The entry for the rule of an operator.
    pub const fn of<O: Op>() -> OnnxRule
    where
        O::Of<Onnx>: Rule<Onnx>,
    {
        let (ty, rule) = AnyRule::of::<O>();
        OnnxRule(ty, rule)
    }
}

/// All rules that are linked into this binary.
pub fn linked_rules() -> &'static Rules<Onnx> {
    static RULES: LazyLock<Rules<Onnx>> = LazyLock::new(|| {
        inventory::iter::<OnnxRule>.into_iter().map(|OnnxRule(ty, rule)| (*ty, *rule)).collect()
    });
    &RULES
}

/// Registers the rules of operators: `autobwd_onnx::rules!(Backwards);`, with `impl Rule<Onnx> for Backwards<Onnx>`.
///
/// An operator with a formula or a composition needs no rule. A rule for an operator that has neither lets it be
/// written; a rule next to a composition is a *native form*, and needs a measurement that shows what it is for.
///
/// ```standalone_crate
/// use autobwd::{Buf, Builder, Cx, DType, Kernel, New, NoGrad, Result, Scope, Var, emit, op::Rule, register_op};
/// use autobwd_onnx::{LoadOptions, Onnx, from_bytes, to_bytes};
/// use autobwd_ops::Model;
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
/// impl Rule<Onnx> for Backwards<Onnx> {
///     fn apply(&mut self) {
///         let [last, end, step] = [-1, i64::MIN, -1].map(|n| self.x.ints(&[n]));
///         self.out = self.x.node("Slice", &[&last, &end, &self.x.ints(&[0]), &step], &[]);
///     }
/// }
/// autobwd_onnx::rules!(Backwards);
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[4]);
/// let out = emit(Backwards { x: (&x).into(), out: New }).out;
/// let (program, scope) = (net.program()?.clone(), Scope::new());
/// let model = Model { program, feeds: vec!["x".into()], fetches: vec![out.name()], scope };
/// let loaded = from_bytes(&to_bytes(&model)?, &LoadOptions::default())?;
/// assert_eq!(loaded.program.root().ops[0].ty, "flip");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[macro_export]
macro_rules! rules {
    ($($op:ty),* $(,)?) => {$(
        $crate::__private::inventory::submit! { $crate::OnnxRule::of::<$op>() }
    )*};
}
