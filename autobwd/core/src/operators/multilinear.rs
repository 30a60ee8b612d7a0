//! Gradient rules of linear operators.
//!
//! `grad = SelfAdjoint`: the gradient of an operator that is its own adjoint.
//!
//! `grad = Multilinear`: double backward of operators that are linear in each of some inputs. The gradient of such an
//! operator, and the gradient of that, are the operator and its gradient operator again, each with one input replaced.

use super::zeros;
use crate::{
    Arity, Error, ErrorKind, GradCx, GradRule, Op, OpDesc, OpInfo, Schema, SlotDef, Var,
    desc::GRAD,
    op::{linear_input, sorted},
};

/// The gradient of a gradient operator with `grad_of`, whose forward operator is linear in each of the inputs that have
/// a gradient: products and convolutions, and with one such input all operators that move, repeat or sum elements.
///
/// For `out = x · y` with `dx` and `dy`, it is `ddout = ddx · y + x · ddy`, and for the factors the gradients of these
/// two products with respect to `dout`. An optional input whose elements the gradient operator does not read is a
/// summand, and is left out.
#[derive(Debug)]
pub struct Multilinear;

impl<O: Op> GradRule<O> for Multilinear {
    fn emit(_: &O, g: &mut GradCx<'_>) {
        let forward = g.request.ops.get(&g.forward().ty).ok().and_then(OpInfo::forward);
        if let Some(forward) = forward {
            emit(forward, const { &O::SCHEMA }, g);
        }
    }
}

/// The gradient of an operator that multiplies one input by a symmetric matrix (a mask or another elementwise factor, a
/// flip): the operator itself, applied to the output's gradient.
///
/// The operator has one output, with the dtype and shape of that input. The input is the only one or, for a gradient
/// operator, the only gradient among its inputs; the others have no gradient, as where they only select elements.
#[derive(Debug)]
pub struct SelfAdjoint;

impl<O: Op> GradRule<O> for SelfAdjoint {
    fn emit(_: &O, g: &mut GradCx<'_>) {
        let (schema, Some(linear)) = (const { (&O::SCHEMA, linear_input(&O::SCHEMA)) }) else { return };
        let (x, out) = (g.forward().inputs.get(linear), g.forward().outputs.get(schema.outputs[0].name));
        let (&[x], &[out]) = (x, out) else { return };
        if let (Some(of_x), Some(of_out)) = (g.meta(x), g.meta(out))
            && !(of_x.dtype == of_out.dtype && of_x.dims.agrees(&of_out.dims))
        {
            let text = "`grad = SelfAdjoint` is for operators whose output is like their input";
            let text = format!("{text}, but `{linear}` is {of_x}, `{}` {of_out}", schema.outputs[0].name);
            g.failed.get_or_insert(Error::new(ErrorKind::NoGradient, text));
            return;
        }
        if let Some(dx) = g.wanted(x) {
            let (mut inputs, mut outputs) = (g.forward().inputs.clone(), g.forward().outputs.clone());
            inputs.set(linear, [g.grad(out)]);
            outputs.set(schema.outputs[0].name, [dx]);
            g.push(OpDesc { inputs, outputs, attrs: g.forward().attrs.clone(), ..OpDesc::new(schema.name) });
        }
    }
}

fn emit(forward: &'static Schema, gradient: &'static Schema, g: &mut GradCx<'_>) {
    for replaced in gradient.outputs {
        let Some(slot) = replaced.name.strip_suffix(GRAD) else { continue };
        let dx = g.forward().outputs.get(replaced.name);
        if !dx.iter().any(|dx| g.arrives(*dx)) {
            continue;
        }
        let mut ddx = vec![];
        for (i, dx) in dx.iter().enumerate() {
            // A hole in a list of gradients: the gradient operator still reads the list.
            let hole = g.forward().inputs.get(slot).get(i).filter(|_| *dx == Var::EMPTY);
            ddx.push(match hole {
                Some(x) => zeros_like(*x, g),
                None => g.grad(*dx),
            });
        }
        let inputs = |of: &Schema, op: &mut OpDesc| {
            let is_read = |input: &&SlotDef| {
                let absent = input.constant && g.forward().inputs.get(input.name).is_empty();
                input.name == slot || !absent && !is_summand(gradient, input)
            };
            for input in sorted(of.inputs).into_iter().filter(is_read) {
                let args = if input.name == slot { &ddx } else { g.forward().inputs.get(input.name) };
                op.inputs.append(input.name, args.iter().copied());
            }
            for (name, value) in g.forward().attrs.iter().filter(|(name, _)| of.attr(name).is_some()) {
                op.attrs.set(name, value.clone());
            }
        };
        let (mut product, mut others) = (OpDesc::new(forward.name), OpDesc::new(gradient.name));
        inputs(forward, &mut product);
        inputs(gradient, &mut others);
        for output in sorted(gradient.outputs).into_iter().filter(|output| output.name != replaced.name) {
            let of = output.name.strip_suffix(GRAD).map_or(&[][..], |of| g.forward().inputs.get(of));
            let wanted = of.iter().map(|var| g.wanted(*var).unwrap_or(Var::EMPTY));
            others.outputs.append(output.name, wanted);
        }
        if outputs(forward, &mut product, g) {
            g.push(product);
        }
        if others.writes().next().is_some() {
            g.push(others);
        }
    }
}

/// Lets the forward operator write the gradients of its outputs' gradients, if any is wanted.
fn outputs(forward: &'static Schema, product: &mut OpDesc, g: &mut GradCx<'_>) -> bool {
    let mut any = false;
    for output in sorted(forward.outputs) {
        let grads = g.forward().inputs.get(&[output.name, GRAD].concat());
        let mut wanted: Vec<Option<Var>> = grads.iter().map(|dout| g.wanted(*dout)).collect();
        any |= wanted.iter().any(Option::is_some);
        if let (Arity::One, []) = (output.arity, &*wanted) {
            wanted.push(None);
        }
        let mut unwanted = || match output.arity {
            Arity::One | Arity::Many => g.fresh("unread"),
            Arity::Optional | Arity::Holes => Var::EMPTY,
        };
        let outs = wanted.into_iter().map(|dout| dout.unwrap_or_else(&mut unwanted));
        product.outputs.append(output.name, outs);
    }
    any
}

/// Whether the gradient operator does not read the elements of an optional input.
fn is_summand(gradient: &Schema, input: &SlotDef) -> bool {
    let own = gradient.input(input.name);
    matches!(input.arity, Arity::Optional) && own.is_none_or(|own| own.shape_only && !own.constant)
}

fn zeros_like(x: Var, g: &mut GradCx<'_>) -> Var {
    let out = g.fresh("zeros");
    g.push(zeros(x, out));
    out
}
