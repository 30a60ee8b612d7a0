//! Gradient operators derived from formulas by forward-mode differentiation: `grad = Derived`.
//!
//! The gradient of `swish` is the operator `swish_grad`, whose formula is the formula of `swish` on [`Dual`] numbers;
//! higher orders are derived in the same way. `swish_grad` has the slots that the reference's default maker gives it;
//! an operator of order k > 1 has the inputs of order k − 1, the incoming gradients `Dk_…`, and a gradient for each
//! input.
//!
//! The order is at most 3: the schema of each order is computed at compile time. The formula of a gradient is compiled
//! for every dtype and instruction set; formulas of higher orders are interpreted (`lanes/interpreter.rs`).
//!
//! The registry adds the gradient operator along with the forward operator.

use std::marker::PhantomData;

use super::{GradCx, GradKind, GradRule, NoGrad, Op, OpInfo};
use crate::{
    Arity, AttrDef, AttrMap, Describe, Error, ErrorKind, Lanes, OpDesc, Result, Role, Schema, SlotDef,
    SlotValues, Var,
    lanes::{MAX_ARGS, RecordedFormula},
    numbers::{Dual, Float, Symbol},
    schema::{ConstText, Slot, check_described, const_for, gather_slot},
};

/// `grad = Derived`, for pointwise operators: the gradient operator is derived from the formula.
#[derive(Debug)]
pub struct Derived;

impl<O: Op + Lanes> GradRule<O> for Derived {
    const KIND: GradKind = GradKind::Derived(&<Derivative<O, FirstOrder> as DerivativeInfo>::INFO);

    fn emit(_: &O, g: &mut GradCx<'_>) {
        emit::<O, FirstOrder>(g);
    }
}

/// As [`Derived`], but the gradient operator does not list the outputs of the forward operator, for compatibility with
/// reference operators that omit them.
#[derive(Debug)]
pub struct DerivedFromInputs;

impl<O: Op + Lanes> GradRule<O> for DerivedFromInputs {
    const KIND: GradKind = GradKind::Derived(&<Derivative<O, FirstOrderFromInputs> as DerivativeInfo>::INFO);

    fn emit(_: &O, g: &mut GradCx<'_>) {
        emit::<O, FirstOrderFromInputs>(g);
    }
}

/// The number of times a formula has been differentiated.
pub trait Order: Sized + Send + Sync + 'static {
    /// 1, 2 or 3.
    const NUMBER: usize;
    /// Whether the gradient operator lists the outputs of the forward operator.
    const LISTS_OUTPUTS: bool = false;
    /// The gradient rule of that derivative.
    type Next<O: Op + Lanes>: GradRule<Derivative<O, Self>>;
}

/// The gradient.
#[derive(Debug)]
pub struct FirstOrder;
/// The gradient, without outputs of the forward operator.
#[derive(Debug)]
pub struct FirstOrderFromInputs;
/// The gradient of the gradient.
#[derive(Debug)]
pub struct SecondOrder;
/// The gradient of the second-order gradient; it has no gradient itself. For more, declare the gradient as an operator
/// and derive from that.
#[derive(Debug)]
pub struct ThirdOrder;

impl Order for FirstOrder {
    const NUMBER: usize = 1;
    const LISTS_OUTPUTS: bool = true;
    type Next<O: Op + Lanes> = NextOrder<SecondOrder>;
}
impl Order for FirstOrderFromInputs {
    const NUMBER: usize = 1;
    type Next<O: Op + Lanes> = NextOrder<SecondOrder>;
}
impl Order for SecondOrder {
    const NUMBER: usize = 2;
    type Next<O: Op + Lanes> = NextOrder<ThirdOrder>;
}
impl Order for ThirdOrder {
    const NUMBER: usize = 3;
    type Next<O: Op + Lanes> = NoGrad;
}

/// The rule that leads from one derivative to the next.
#[derive(Debug)]
pub struct NextOrder<N>(PhantomData<N>);

