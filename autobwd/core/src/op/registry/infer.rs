//! Shape inference on descriptions: by rules of operators' authors, by the rule of all formulas, and for gradient
//! operators by the rule of the forward operator.

use smallvec::SmallVec;

use super::{
    super::shape_rules::{check_grad, same_count},
    Implementation, InferFn, MetaOf, PutMeta,
};
use crate::{
    Arity, Cost, DType, Dim, Dims, Error, ErrorKind, Infer, IntegerLanes, Meta, Op, OpDesc, OpInfo, Result,
    Role, Schema, SlotDef, Var,
    desc::GRAD,
    lanes::{IntegerKernel, broadcast_axis, broadcast_dims},
    op::forward_op,
};

impl OpInfo {
    /// Runs the shape rule: `of` returns dtype and shape of an input, `put` receives dtype and shape of an output.
    /// Dimensions that data decides are unknown.
    ///
    /// # Errors
    /// The errors of the shape rule, of reading slots and attributes, and of `of`.
    pub fn infer(&self, desc: &OpDesc, of: MetaOf<'_>, put: PutMeta<'_>) -> Result<()> {
        self.check_formula(desc)?;
        self.infer_checked(desc, of, &mut |var, meta| put(var, meta.without_bounds()))
    }

    /// As [`infer`](OpInfo::infer), for a description that has passed [`check`](OpInfo::check). Dimensions that data
    /// decides have their bounds.
    ///
    /// # Errors
    /// As [`infer`](OpInfo::infer).
    pub(crate) fn infer_checked(&self, desc: &OpDesc, of: MetaOf<'_>, put: PutMeta<'_>) -> Result<()> {
        self.infer_cost(desc, of, put).map(drop)
    }

    fn infer_cost(&self, desc: &OpDesc, of: MetaOf<'_>, put: PutMeta<'_>) -> Result<Dim> {
        self.authored("shape rule", || (self.infer)(desc, of, put))
    }

    /// Checks the description of a formula, whose shape rule ignores attributes.
    fn check_formula(&self, desc: &OpDesc) -> Result<()> {
        if matches!(self.run, Implementation::Formula { .. }) {
            (self.check)(&self.schema, desc)
        } else {
            Ok(())
        }
    }

    /// The cost of running it, for inputs with dimensions that `of` knows completely.
    ///
    /// # Errors
    /// As [`infer`](OpInfo::infer).
    pub fn cost(&self, desc: &OpDesc, of: MetaOf<'_>) -> Result<Cost> {
        let mut bytes = 0_u64;
        let mut touch = |meta: Meta| bytes = bytes.saturating_add(meta.bytes().unwrap_or(usize::MAX) as u64);
        self.check_formula(desc)?;
        let flops = self.infer_cost(desc, of, &mut |_, meta| touch(meta))?;
        for var in self.reads(desc) {
            touch(of(var)?);
        }
        Ok(Cost { flops: flops.get().unwrap_or(usize::MAX) as u64, bytes })
    }
}

/// Runs the shape rule written by an operator's author. Only the part that depends on the operator's type is compiled
/// per operator.
pub(super) fn infer<O: Op>(desc: &OpDesc, of: MetaOf<'_>, put: PutMeta<'_>) -> Result<Dim>
where
    O::Of<Meta>: Infer,
{
    let schema = const { &O::SCHEMA };
    let mut reads_list = false;
    let fill = &mut |role, slot, var| match role {
        Role::Input => {
            let meta = of(var)?;
            reads_list |= meta.array;
            input_meta(schema, slot, meta)
        }
        Role::Output => output_meta(schema, desc, (slot, var), of),
    };
    let mut op = O::from_desc_with::<Meta>(desc, fill)?;
    op.infer()?;
    let (flops, mut outputs) = (op.flops(), SmallVec::new());
    O::outputs(op, &mut |slot, meta| outputs.push((slot, meta)));
    put_outputs(schema, desc, outputs, reads_list, put).map(|()| flops)
}

/// The shape rule of a gradient operator, inferred from the rule of its forward operator.
pub(super) fn infer_gradient<O: Op, F: Op>(desc: &OpDesc, of: MetaOf<'_>, put: PutMeta<'_>) -> Result<Dim>
where
    F::Of<Meta>: Infer,
{
    O::from_desc(desc)?;
    infer_by_forward([const { &O::SCHEMA }, const { &F::SCHEMA }], infer::<F>, desc, of, put)
}

