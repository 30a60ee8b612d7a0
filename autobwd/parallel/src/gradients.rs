//! The gradients of a training step, in the order in which they are complete, and operators inserted after them.

use rustc_hash::FxHashMap;

use autobwd_core::{
    DType, Error, ErrorKind, OpDesc, Origin, Program, Result, Var, VarKind,
    operators::{FillAnyLike, FillConstant},
};

/// The gradient of a parameter.
pub(crate) struct ParameterGradient {
    pub(crate) parameter: Var,
    pub(crate) gradient: Var,
    /// The index of the last operator of the backward pass that writes it.
    pub(crate) last: usize,
    pub(crate) kind: VarKind,
    pub(crate) dtype: DType,
    /// Size of the dense tensor.
    pub(crate) bytes: usize,
}

/// The gradients of all parameters of a training step, in the order in which they are complete.
pub(crate) fn find(program: &Program) -> Result<Vec<ParameterGradient>> {
    let root = program.root();
    let mut written = FxHashMap::default();
    for (i, op) in root.ops.iter().enumerate().filter(|(_, op)| op.origin != Origin::Model) {
        written.extend(op.writes().map(|v| (v, i)));
    }
    let mut found = vec![];
    for parameter in program.parameters() {
        let Some(gradient) = program.gradient_name(parameter) else { continue };
        let (Some(last), Some(desc)) = (written.get(&gradient), root.vars.get(&gradient)) else { continue };
        let read_again = root.ops[last + 1..]
            .iter()
            .find(|op| op.origin != Origin::Model && op.reads().any(|v| v == gradient));
        if let Some(op) = read_again {
            let text = format!(
                "`{}` is read by `{}` of a further backward pass, so it cannot be summed over all ranks; build the step from one backward pass",
                program.name(gradient),
                op.ty
            );
            return Err(Error::new(ErrorKind::Program, text));
        }
        found.push(ParameterGradient {
            parameter,
            gradient,
            last: *last,
            kind: desc.kind,
            dtype: desc.dtype,
            bytes: desc.dims.numel().get().unwrap_or(0) * desc.dtype.size(),
        });
    }
    if found.is_empty() {
        let text = "the program has no gradient of a parameter; append the backward pass first";
        return Err(Error::new(ErrorKind::NoGradient, text));
    }
    found.sort_by_key(|gradient| gradient.last);
    Ok(found)
}

/// Divides all gradients of the loss by a number: by it, the backward pass starts.
pub(crate) fn divide(program: &mut Program, by: usize) -> Result<()> {
    let seeds: Vec<usize> = {
        let ops = program.root().ops.iter().enumerate();
        ops.filter(|(_, op)| op.origin == Origin::Seed).map(|(i, _)| i).collect()
    };
    if seeds.is_empty() {
        let text = "the program has no operator that starts a backward pass";
        return Err(Error::new(ErrorKind::NoGradient, text));
    }
    for i in seeds {
        let op = &mut program.root_mut().ops[i];
        let divided: OpDesc = if let Some(fill) = op.as_op::<FillConstant>() {
            let value = f64::from(fill.value) / by as f64;
            FillConstant { value: value as f32, str_value: value.to_string(), ..fill }.into()
        } else if let Some(fill) = op.as_op::<FillAnyLike>() {
            FillAnyLike { value: fill.value / by as f64, ..fill }.into()
        } else {
            let text = format!("the backward pass starts with `{}`, not with a constant", op.ty);
            return Err(Error::new(ErrorKind::Program, text));
        };
        *op = OpDesc { origin: op.origin, site: op.site, ..divided };
    }
    Ok(())
}

/// Inserts operators after the operators with these indices, which ascend.
pub(crate) fn insert(program: &mut Program, behind: Vec<(usize, Vec<OpDesc>)>) {
    let mut places = vec![];
    let mut behind = behind.into_iter().peekable();
    let ops = std::mem::take(&mut program.root_mut().ops);
    let mut new = Vec::with_capacity(ops.len());
    for (i, op) in ops.into_iter().enumerate() {
        places.push(new.len());
        new.push(op);
        while let Some((_, ops)) = behind.next_if(|(at, _)| *at == i) {
            new.extend(ops);
        }
    }
    for op in &mut new {
        if let Origin::Gradient { of } | Origin::Recompute { of } = &mut op.origin {
            *of = places.get(*of).copied().unwrap_or(*of);
        }
    }
    program.root_mut().ops = new;
}