impl<O: Op + Lanes, N: Order, M: Order> GradRule<Derivative<O, M>> for NextOrder<N> {
    const KIND: GradKind = GradKind::Derived(&<Derivative<Derivative<O, M>, N> as DerivativeInfo>::INFO);

    fn emit(_: &Derivative<O, M>, g: &mut GradCx<'_>) {
        emit::<Derivative<O, M>, N>(g);
    }
}

/// The registry entry of a derivative.
trait DerivativeInfo {
    const INFO: OpInfo;
}
impl<O: Op + Lanes, N: Order> DerivativeInfo for Derivative<O, N> {
    const INFO: OpInfo = OpInfo::derivative::<Derivative<O, N>>(&O::SCHEMA);
}

/// The N-th derivative of a formula, with `W` in its slots.
#[derive(Debug)]
pub struct Derivative<O, N, W = Var> {
    /// By slot of the schema.
    inputs: Vec<Option<W>>,
    outputs: Vec<Option<W>>,
    attrs: AttrMap,
    of: PhantomData<fn() -> (O, N)>,
}

/// Adds the operator that differentiates the forward operator `O`.
fn emit<O: Op + Lanes, N: Order>(g: &mut GradCx<'_>) {
    emit_derivative(const { &Derivative::<O, N>::SCHEMA }, const { &O::SCHEMA }, N::LISTS_OUTPUTS, g);
}

/// Adds the operator `made`, which differentiates the operator `own`.
fn emit_derivative(made: &'static Schema, own: &'static Schema, lists_outputs: bool, g: &mut GradCx<'_>) {
    let fwd = g.forward().clone();
    let mut op = OpDesc { attrs: fwd.attrs.clone(), ..OpDesc::new(made.name) };
    let mut names = made.inputs.iter().map(|s| s.name);
    let mut put = |op: &mut OpDesc, args: Vec<Var>| {
        if let Some(name) = names.next().filter(|_| !args.is_empty()) {
            op.inputs.set(name, args);
        }
    };
    own.inputs.iter().for_each(|s| put(&mut op, fwd.inputs.get(s.name).to_vec()));
    if lists_outputs {
        own.outputs.iter().for_each(|s| put(&mut op, fwd.outputs.get(s.name).to_vec()));
    }
    own.outputs
        .iter()
        .for_each(|s| put(&mut op, fwd.outputs.get(s.name).iter().map(|v| g.grad(*v)).collect()));
    for (slot, made) in own.inputs.iter().filter(|s| !s.shape_only).zip(made.outputs) {
        let wanted = fwd.inputs.get(slot.name).iter().filter_map(|v| g.wanted(*v));
        op.outputs.set(made.name, wanted.collect::<Vec<_>>());
    }
    g.push(op);
}

/// Checks the description of a derivative: slots, attributes, and that there is an output.
///
/// # Errors
/// As [`check_described`]; an operator without outputs.
pub(crate) fn check_derivative(made: &Schema, desc: &OpDesc) -> Result<()> {
    check_described(made, desc)?;
    let is_written = |slot: &SlotDef| desc.outputs.get(slot.name).iter().any(|var| *var != Var::EMPTY);
    match made.outputs.iter().any(is_written) {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Slot, "writes nothing")),
    }
}

/// The operator `own` as data, from the description `made` of its derivative.
fn forward(own: &'static Schema, made: &'static Schema, desc: &OpDesc) -> OpDesc {
    let mut fwd = OpDesc { attrs: desc.attrs.clone(), ..OpDesc::new(own.name) };
    for slot in own.inputs {
        fwd.inputs.set(slot.name, desc.inputs.get(slot.name).iter().copied());
    }
    let incoming = &made.inputs[made.inputs.len() - own.outputs.len()..];
    for (slot, gradient) in own.outputs.iter().zip(incoming) {
        // Any variable will do: only whether an optional output is present matters.
        fwd.outputs.set(slot.name, desc.inputs.get(gradient.name).iter().copied());
    }
    fwd
}