/// Outputs of the forward operator, and their gradients, have the inferred shapes; a gradient has the shape of its
/// input.
fn infer_by_forward(
    [gradient, forward]: [&'static Schema; 2],
    infer: InferFn,
    desc: &OpDesc,
    of: MetaOf<'_>,
    put: PutMeta<'_>,
) -> Result<Dim> {
    let (mut fwd, mut results) = (forward_op(forward, desc), SmallVec::<[Meta; 2]>::new());
    for input in forward.inputs.iter().filter(|input| gradient.input(input.name).is_none()) {
        if let Some(read) = forward.read_like(input, gradient) {
            fwd.inputs.set(input.name, desc.inputs.get(read).iter().copied());
        }
    }
    let flops = infer(&fwd, of, &mut |_, meta| results.push(meta))?;
    let mut results = results.into_iter();
    for slot in forward.outputs {
        let args = fwd.outputs.get(slot.name).iter().enumerate().filter(|(_, var)| **var != Var::EMPTY);
        for ((i, _), result) in args.zip(results.by_ref()) {
            let result = result.in_slot(slot.name);
            for read in gradient.inputs.iter().filter(|read| of_gradient(read) == slot.name) {
                match desc.inputs.get(read.name).get(i) {
                    None | Some(&Var::EMPTY) => {}
                    Some(var) => {
                        let given = input_meta(gradient, read.name, of(*var)?)?;
                        check_grad(&result, &given, &result.dims)?;
                        if read.name != slot.name {
                            given.float()?;
                        }
                    }
                }
            }
        }
    }
    let mut count = 0;
    for slot in gradient.outputs {
        let inputs = fwd.inputs.get(of_gradient(slot));
        let grads = desc.outputs.get(slot.name);
        if matches!(slot.arity, Arity::Holes) {
            same_count(slot.name, grads.len(), inputs.len())?;
        }
        for (i, dx) in grads.iter().enumerate().filter(|(_, dx)| **dx != Var::EMPTY) {
            let x = inputs.get(i).ok_or_else(|| missing_forward_input(slot.name))?;
            let x = of(*x)?.in_slot(of_gradient(slot));
            x.float()?;
            let mut meta = Meta::new(x.dtype, []).in_slot(slot.name);
            meta.like(&x);
            put(*dx, meta);
            count += 1;
        }
    }
    Ok(flops * Dim::from(count))
}

/// The slot whose gradient a slot holds, or its own name.
fn of_gradient(slot: &SlotDef) -> &'static str {
    slot.name.strip_suffix(GRAD).unwrap_or(slot.name)
}

#[cold]
fn missing_forward_input(slot: &str) -> Error {
    Error::new(ErrorKind::Slot, format!("output `{slot}` is the gradient of an input that is absent"))
}

