//! Rules of operators.

use std::{collections::BTreeMap, fmt, sync::LazyLock};

use autobwd::{
    OpDesc, Result, Var,
    op::{Op, Role},
};

use super::{Hlo, ops};

/// The form of an operator in StableHLO, implemented for its struct with values in the slots.
///
/// ```standalone_crate
/// use autobwd::{Buf, Builder, Cx, DType, Kernel, New, NoGrad, OpInfoMap, Result, Var, emit, register_op};
/// use autobwd_xla::lower::{Hlo, Lower, LowerRequest, LowerRules, lower};
///
/// /// The elements in reverse order.
/// #[register_op(grad = NoGrad)]
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
/// impl Lower for Backwards<Hlo> {
///     fn lower(&mut self) {
///         self.out = self.x.reverse(&[0]);
///     }
/// }
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[4]);
/// let out = emit(Backwards { x: (&x).into(), out: New }).out;
/// let (rules, ops) = (LowerRules::new().with::<Backwards>(), OpInfoMap::linked()?);
/// let (program, feed) = (net.program()?, ("x", x.meta()));
/// let lowered = lower(&program, ops, &LowerRequest::new(&[feed], &|_| None, &[&out.name()]).rules(&rules))?;
/// assert!(lowered.text.contains("stablehlo.reverse %x, dims = [0]"), "{}", lowered.text);
/// # Ok::<(), autobwd::Error>(())
/// ```
pub trait Lower {
    /// Whether the rule supports these attributes and shapes; otherwise the operator's formula or composition is lowered.
    fn has_form(&self) -> bool {
        true
    }

    /// Sets the outputs from the inputs. Before, an output has the dtype and the dimensions that its value must have; a
    /// value with the same elements in other dimensions is reshaped. Outputs that nothing reads may remain as they are.
    fn lower(&mut self);
}

type FillSlots<'a> = &'a mut dyn FnMut(Role, &'static str, Var) -> Result<Hlo>;
type PutOutputs<'a> = &'a mut dyn FnMut(usize, Hlo);

/// Lowers a described operator; `false` if the rule does not support it.
pub(super) type LowerRule = fn(&OpDesc, FillSlots<'_>, PutOutputs<'_>) -> Result<bool>;

/// The rule of an operator, with its type in programs.
pub(super) fn rule<O: Op>() -> (&'static str, LowerRule)
where
    O::Of<Hlo>: Lower,
{
    let lower: LowerRule = |desc, fill, put| {
        let mut op = O::from_desc_with::<Hlo>(desc, fill)?;
        let has_form = op.has_form();
        if has_form {
            op.lower();
            O::outputs(op, put);
        }
        Ok(has_form)
    };
    (O::SCHEMA.name, lower)
}

/// Rules by the type of operators.
#[derive(Clone)]
pub struct LowerRules(BTreeMap<&'static str, LowerRule>);

impl fmt::Debug for LowerRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Default for LowerRules {
    fn default() -> LowerRules {
        LowerRules::new()
    }
}

impl LowerRules {
    /// The rules of this library.
    pub fn new() -> LowerRules {
        LowerRules(ops::rules().into_iter().collect())
    }

    /// The rules of this library.
    pub(super) fn library() -> &'static LowerRules {
        static LIBRARY: LazyLock<LowerRules> = LazyLock::new(LowerRules::new);
        &LIBRARY
    }

    /// Adds the rule of an operator, in place of another one.
    #[must_use]
    pub fn with<O: Op>(mut self) -> LowerRules
    where
        O::Of<Hlo>: Lower,
    {
        self.0.extend([rule::<O>()]);
        self
    }

    /// Whether there is a rule for operators of that type.
    pub fn contains(&self, ty: &str) -> bool {
        self.0.contains_key(ty)
    }

    pub(super) fn get(&self, ty: &str) -> Option<LowerRule> {
        self.0.get(ty).copied()
    }
}