/// The name of an operator or slot.
type NameText = ConstText<96>;

const NO_SLOT: SlotDef = SlotDef::new("", Arity::Optional, "", 0);

/// The slots of a derivative and their names, in arrays with unused elements at the end: stable Rust has no array
/// length that depends on `O`. Excess slots are dropped, since `SLOTS` chooses a table that is large enough.
struct SlotTable<O, N, const M: usize>(PhantomData<(O, N)>);

impl<O: Op + Lanes, N: Order, const M: usize> SlotTable<O, N, M> {
    /// Names of the incoming gradients.
    const INCOMING: [NameText; M] = {
        let mut names = [NameText::EMPTY; M];
        let mut i = 0;
        while i < O::SCHEMA.outputs.len() && i < M {
            names[i] = match N::NUMBER {
                1 => NameText::of(&[O::SCHEMA.outputs[i].name, "@GRAD"]),
                2 => NameText::of(&["D2_", O::SCHEMA.outputs[i].name]),
                _ => NameText::of(&["D3_", O::SCHEMA.outputs[i].name]),
            };
            i += 1;
        }
        names
    };
    /// Names of the gradients of all inputs.
    const OUTGOING: [NameText; M] = {
        let mut names = [NameText::EMPTY; M];
        let mut i = 0;
        while i < O::SCHEMA.inputs.len() && i < M {
            names[i] = NameText::of(&[O::SCHEMA.inputs[i].name, "@GRAD"]);
            i += 1;
        }
        names
    };

    const INPUTS: [SlotDef; M] = {
        let (own, mut slots) = (&O::SCHEMA, [NO_SLOT; M]);
        let (mut n, mut i) = (0, 0);
        while i < own.inputs.len() && n < M {
            // Formulas take dense tensors; only the kernel of an operator takes others.
            slots[n] = SlotDef { sparse: false, ..own.inputs[i] };
            (n, i) = (n + 1, i + 1);
        }
        i = 0;
        while N::LISTS_OUTPUTS && i < own.outputs.len() && n < M {
            let slot = own.outputs[i];
            slots[n] = SlotDef::new(slot.name, slot.arity, "Output of the forward operator.", slot.line)
                .shape_only();
            (n, i) = (n + 1, i + 1);
        }
        i = 0;
        while i < own.outputs.len() && n < M {
            let slot = own.outputs[i];
            slots[n] = SlotDef::new(Self::INCOMING[i].as_str(), slot.arity, "Its gradient.", slot.line);
            (n, i) = (n + 1, i + 1);
        }
        slots
    };
    const OUTPUTS: [SlotDef; M] = {
        let (own, mut slots) = (&O::SCHEMA, [NO_SLOT; M]);
        let (mut n, mut i) = (0, 0);
        while i < own.inputs.len() && i < M {
            let slot = own.inputs[i];
            if !slot.shape_only {
                let arity = if Derivative::<O, N>::OUTPUTS > 1 { Arity::Optional } else { slot.arity };
                let made =
                    SlotDef::new(Self::OUTGOING[i].as_str(), arity, "Gradient of an input.", slot.line);
                slots[n] = made.like(slot.name);
                n += 1;
            }
            i += 1;
        }
        slots
    };
}

impl<O: Op + Lanes, N: Order> Derivative<O, N> {
    const INPUTS: usize = {
        let outputs = O::SCHEMA.outputs.len();
        O::SCHEMA.inputs.len() + if N::LISTS_OUTPUTS { 2 * outputs } else { outputs }
    };
    const OUTPUTS: usize = {
        let mut n = 0;
        const_for!(input in O::SCHEMA.inputs => { n += !input.shape_only as usize; });
        n
    };

    const NAME: NameText = NameText::of(&[O::SCHEMA.name, "_grad"]);