/// The initial value of an output slot for the shape rule: dtype and shape of the input that it is `like`, if any.
fn output_meta(
    schema: &Schema,
    desc: &OpDesc,
    (slot, var): (&'static str, Var),
    of: MetaOf<'_>,
) -> Result<Meta> {
    let mut meta = Meta::new(DType::F32, []).in_slot(slot);
    if let Some(like) = schema.output(slot).and_then(|slot| slot.like) {
        let position = desc.outputs.get(slot).iter().position(|output| *output == var);
        let input = position.and_then(|i| desc.inputs.get(like).get(i)).filter(|input| **input != Var::EMPTY);
        let text = || format!("output `{slot}` has the shape of an input that is absent");
        let input = input.ok_or_else(|| Error::new(ErrorKind::Slot, text()))?;
        meta.like(&of(*input)?);
    }
    Ok(meta)
}

/// Passes the inferred outputs to `put`, each with the index of its slot.
fn put_outputs(
    schema: &Schema,
    desc: &OpDesc,
    outputs: SmallVec<[(usize, Meta); 2]>,
    reads_list: bool,
    put: PutMeta<'_>,
) -> Result<()> {
    // Outputs are ordered by slot; both sides skip holes.
    let slots = schema.outputs.iter().map(|s| desc.outputs.get(s.name));
    let mut vars: SmallVec<[_; 4]> = slots.map(|args| args.iter().filter(|v| **v != Var::EMPTY)).collect();
    let mut outcome = Ok(());
    for (slot, meta) in outputs {
        if let Some(var) = vars.get_mut(slot).and_then(Iterator::next) {
            match schema.outputs.get(slot) {
                Some(slot) if meta.array && !slot.array && !reads_list => outcome = Err(no_list(slot.name)),
                _ => match meta.not_negative() {
                    Ok(()) => put(*var, meta.with_constant(None)),
                    Err(e) => outcome = Err(e),
                },
            }
        }
    }
    outcome
}

#[cold]
fn no_list(slot: &str) -> Error {
    let text = format!(
        "the shape rule makes a tensor array of `{slot}`, which is not declared `array`, without reading one"
    );
    Error::new(ErrorKind::Slot, text)
}

/// Dtype and shape of an input, which must be a dense tensor unless its slot says otherwise.
fn input_meta(schema: &Schema, slot: &'static str, meta: Meta) -> Result<Meta> {
    let mut meta = meta.in_slot(slot);
    let takes = |fits: fn(&SlotDef) -> bool| schema.input(slot).is_some_and(fits);
    if meta.constant().is_some() && !takes(|s| s.constant) {
        meta = meta.with_constant(None);
    }
    let takes_it = match (meta.array, meta.rows) {
        (true, _) => takes(|s| s.array),
        (false, Some(_)) => takes(|s| s.sparse || s.shape_only && !s.constant),
        (false, None) => true,
    };
    if takes_it { Ok(meta) } else { Err(meta.wrong("a dense tensor is needed")) }
}

/// Runs the shape rule of all formulas, on a description whose attributes have been checked.
pub(super) fn infer_pointwise<O: Op>(desc: &OpDesc, of: MetaOf<'_>, put: PutMeta<'_>) -> Result<Dim> {
    infer_formula(const { &O::SCHEMA }, desc, of, put)
}

/// The shape rule of all formulas: outputs have the broadcast shape of the inputs, or the shape of the input
/// that they are `like`. It does not depend on the operator's type, so that it is compiled once.
fn infer_formula(schema: &'static Schema, desc: &OpDesc, of: MetaOf<'_>, put: PutMeta<'_>) -> Result<Dim> {
    let mut inputs: SmallVec<[Meta; 4]> = SmallVec::new();
    for slot in schema.inputs {
        for var in desc.inputs.get(slot.name) {
            inputs.push(input_meta(schema, slot.name, of(*var)?)?);
        }
    }
    let Some(first) = inputs.first() else {
        return Err(Error::new(ErrorKind::Slot, "a formula needs at least one input"));
    };
    if schema.integers {
        first.signed()?
    } else {
        first.float()?
    }
    for input in &inputs[1..] {
        if schema.broadcast { input.same_dtype(first)? } else { input.same_as(first)? }
    }
    let full = if inputs[1..].iter().all(|input| input.dims == first.dims) {
        Meta::new(first.dtype, first.dims.clone())
    } else if schema.broadcast {
        Meta::new(first.dtype, broadcast_dims(&inputs, broadcast_axis(schema, desc))?)
    } else {
        let known =
            |a: &Meta, b: &Meta| a.dims.iter().zip(b.dims.iter()).map(|(a, b)| a.or(*b)).collect::<Dims>();
        inputs[1..].iter().fold(first.clone(), |m, i| Meta::new(m.dtype, known(&m, i)))
    };
    // Sparse inputs have the rows of the outputs.
    if let Some(sparse) = inputs.iter().find(|i| i.rows.is_some() && !i.dims.agrees(&full.dims)) {
        return Err(sparse.wrong(&format!("rows of shape {} are needed", full.dims)));
    }
    for slot in schema.outputs {
        let like = slot.like.and_then(|name| inputs.iter().find(|i| i.slot() == name));
        for var in desc.outputs.get(slot.name).iter().filter(|v| **v != Var::EMPTY) {
            let mut meta = Meta::new(first.dtype, []).in_slot(slot.name);
            meta.like(like.unwrap_or(&full));
            put(*var, meta);
        }
    }
    Ok(0.into())
}

/// The shape rule of formulas that also have an integer version.
pub(super) fn infer_integers<O: Op + IntegerLanes>(
    desc: &OpDesc,
    of: MetaOf<'_>,
    put: PutMeta<'_>,
) -> Result<Dim> {
    let cost = infer_pointwise::<O>(desc, of, put)?;
    let dtype = desc.inputs.args().next().map_or(Ok(DType::F32), |var| of(var).map(|meta| meta.dtype))?;
    IntegerKernel::check_attrs::<O>(desc, dtype)?;
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_like_what_is_at_their_position() {
        const DX: SlotDef = SlotDef::new("X@GRAD", Arity::Holes, "", 0).like("X");
        const SCHEMA: Schema = Schema { outputs: &[DX], ..<crate::operators::Sum as Op>::SCHEMA };
        let var = Var::stand_in;
        let mut desc = OpDesc::new("sum_grad");
        desc.inputs.set("X", [var(1), var(2), Var::EMPTY]);
        desc.outputs.set("X@GRAD", [Var::EMPTY, var(3), var(4)]);
        let of = |var| output_meta(&SCHEMA, &desc, ("X@GRAD", var), &|_| Ok(Meta::new(DType::F64, [2])));
        assert_eq!(of(var(3)).unwrap(), Meta::new(DType::F64, [2]).in_slot("X@GRAD"));
        let e = of(var(4)).unwrap_err();
        assert_eq!(e.to_string(), "output `X@GRAD` has the shape of an input that is absent");
    }
}
