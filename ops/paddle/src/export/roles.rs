//! `op_role` and `op_role_var`: the part of a training program to which an operator belongs.

use std::collections::HashSet;

use autobwd::{
    Attr, OpDesc, Program,
    program::{Origin, Var},
};

use crate::{attrs::write_attr, proto::op_desc};

const FORWARD: i32 = 0;
const BACKWARD: i32 = 1;
const OPTIMIZE: i32 = 2;
const LOSS: i32 = 0x100;

/// The variables at which the backward pass starts.
pub(super) fn losses(program: &Program) -> HashSet<Var> {
    let seeds = program.root().ops.iter().filter(|op| op.origin == Origin::Seed);
    let of = |var: Var| program.find(program.name(var).strip_suffix("@GRAD")?);
    seeds.flat_map(OpDesc::writes).filter_map(of).collect()
}

/// The attributes of an operator.
pub(super) fn role(program: &Program, losses: &HashSet<Var>, op: &OpDesc) -> Vec<op_desc::Attr> {
    let param = |slot: &str| op.inputs.get(slot).first().copied();
    let (role, vars) = match (op.origin, param("Param"), param("Grad")) {
        (_, Some(param), Some(grad)) if op.outputs.find("ParamOut").is_some() => {
            (OPTIMIZE, vec![param, grad])
        }
        (Origin::Model, ..) if op.ty.ends_with("_grad") => (BACKWARD, gradients(program, op)),
        (Origin::Model, ..) if op.writes().any(|var| losses.contains(&var)) => (FORWARD | LOSS, vec![]),
        (Origin::Model, ..) => (FORWARD, vec![]),
        (Origin::Seed, ..) => (BACKWARD | LOSS, vec![]),
        _ => (BACKWARD, gradients(program, op)),
    };
    let vars = vars.into_iter().map(|var| program.name(var).to_string()).collect();
    let attrs = [("op_role", Attr::I32(role)), ("op_role_var", Attr::Strs(vars))];
    attrs.into_iter().filter_map(|(name, value)| write_attr(name, value, None)).collect()
}

/// Parameters whose gradients the operator writes, each followed by its gradient.
fn gradients(program: &Program, op: &OpDesc) -> Vec<Var> {
    let of = |var: Var| {
        let parameter = program.root().vars.get(&var)?.gradient_of?;
        let is_parameter = program.root().vars.get(&parameter).is_some_and(|desc| desc.parameter);
        (is_parameter && program.gradient_name(parameter) == Some(var)).then_some([parameter, var])
    };
    op.writes().filter_map(of).flatten().collect()
}