    /// Inputs and outputs, from the smallest table that holds them: the tables are part of every program that links the
    /// operator.
    const SLOTS: (&'static [SlotDef], &'static [SlotDef]) = {
        let (inputs, outputs): (&[SlotDef], &[SlotDef]) = match Self::INPUTS {
            0..=8 => (&SlotTable::<O, N, 8>::INPUTS, &SlotTable::<O, N, 8>::OUTPUTS),
            9..=24 => (&SlotTable::<O, N, 24>::INPUTS, &SlotTable::<O, N, 24>::OUTPUTS),
            _ => (&SlotTable::<O, N, MAX_ARGS>::INPUTS, &SlotTable::<O, N, MAX_ARGS>::OUTPUTS),
        };
        (inputs.split_at(Self::INPUTS).0, outputs.split_at(Self::OUTPUTS).0)
    };

    fn forward(desc: &OpDesc) -> OpDesc {
        forward(const { &O::SCHEMA }, const { &Self::SCHEMA }, desc)
    }
}

impl<O: Op + Lanes, N: Order, W> Describe<W> for Derivative<O, N, W> {
    type Op = Derivative<O, N>;

    fn into_parts(self, to: &mut SlotValues<W>) -> Derivative<O, N, ()> {
        let schema = &Derivative::<O, N>::SCHEMA;
        let mut slots = |role: Role, slots: &[SlotDef], held: Vec<Option<W>>| -> Vec<Option<()>> {
            slots.iter().zip(held).map(|(slot, held)| to.slot(role, slot.name, held)).collect()
        };
        let (inputs, outputs) = (
            slots(Role::Input, schema.inputs, self.inputs),
            slots(Role::Output, schema.outputs, self.outputs),
        );
        to.recorder().attrs(&self.attrs);
        Derivative { inputs, outputs, attrs: self.attrs, of: PhantomData }
    }
}

