//! Compositions as an oracle: an operator and its gradient must match the operator's composition.

use super::{
    derivatives::{Distance, GradientFunction},
    function::{ProgramFunction, failure, in_case},
    panics::is_fault,
};
use autobwd_core::{
    __private::internals::*, Attr, BlockId, DType, Dim, ErrorKind, Meta, OpDesc, OpInfoMap, Program, Result,
    Tensor, Var, VarDesc, sample::Sample,
};

/// Bound for |a − b| / (1 + max |b|) between kernel and composition, both in `f64`.
const COMPOSED: f64 = 1e-10;

/// Compares outputs and gradients of a function with outputs and gradients of its composition, if its operator has one,
/// with known and, unless one of them is 0, with unknown dimensions. A composition that fails where dimensions are
/// unknown goes to `warnings`.
pub(super) fn check_composition(
    ops: &OpInfoMap,
    sample: &Sample,
    function: &ProgramFunction,
    built: Option<&GradientFunction>,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let Some(program) = composed(ops, &function.program)? else { return Ok(()) };
    check_composed(ops, sample, function, built, program)?;
    // A composition chooses another form for a dimension that is known to be 0.
    let has_zero = function.inputs.iter().any(|(_, tensor)| tensor.dims().contains(&0));
    if has_zero || sample.known_dims.is_some() {
        return Ok(());
    }
    match composed(ops, &with_unknown_dims(&function.program)) {
        Err(e) if is_fault(&e) => Err(e),
        Err(e) => {
            warnings.push(format!("the composition fails where dimensions are unknown: {e}"));
            Ok(())
        }
        Ok(program) => program
            .map_or(Ok(()), |program| check_composed(ops, sample, function, built, program))
            .map_err(in_case("with unknown dimensions, ")),
    }
}

/// The program with all dimensions unknown.
fn with_unknown_dims(program: &Program) -> Program {
    let mut open = program.clone();
    for var in program.root().vars.keys() {
        if let Some(desc) = open.root_mut().vars.get_mut(var) {
            desc.dims.iter_mut().for_each(|dim| *dim = Dim::UNKNOWN);
        }
    }
    open
}

/// Compares a function with its composition.
fn check_composed(
    ops: &OpInfoMap,
    sample: &Sample,
    function: &ProgramFunction,
    built: Option<&GradientFunction>,
    program: Program,
) -> Result<()> {
    let composed = function.with_program(ops, program);
    let is_infinite = has_infinite_attribute(&function.program);
    let compare = |what: &str, found: &Tensor, expected: &Tensor| match is_infinite {
        true => compare_values(what, &with_infinities_of(found, expected)?, expected),
        false => compare_values(what, found, expected),
    };
    let (expected, found) = (function.run()?, composed.run()?);
    for ((name, _), (found, expected)) in function.outputs.iter().zip(found.iter().zip(&expected)) {
        compare(&format!("output `{name}` of the composition"), found, expected)?;
    }
    // A composition that runs cannot differ from the operator, but a gradient that is no derivative does.
    let is_chosen = sample.smooth.is_some() && ops.get(sample.op())?.is_composed();
    let Some(built) = built.filter(|_| !is_chosen) else { return Ok(()) };
    // A gradient derived from the composition itself would be compared with itself.
    let gradient = match GradientFunction::of(ops, &composed) {
        Err(e) if e.kind() == ErrorKind::NoGradient => return Ok(()),
        outcome => outcome?,
    };
    let (expected, found) = (built.gradient.run()?, gradient.gradient.run()?);
    for (i, input) in function.float_inputs().iter().enumerate() {
        match (gradient.value(&found, i), built.value(&expected, i)) {
            // Where there is no derivative, the operator may choose an infinite gradient.
            (Some(_), Some(expected))
                if sample.smooth.is_some() && expected.to_f64s().iter().any(|x| x.is_infinite()) => {}
            (Some(found), Some(expected)) => {
                compare(&format!("gradient of `{input}` by the composition"), found, expected)?;
            }
            (None, Some(expected)) if expected.to_f64s().iter().any(|x| *x != 0.0) => {
                return Err(failure(format!("by the composition, `{input}` has no gradient")));
            }
            (Some(found), None) if found.to_f64s().iter().any(|x| *x != 0.0) => {
                return Err(failure(format!("by the composition, `{input}` has a gradient")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether an attribute is infinite: the order of operations then decides which results are infinite, and which NaN.
fn has_infinite_attribute(program: &Program) -> bool {
    let is_infinite = |attr: &Attr| match attr {
        Attr::F32(x) => x.is_infinite(),
        Attr::F64(x) => x.is_infinite(),
        Attr::F32s(all) => all.iter().any(|x| x.is_infinite()),
        Attr::F64s(all) => all.iter().any(|x| x.is_infinite()),
        _ => false,
    };
    program.root().ops.iter().any(|op| op.attrs.iter().any(|(_, attr)| is_infinite(attr)))
}

/// The tensor with the elements of another one where these are not finite.
fn with_infinities_of(found: &Tensor, expected: &Tensor) -> Result<Tensor> {
    if found.dtype() != DType::F64 || found.meta() != expected.meta() {
        return Ok(found.clone());
    }
    let pairs = found.to_f64s().into_iter().zip(expected.to_f64s());
    let elements = pairs.map(|(found, expected)| if expected.is_finite() { found } else { expected });
    Tensor::from_vec(found.dims(), elements.collect())
}

pub(super) fn compare_values(what: &str, found: &Tensor, expected: &Tensor) -> Result<()> {
    if found.dims() != expected.dims() || found.dtype() != expected.dtype() {
        let (found, expected) = (found.meta(), expected.meta());
        return Err(failure(format!("{what} is {found}, by the kernel {expected}")));
    }
    let (a, b) = (found.to_f64s(), expected.to_f64s());
    let distance = Distance::of(&a, &b, COMPOSED);
    if distance.worst > COMPOSED {
        return Err(distance.error(what, "by the kernel", (&a, &b), expected.dims()));
    }
    Ok(())
}

/// The program with every operator of the root block replaced by its composition; `None` if none has any.
fn composed(ops: &OpInfoMap, program: &Program) -> Result<Option<Program>> {
    let (mut composed, mut any) = (program.clone(), false);
    for op in std::mem::take(&mut composed.root_mut().ops) {
        match ops.composition(&mut composed, &op)? {
            Some(parts) => {
                any = true;
                parts.into_iter().try_for_each(|part| append(ops, &mut composed, part))?;
            }
            None => composed.root_mut().ops.push(op),
        }
    }
    Ok(any.then_some(composed))
}

/// Appends an operator of a composition, with outputs declared by its shape rule.
fn append(ops: &OpInfoMap, program: &mut Program, op: OpDesc) -> Result<()> {
    let info = ops.get(&op.ty)?;
    if info.is_control() {
        program.root_mut().ops.push(op);
        return Ok(());
    }
    let mut metas: Vec<(Var, Meta)> = vec![];
    let of = |var: Var| {
        let known = program.root().vars.get(&var).map(VarDesc::meta);
        known.ok_or_else(|| failure("a composition reads a variable that is not written"))
    };
    let outcome = info.infer(&op, &of, &mut |var, meta| metas.push((var, meta)));
    outcome.map_err(|e| e.at_op(|| program.describe_op(BlockId::ROOT, program.root().ops.len(), &op)))?;
    let root = program.root_mut();
    root.vars.extend(metas.into_iter().map(|(var, meta)| (var, VarDesc::of(meta))));
    root.ops.push(op);
    Ok(())
}