/// The slots of a derivative.
fn read_derivative(
    schema: &Schema,
    desc: &OpDesc,
    visit: &mut dyn FnMut(Role, &'static str, Var) -> Result<()>,
) -> Result<[Vec<Option<()>>; 2]> {
    check_derivative(schema, desc)?;
    let mut slots = |role: Role, slots: &[SlotDef]| -> Result<Vec<Option<()>>> {
        let one = |slot: &SlotDef| match slot.arity {
            Arity::One => gather_slot::<()>(desc, role, slot.name, visit).map(Some),
            _ => gather_slot::<Option<()>>(desc, role, slot.name, visit),
        };
        slots.iter().map(one).collect()
    };
    Ok([slots(Role::Input, schema.inputs)?, slots(Role::Output, schema.outputs)?])
}

impl<O: Op + Lanes, N: Order> Op for Derivative<O, N> {
    const SCHEMA: Schema = Schema {
        name: Self::NAME.as_str(),
        inputs: Self::SLOTS.0,
        outputs: Self::SLOTS.1,
        scratch: &[],
        attrs: O::SCHEMA.attrs as &[AttrDef],
        pointwise: true,
        broadcast: O::SCHEMA.broadcast,
        integers: false,
        doc: "The derivative of a formula, made from the formula.",
        file: O::SCHEMA.file,
        line: O::SCHEMA.line,
    };
    type Grad = N::Next<O>;
    type Of<W> = Derivative<O, N, W>;

    fn read(
        desc: &OpDesc,
        visit: &mut dyn FnMut(Role, &'static str, Var) -> Result<()>,
    ) -> Result<Derivative<O, N, ()>> {
        let [inputs, outputs] = read_derivative(const { &Self::SCHEMA }, desc, visit)?;
        Ok(Derivative { inputs, outputs, attrs: desc.attrs.clone(), of: PhantomData })
    }

    fn from_desc(desc: &OpDesc) -> Result<Self> {
        Self::from_desc_with(desc, &mut |_, _, var| Ok(var))
    }

    fn fill<W>(of: Derivative<O, N, ()>, fill: &mut dyn FnMut() -> W) -> Derivative<O, N, W> {
        let (inputs, outputs) = (Slot::<()>::filled(&of.inputs, fill), Slot::<()>::filled(&of.outputs, fill));
        Derivative { inputs, outputs, attrs: of.attrs, of: PhantomData }
    }

    fn outputs<W>(of: Derivative<O, N, W>, put: &mut dyn FnMut(usize, W)) {
        for (slot, held) in of.outputs.into_iter().enumerate() {
            if let Some(held) = held {
                put(slot, held);
            }
        }
    }
}

impl<O: Op + Lanes, N: Order> Lanes for Derivative<O, N> {
    const SLOTS: Schema = <Self as Op>::SCHEMA;
    type Attrs = O::Attrs;

    #[inline(always)]
    fn lane<F: Float>(attrs: &O::Attrs, mut get: impl FnMut(usize) -> F, mut put: impl FnMut(usize, F)) {
        let (inputs, outputs) = const { (O::SCHEMA.inputs.len(), O::SCHEMA.outputs.len()) };
        let incoming = const { Self::INPUTS - O::SCHEMA.outputs.len() };
        // Plain loops keep compilation fast: this is compiled for every operator, dtype, instruction set and order.
        let mut x = [F::from(0.0); MAX_ARGS];
        let mut dout = [F::from(0.0); MAX_ARGS];
        let mut k = 0;
        while k < inputs {
            x[k] = get(k);
            k += 1;
        }
        k = 0;
        while k < outputs {
            dout[k] = get(incoming + k);
            k += 1;
        }
        let (mut i, mut slot) = (0, 0);
        while i < inputs {
            if !O::SCHEMA.inputs[i].shape_only {
                let mut dx = F::from(0.0);
                let of_slot = |k: usize| {
                    let value = if k < inputs { x[k] } else { F::from(0.0) };
                    if k == i { Dual::variable(value) } else { Dual::constant(value) }
                };
                let add = |j: usize, out: Dual<F>| {
                    if j < outputs {
                        dx = dx + dout[j] * out.derivative
                    }
                };
                O::lane::<Dual<F>>(attrs, of_slot, add);
                put(slot, dx);
                slot += 1;
            }
            i += 1;
        }
    }

    fn symbols(attrs: &O::Attrs, get: &mut dyn FnMut(usize) -> Symbol, put: &mut dyn FnMut(usize, Symbol)) {
        let formula = RecordedFormula::new(&|get, put| O::symbols(attrs, get, put));
        let incoming = const { Self::INPUTS - O::SCHEMA.outputs.len() };
        differentiate(const { &O::SCHEMA }, incoming, &formula, get, put);
    }

    fn attrs(desc: &OpDesc) -> Result<O::Attrs> {
        O::attrs(&Self::forward(desc))
    }
}

/// The expressions of a derivative's lane, from the recorded formula of the operator `own`; compiled once for all
/// operators. `incoming` is the first slot with a gradient.
fn differentiate(
    own: &'static Schema,
    incoming: usize,
    formula: &RecordedFormula,
    get: &mut dyn FnMut(usize) -> Symbol,
    put: &mut dyn FnMut(usize, Symbol),
) {
    let x: Vec<Symbol> = (0..own.inputs.len()).map(&mut *get).collect();
    let dout: Vec<Symbol> = (0..own.outputs.len()).map(|k| get(incoming + k)).collect();
    let inputs = own.inputs.iter().enumerate().filter(|(_, slot)| !slot.shape_only);
    for (slot, (i, _)) in inputs.enumerate() {
        let mut dx = Symbol::from(0.0);
        let of_slot = |k: usize| {
            let value = x.get(k).copied().unwrap_or_else(|| Symbol::from(0.0));
            if k == i { Dual::variable(value) } else { Dual::constant(value) }
        };
        let add = |j: usize, out: Dual<Symbol>| {
            if let Some(dout) = dout.get(j) {
                dx = dx + *dout * out.derivative;
            }
        };
        formula.differentiate(of_slot, add);
        put(slot, dx);
    }
}
